"""Creates the protection of sites' reports, and adds up the protected reports at the server."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.message import decode, encode
from fedveil.errors import InvalidValue
from fedveil.flower.app.arrays import ArrayLayout, Arrays
from fedveil.flower.app.field_names import ANSWER_AFTER_S
from fedveil.flower.app.offer import Offer, check
from fedveil.flower.app.options import Options, parse
from fedveil.protections.base import JobContext, Protection, RoundContext, ServerRound
from fedveil.protections.secure_sum_settings import SecureSumSettings
from fedveil.secagg.secret import Secret

#: The protections whose reports a site can send as arrays, and all protections of a site's reports.
PLAIN = ("dp_encrypt", "rr", "oue")
CARRIED = (*PLAIN, "signds", "distributed_dp", "pw_encrypt")


@dataclass(frozen=True)
class Terms:
    """A protection with its parameters. Sites and server must use equal terms."""

    options: Options

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> Terms:
        """Read the terms from `keys`, which are named as in a protected Flower app.

        The keys are `protection`, its parameters, `keep` (patterns of arrays that stay at the site)
        and, for secure aggregation, `clients` (the number of sites). Raises `JobError` or
        `InvalidValue` for wrong keys.
        """
        options = parse({"weighting": "equal", **keys})
        terms = cls(options)
        name = options.protection
        if name is None:
            check(options)
        if name not in CARRIED or (name == "oue" and terms.protection(1).adaptive):
            raise InvalidValue(
                f"protection = {name} is not possible here: use {', '.join(CARRIED)}, "
                "without adaptive"
            )
        if options.weighs != "equal":
            raise InvalidValue("weighting = by_size needs the number of examples, which stays here")
        if not terms.summed:
            check(options)
        elif options.clients is None:
            raise InvalidValue(f"protection = {name} needs clients, the number of sites in a sum")
        elif getattr(options.parameters, "noise_multiplier", 1.0) is None:
            raise InvalidValue(f"protection = {name} needs noise_multiplier")
        return terms

    @property
    def summed(self) -> bool:
        """True if the server sees only the sum of reports. A round then takes several messages."""
        return isinstance(self.options.parameters, SecureSumSettings)

    @property
    def plain(self) -> bool:
        """True if a site can send its report as arrays, which any framework can average."""
        return self.options.protection in PLAIN

    @property
    def needs_controller(self) -> bool:
        """True if the server must send messages of the protection, besides the model's arrays.

        An NVFlare server then needs `ProtectedController`. Otherwise it only adds up the reports.
        """
        return self.summed or getattr(self.options.parameters, "magnitude", "") == "estimated"

    def job(self, job: str, dimension: int) -> bytes:
        """Return a digest by which sites and server recognise that they mean the same run.

        It covers the run's identifier `job`, the `dimension` of an update, and these terms.
        """
        words = Offer(self.options, "", dimension, self.options.clients or 1).words()
        named = {key: value for key, value in words.items() if key != ANSWER_AFTER_S}
        return hashlib.sha256(b"fedveil site tasks" + encode({**named, "job": job})).digest()

    def layout(self, arrays: Arrays) -> ArrayLayout:
        """Return the position of each of a model's `arrays` in the vector of an update."""
        return ArrayLayout(arrays, self.options.kept, perturbed=self.options.noised)

    def protection(
        self,
        dimension: int,
        job: bytes = b"",
        roster: Mapping[int, bytes] | None = None,
        identity: Secret | None = None,
    ) -> Protection:
        """Return the protection for updates with `dimension` entries.

        `job` is a digest of the run, which the method `job` returns. Only secure aggregation needs
        it. If messages are signed, `roster` has every site's public key, and `identity` is this
        site's private key (None at the server).
        """
        context = JobContext(
            weighting="equal",
            dimension=dimension,
            clients_per_round=self.options.clients or 1,
            rounds=1,
            simulated=False,
            job=job,
            roster=roster or {},
            identity=identity,
        )
        return self.options.position(self.options.parameters, context)


class ReportSum:
    """Adds up the reports of one round at the server. Only the sites in `sites` may report."""

    def __init__(self, terms: Terms, arrays: Arrays, round: int, sites: Collection[str]) -> None:
        if terms.needs_controller:
            raise InvalidValue(f"protection = {terms.options.protection} needs ProtectedController")
        self._layout = terms.layout(arrays)
        protection = terms.protection(self._layout.dimension)
        model, state = self._layout.vector(arrays), protection.initial_state()
        cohort = sorted(map(number_of, sites))
        self._half: ServerRound = protection.server_round(RoundContext(cohort, round, model, state))

    def add(self, site: str, report: bytes) -> None:
        """Add a site's report, or raise `ReportRejected` or `MessageInvalid` and add nothing."""
        self._half.receive(number_of(site), decode(report, self._half.longest))

    def mean(self) -> dict[str, npt.NDArray[Any]]:
        """Return the mean update as arrays by name. Raises `RoundVoid` if there is no report."""
        self._half.advance()
        return shaped(self._layout, self._half.aggregate().update)

    def zero(self) -> dict[str, npt.NDArray[Any]]:
        """Return an update of zeros, as arrays by name. It does not change the model."""
        return shaped(self._layout, np.zeros(self._layout.dimension))


def number_of(site: str) -> int:
    """Return a site's client number, computed from a hash of its name."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:7])


def shaped(layout: ArrayLayout, update: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Split an update, one vector, into arrays by name. Omits arrays that never leave clients."""
    return {
        place.name: update[place.span].reshape(place.shape).astype(place.dtype)
        for place in layout.places
    }
