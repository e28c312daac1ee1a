"""The client's side: protects an app's reply before it leaves the client."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, Error, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from fedveil.base.array_digest import digest
from fedveil.base.message import Message, encode
from fedveil.entropy import Secure
from fedveil.errors import (
    ClientWithheld,
    FedveilError,
    JobError,
    MessageInvalid,
    ModelInvalid,
    ProtectionFailed,
)
from fedveil.flower.answered_rounds import AnsweredFile, check_due
from fedveil.flower.app.arrays import ArrayLayout, Arrays, matches, read
from fedveil.flower.app.clear_metrics import LATE, METRICS, completed, in_clear, sent_metrics
from fedveil.flower.app.field_names import ANSWER_AFTER_S, OFFER, TIME, WITHHELD, number_of
from fedveil.flower.app.mod_order import mod_outside
from fedveil.flower.app.offer import Offer, round_of
from fedveil.flower.app.options import Options, parse
from fedveil.flower.app.pins import (
    Pin,
    Refused,
    answer_after_s,
    kept,
    limits,
    may_reveal,
    own_protections,
    pins_of,
    refuse_weaker,
    revealed_by,
)
from fedveil.flower.app.wrapped_app import AppFailed, ask_in_time
from fedveil.flower.fixed_time import FixedTime
from fedveil.flower.own_account import OwnLedger, asked_spending
from fedveil.flower.records import MESSAGE, from_records, to_records
from fedveil.flower.sealed_state import STATE_FOLDER, SealedState, StateFolder
from fedveil.protections.always_answers import answer_trained, reason
from fedveil.protections.base import BY_SIZE, TIMING, ClientContext, ClientRound, Protection, Update
from fedveil.protections.origin import Origin, model_alone
from fedveil.protections.own_errors import own_errors
from fedveil.rounds.outcomes import LONGEST_LOGGED, short

log = logging.getLogger("flwr.fedveil")

#: Field of a saved state with a digest of the offer. It must not change within a round.
_TERMS = "terms"
_NO_MODEL: Update = np.empty(0, np.float32)


class ProtectMod:
    """A mod of a `ClientApp` that replies to training messages with protected reports only.

    The messages must come from a `ProtectedStrategy`. The app trains as it would without this mod.
    The update is the reply's arrays minus the received ones. The mod turns it into a report with
    the client's side of the protection and the operating system's randomness. Before the app
    trains, the mod charges the report to this client's own account. Under a protection with a
    guarantee, a report is always sent. If training fails or its update is not finite, the report is
    that of an update of zero, and only this client's log says so. A metric is sent only if both the
    server and this client name it in `reveal`. Replies to evaluation messages and queries contain
    only such metrics. The server never gets the text of an error that may depend on data.

    This client's demands are called pins. They come from the keyword arguments (`Options`, and a
    protection's own parameters), and from the run and node configurations. The server offers a
    protection with its parameters. An offer that protects less than a pin demands, or that would
    bring this client's run above `max_epsilon`, is refused, and the server learns why. A client
    without pins accepts every protection of a `ProtectedStrategy`, and logs this.

    This must be the first of the app's mods, because a mod before it would receive reports instead
    of arrays. If another mod comes first, every message is refused.

    A round can need several messages. Between them, this client's state is stored encrypted in the
    node's context. It is erased at the end of the round.
    """

    def __init__(self, **pins: Any) -> None:
        parse(pins)
        self._keywords = pins
        self._warned = False

    def __call__(
        self, message: FlowerMessage, context: Context, call_next: ClientAppCallable
    ) -> FlowerMessage:
        """Return the reply to a message of the server. `call_next` calls the user's app."""
        try:
            if (wrong_order := mod_outside()) is not None:
                raise Refused(wrong_order)
            pins = pins_of(self._keywords, context.run_config, context.node_config)
            if message.metadata.message_type.split(".")[0] != "train":
                shown = _evaluated(message, context, call_next, pins)
                return FlowerMessage(RecordDict({METRICS: shown}), reply_to=message)
            answer = _Answer(message, context, call_next, pins)
            self._warn_without_pin(pins, answer.offer)
            content = answer.content()
        except AppFailed as failure:
            return _error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(failure), message)
        except ProtectionFailed as error:
            log.error("fedveil: this client sends no report: %s", short(str(error), LONGEST_LOGGED))
            reason = "fedveil failed with an exception of the client's own protection"
            return _error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason, message)
        except FedveilError as error:
            # The server's own words may be part of the text.
            said = short(str(error), LONGEST_LOGGED)
            log.warning("fedveil: this client sends no report: %s", said)
            # An error about the server's message reveals nothing. Any other may depend on the data.
            told = said if isinstance(error, Refused) else "for a reason in its own log"
            return _error(ErrorCode.MOD_FAILED_PRECONDITION, f"{WITHHELD}{told}", message)
        except Exception as error:  # Flower would send its text
            log.exception("fedveil: this client sends no report")
            reason = f"fedveil failed with {type(error).__name__}"
            return _error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason, message)
        return FlowerMessage(content, reply_to=message)

    def _warn_without_pin(self, pins: list[Pin], offer: Offer) -> None:
        if not self._warned and not own_protections(pins):
            self._warned = True
            log.warning(
                "fedveil: this client pins nothing and takes the server's word for %s; "
                "fedveil.protection in its node configuration, or ProtectMod(protection=...), "
                "with the protection's parameters, sets the least that it accepts",
                offer.options.protection,
            )


