"""What the server tells the clients of a round, and the protection that both sides make of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from fedveil.errors import InvalidValue, JobError, MessageInvalid
from fedveil.flower.app.options import Options, names, parse
from fedveil.message import Message, Value, encode, only_fields, take
from fedveil.protections import build
from fedveil.protections.base import JobContext, Protection
from fedveil.protections.pw_encrypt import PWEncryptSettings

#: The protections whose report is perturbed: clients count equally, BatchNorm does not survive.
PERTURBING = ("dp_encrypt", "signds", "rr", "oue")
_PARAMETER = "parameter."
_FIELDS = ("protection", "weighting", "weight_key", "keep", "reveal", "dimension", "clients")


@dataclass(frozen=True)
class Offer:
    """The terms of a round, the same for all of its clients.

    `weight_key`: the metric that an app's reply gives as its number of examples. `dimension`: how
    many entries the update has. `clients`: how many are asked at most.
    """

    options: Options
    weight_key: str
    dimension: int
    clients: int

    def words(self) -> Message:
        """The offer as a message's fields."""
        options = self.options
        parameters = options.parameters.model_dump(exclude_none=True)
        return {
            "protection": str(options.protection),
            "weighting": options.weighs,
            "weight_key": self.weight_key,
            "keep": options.keep,
            "reveal": options.reveal,
            "dimension": self.dimension,
            "clients": self.clients,
            **{f"{_PARAMETER}{name}": value for name, value in parameters.items()},
        }

    @classmethod
    def read(cls, words: Message) -> Offer:
        """The offer in an untrusted message; raises `MessageInvalid`."""
        parameters = {
            name.removeprefix(_PARAMETER): value
            for name, value in words.items()
            if name.startswith(_PARAMETER)
        }
        only_fields(words, *_FIELDS, *(f"{_PARAMETER}{name}" for name in parameters))
        text = {name: take(words, name, str) for name in _FIELDS[:5]}
        weight_key = text.pop("weight_key")
        numbers = [take(words, name, int) for name in _FIELDS[5:]]
        if min(numbers) < 1 or set(parameters) & set(text):
            raise MessageInvalid("the offer's numbers or names are outside their ranges")
        try:
            options = parse({**text, **parameters})
        except JobError as error:
            raise MessageInvalid(f"the offer is refused: {'; '.join(error.problems)}") from None
        return cls(options, weight_key, *numbers)

    @property
    def kept(self) -> tuple[str, ...]:
        """The patterns of the arrays that stay at the server's value."""
        return names(self.options.keep)

    @property
    def perturbs(self) -> bool:
        """Whether a report has noise in it."""
        return self.options.protection in PERTURBING

    def protection(self, run: int) -> Protection:
        """The protection of these terms in the Flower run of that number."""
        return _build(self, run)

    def job(self, run: int) -> bytes:
        """A digest that all clients of the run share while they are told the same."""
        fields: dict[str, Value] = {**self.words(), "run": run}
        return hashlib.sha256(b"fedveil flower app" + encode(fields)).digest()


def check(options: Options) -> None:
    """What must hold between the settings; raises `InvalidValue`."""
    if options.protection is None:
        raise InvalidValue(
            "protection is not given: one of dp_encrypt, signds, rr, oue, pw_encrypt is needed"
        )
    if options.weighting == "by_size" and options.protection in PERTURBING:
        raise InvalidValue(
            f"weighting = 'by_size' breaks the sensitivity of local privacy; under protection = "
            f"{options.protection!r} only 'equal' is allowed"
        )
    parameters = options.parameters
    if not isinstance(parameters, PWEncryptSettings):
        return
    if parameters.active_security:
        raise InvalidValue(
            "active_security = True needs a roster of the clients' keys, which an app that is "
            "protected in two lines has not; a deployed job can have one, here it is False"
        )
    if parameters.reconstruct_secrets_threshold < 2:
        raise InvalidValue(
            "reconstruct_secrets_threshold = 1 is outside [2, inf): the sum of one client is no "
            "secret"
        )


@dataclass(frozen=True)
class _Key:
    """What a protection is made from; settings are compared by value."""

    job: bytes
    offer: Offer = field(compare=False)


def _build(offer: Offer, run: int) -> Protection:
    return _built(_Key(offer.job(run), offer))


@lru_cache(maxsize=4)
def _built(key: _Key) -> Protection:
    offer = key.offer
    check(offer.options)
    context = JobContext(
        weighting=offer.options.weighs,
        dimension=offer.dimension,
        clients_per_round=offer.clients,
        rounds=1,
        simulated=False,
        job=key.job,
    )
    assert offer.options.protection is not None
    return build(offer.options.protection, offer.options.parameters, context)
