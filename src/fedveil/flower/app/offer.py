"""The server's offer to the clients of a round: the settings under which they shall report.

The settings are the protection, its parameters, and what is sent beside the update. From them, the
server and each client make the same protection. A client may refuse the offer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from fedveil.base.message import Message, Value, encode, only_fields, take
from fedveil.base.own_code import is_function, own_code_errors
from fedveil.errors import InvalidValue, JobError, MessageInvalid
from fedveil.flower.app.field_names import ANSWER_AFTER_S
from fedveil.flower.app.options import OFFERED, Options, parse
from fedveil.privacy.ledger_message import MAX_ROUND
from fedveil.protections.base import JobContext, Protection

_PARAMETER = "parameter."
_FIELDS = ("protection", "weighting", "weight_key", "keep", "reveal", "dimension", "clients")


@dataclass(frozen=True)
class Offer:
    """The settings of a round, equal for all of its clients.

    `weight_key` names the metric in an app's reply that states the client's number of examples.
    `dimension` is the number of entries of the update. `clients` is the largest number of clients
    that the round can ask.
    """

    options: Options
    weight_key: str
    dimension: int
    clients: int

    def words(self) -> Message:
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
            **({} if options.answer_after_s is None else {ANSWER_AFTER_S: options.answer_after_s}),
            **{f"{_PARAMETER}{name}": value for name, value in parameters.items()},
        }

    @classmethod
    def read(cls, words: Message, known: Collection[str]) -> Offer:
        """Read the offer in the server's message `words`. Raises `MessageInvalid` if it is invalid.

        `known` are the user's own protections that this client's settings name. A server cannot
        make the client import any other code.
        """
        parameters = {
            name.removeprefix(_PARAMETER): value
            for name, value in words.items()
            if name.startswith(_PARAMETER)
        }
        timed = (
            {ANSWER_AFTER_S: take(words, ANSWER_AFTER_S, float)} if ANSWER_AFTER_S in words else {}
        )
        only_fields(words, *_FIELDS, *timed, *(f"{_PARAMETER}{name}" for name in parameters))
        text = {name: take(words, name, str) for name in _FIELDS[:5]}
        if is_function(text["protection"]) and text["protection"] not in known:
            raise MessageInvalid(
                f"the offer's protection = {text['protection']} is code that this client does not "
                f"name itself"
            )
        weight_key = text.pop("weight_key")
        numbers = [take(words, name, int) for name in _FIELDS[5:]]
        if min(numbers) < 1 or set(parameters) & {*text, ANSWER_AFTER_S}:
            raise MessageInvalid("the offer's numbers or names are outside their ranges")
        try:
            options = parse({**text, **timed, **parameters})
        except JobError as error:
            raise MessageInvalid(f"the offer is refused: {'; '.join(error.problems)}") from None
        return cls(options, weight_key, *numbers)

    def protection(self, run: int) -> Protection:
        """Make the protection that this offer describes, for the Flower run with number `run`."""
        return _protection(self, run)

    def job(self, run: int) -> bytes:
        """Return a digest of this offer's settings and of `run`, the number of the Flower run."""
        fields: dict[str, Value] = {**self.words(), "run": run}
        return hashlib.sha256(b"fedveil flower app" + encode(fields)).digest()


def round_of(words: Message) -> int:
    """Return the round's number in the server's message `words`."""
    round: int = take(words, "round", int)
    if not 0 <= round <= MAX_ROUND:
        raise MessageInvalid(f"round = {round} is outside [0, {MAX_ROUND}]")
    return round


def check(options: Options) -> None:
    """Raise `InvalidValue` if some of the settings in `options` cannot be used together."""
    if options.protection is None:
        raise InvalidValue(f"protection is not given: one of {', '.join(OFFERED)} is needed")
    if options.weighting == "by_size" and options.noised:
        raise InvalidValue(
            f"weighting = 'by_size' breaks the sensitivity that the noise is made for; under "
            f"protection = {options.protection!r} with these parameters only 'equal' is allowed"
        )
    unfit = options.position.unfit_for_apps(options.parameters)
    if unfit is not None:
        raise InvalidValue(unfit)


@lru_cache(maxsize=4)
def _protection(offer: Offer, run: int) -> Protection:
    check(offer.options)
    context = JobContext(
        weighting=offer.options.weighs,
        dimension=offer.dimension,
        clients_per_round=offer.clients,
        rounds=1,
        simulated=False,
        job=offer.job(run),
    )
    name = offer.options.protection or ""
    if not is_function(name):
        return offer.options.position(offer.options.parameters, context)
    with own_code_errors(f"protection = {name!r}", InvalidValue, "the class"):
        return offer.options.position(offer.options.parameters, context)