def _error(code: int, reason: str, message: FlowerMessage) -> FlowerMessage:
    return FlowerMessage(Error(code, reason), reply_to=message)


class _Arrays(NamedTuple):
    layout: ArrayLayout
    before: Arrays
    model: Update
    #: Returns a digest of all arrays, including those that stay local.
    origin: Origin


class _Answer:
    def __init__(
        self,
        message: FlowerMessage,
        context: Context,
        call_next: ClientAppCallable,
        pins: list[Pin],
    ) -> None:
        self._message = message
        self._context = context
        self._call_next = call_next
        self._pins = pins
        try:
            self._words, self.offer = _take_offer(message, own_protections(pins))
            self._round = round_of(self._words)
            refuse_weaker(self.offer, pins, context.run_id)
        except MessageInvalid as error:
            raise Refused(str(error)) from None
        self._protection: Protection = self.offer.protection(context.run_id)
        self._answered = AnsweredFile(_lasting(context, "answered"))

    def content(self) -> RecordDict:
        """Return the reply: the protection's answer and, after training, the metrics to reveal."""
        phases, trains = self._protection.phases, self._protection.trains
        state = _state_of(self._context) if len(phases) > 1 else None
        kept = None if state is None else self._kept(state)
        # The server's arrays are sent with the training phase, and with no other.
        training = state is None or bool(self._message.content.array_records)
        if training and kept is None and trains != phases[0]:
            raise Refused(f"{trains} is asked for before {phases[0]} in this round")
        if training:
            begun = partial(self._half, kept)
            check_due(self._answered, self._protection, begun, self._round, self._words)
        with FixedTime(self._answer_after_s if training else None, self._left_late) as time:
            if training:
                half, report, metrics = self._train(kept, time)
            else:
                (half, report), metrics = self._without_update(kept), None
            with own_errors(self._protection):
                to_keep = half.keep()
            if state is not None and to_keep:
                state.put(self._round, {**to_keep, _TERMS: self.offer.job(self._context.run_id)})
            records = to_records(report)
        if metrics:
            records[METRICS] = metrics
        return records

    def _without_update(self, kept: Message | None) -> tuple[ClientRound, Message]:
        try:
            with own_errors(self._protection):
                half = self._half(kept)
                return half, half.respond(self._words, None)
        except ClientWithheld as error:
            # In a phase without an update, errors depend only on the server's message.
            raise Refused(str(error)) from None

    def _train(
        self, kept: Message | None, time: FixedTime
    ) -> tuple[ClientRound, Message, MetricRecord]:
        """Charge the report, train, and make the report.

        Returns the client's side of the protection, the report, and the metrics that are sent in
        clear. `kept` is the client's state from the round's previous phase. `time` limits the
        training.
        """
        arrays = self._arrays()
        names = may_reveal(self.offer, self._pins)
        self._charge(names)
        self._answered.begin(self._protection, self._round)
        metrics = MetricRecord()

        def train() -> tuple[Update, int]:
            nonlocal metrics
            content = ask_in_time(time, self._message, self._context, self._call_next)
            update = arrays.layout.update(arrays.before, read(_only_arrays(content, "reply")))
            beside = {k: v for k, v in content.items() if not isinstance(v, ArrayRecord)}
            metrics = sent_metrics(beside, names)
            return update, self._examples(content)

        def half(examples: int) -> ClientRound:
            return self._half(kept, arrays.model, examples, arrays.origin)

        answered = answer_trained(self._protection, half, lambda: half(1), self._words, train)
        if answered.unusable is not None:
            said = short(reason(answered.unusable), LONGEST_LOGGED)  # it may quote the server
            log.warning("fedveil: an update of zero is reported: %s", said)
        return answered.half, answered.message, completed(metrics, names)

    def _arrays(self) -> _Arrays:
        """Return the arrays that the server sent, from which training starts, with their layout.

        Raises `Refused` if the server's `Offer` states another number of entries than the arrays
        have, or if the update would contain an array that this client keeps local.
        """
        before = read(_only_arrays(self._message.content, "message"))
        options = self.offer.options
        layout = ArrayLayout(before, options.kept, perturbed=options.noised)
        if layout.dimension != self.offer.dimension:
            raise Refused("the offer is for another number of entries than the arrays have")
        if sent := [place.name for place in layout.places if matches(place.name, kept(self._pins))]:
            raise Refused(f"the offer sends what this client keeps (keep): {', '.join(sent)}")
        return _Arrays(layout, before, layout.vector(before), partial(digest, before))

    @property
    def _answer_after_s(self) -> float | None:
        return answer_after_s(self.offer.options, self._pins)

    def _left_late(self) -> None:
        OwnLedger(_lasting(self._context, "account")).note([LATE])

    def _charge(self, revealed: AbstractSet[str]) -> None:
        """Charge the report to this client's own account, before the client's data is read.

        `revealed` are the names of the metrics that are sent in clear.
        """
        told = in_clear(revealed)
        if self.offer.options.weighs == "by_size":
            told.append(BY_SIZE)
        if self._protection.always_reports and self._answer_after_s is None:
            told.append(TIMING)
        try:
            cost = asked_spending(self._protection, self._words)
            OwnLedger(_lasting(self._context, "account")).charge(cost, limits(self._pins), told)
        except MessageInvalid as error:
            raise Refused(str(error)) from None

    def _half(
        self,
        kept: Message | None,
        model: Update = _NO_MODEL,
        examples: int = 1,
        origin: Origin = model_alone,
    ) -> ClientRound:
        half = self._protection.client_round(
            ClientContext(
                client=number_of(self._context.node_id),
                round=self._round,
                model=model,
                examples=examples,
                entropy=Secure(),
                answered=self._answered,
                origin=origin,
            )
        )
        if kept is not None:
            half.take_up(kept)
        return half

    def _kept(self, state: SealedState) -> Message | None:
        """Return the client's state from the round's previous phase, or None if there is none.

        Raises `Refused` if the settings that the server offers have changed since that phase.
        """
        kept = state.take(self._round)
        if kept is None:
            return None
        if kept[_TERMS] != self.offer.job(self._context.run_id):
            raise Refused("the offer is another than at the round's beginning")
        return {name: value for name, value in kept.items() if name != _TERMS}

    def _examples(self, content: RecordDict) -> int:
        """Return the number of examples in the app's reply, or 1 if clients have equal weights.

        Raises `ClientWithheld` if the reply states no valid number.
        """
        if self.offer.options.weighs == "equal":
            return 1
        key = self.offer.weight_key
        found = [record[key] for record in content.metric_records.values() if key in record]
        number = found[0] if len(found) == 1 else None
        if not isinstance(number, int | float) or number < 1 or not float(number).is_integer():
            raise ClientWithheld(
                f"the reply's metrics give {number!r} as {key}, and weighting = 'by_size' needs a "
                f"whole number in [1, inf)"
            )
        return int(number)


def _take_offer(message: FlowerMessage, known: AbstractSet[str]) -> tuple[Message, Offer]:
    """Remove what fedveil's server has added to the app's `message`, and return it.

    The result is the message of the protection's server side, and the server's `Offer`. `known` are
    the names of the user's own protections that the offer may contain.
    """
    content = message.content
    if MESSAGE not in content or OFFER not in content:
        raise MessageInvalid(
            "the message asks for the arrays in clear: the server runs no ProtectedStrategy"
        )
    message.content = RecordDict({k: v for k, v in content.items() if k not in (MESSAGE, OFFER)})
    words, offer = (from_records(RecordDict({MESSAGE: content[name]})) for name in (MESSAGE, OFFER))
    return words, Offer.read(offer, known)


def _only_arrays(content: RecordDict, where: str) -> ArrayRecord:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise ModelInvalid(
            f"the {where} holds {len(records)} ArrayRecords, one is protected and needed"
        )
    return records[0]


def _evaluated(
    message: FlowerMessage, context: Context, call_next: ClientAppCallable, pins: Sequence[Pin]
) -> MetricRecord:
    """Return the metrics that the client reveals in reply to an evaluation message or a query.

    `pins` are the client's own demands. The metrics are recorded in the client's account as sent in
    clear. A metric that the app does not return is NaN.
    """
    names = revealed_by(pins)
    seconds = answer_after_s(_take_time(message), pins)
    told = in_clear(names) + ([TIMING] if seconds is None else [])
    account = OwnLedger(_lasting(context, "account"))
    account.note(told)
    with FixedTime(seconds, lambda: account.note([LATE])) as time:
        try:
            shown = sent_metrics(ask_in_time(time, message, context, call_next), names)
        except (AppFailed, ClientWithheld):
            shown = MetricRecord()
        return completed(shown, names)


def _take_time(message: FlowerMessage) -> Options:
    content = message.content
    if TIME not in content:
        return Options()
    message.content = RecordDict({name: content[name] for name in content if name != TIME})
    try:
        return parse({ANSWER_AFTER_S: content.config_records[TIME][ANSWER_AFTER_S]})
    except (KeyError, JobError):
        raise Refused(f"{TIME} holds no {ANSWER_AFTER_S} in (0, 1e6]") from None


def _state_of(context: Context) -> SealedState:
    folder = StateFolder.for_keys(context.node_config.get(STATE_FOLDER))
    return SealedState(folder, _run_of(context), context.node_id, context.state)


def _lasting(context: Context, kind: str) -> Path:
    folder = StateFolder.for_accounts(context.node_config.get(STATE_FOLDER))
    return folder.file(_run_of(context), context.node_id, kind)


def _run_of(context: Context) -> bytes:
    return hashlib.sha256(b"fedveil flower app run" + encode({"run": context.run_id})).digest()
