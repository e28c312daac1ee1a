"""The server's side: a strategy that runs protected rounds for the strategy that it wraps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedveil.base.array_digest import digest
from fedveil.base.validate import positive
from fedveil.errors import InvalidValue, LimitReached
from fedveil.flower.app.arrays import ArrayLayout, read
from fedveil.flower.app.carrier import AppCarrier
from fedveil.flower.app.clear_metrics import METRICS, Means, in_clear, length_of, revealed, usable
from fedveil.flower.app.field_names import ANSWER_AFTER_S, OFFER, TIME, node_of, number_of
from fedveil.flower.app.inner_strategy import check_inner
from fedveil.flower.app.offer import Offer, check
from fedveil.flower.app.options import Options, joined, parse
from fedveil.flower.app.round_record import RoundRecord
from fedveil.flower.app.saved_charges import Kept, KeptRounds
from fedveil.flower.records import MESSAGE, check_report, common_record
from fedveil.privacy.ledger import Ledger, project
from fedveil.privacy.loss import exactly
from fedveil.protections.advice import Cohort
from fedveil.protections.base import BY_SIZE, TIMING, Protection, RoundContext, Spending, State
from fedveil.rounds.loop import Outcome, drive
from fedveil.rounds.outcomes import ClientId

log = logging.getLogger("flwr.fedveil")

_WRAPPED = (
    "a strategy stands around ProtectedStrategy and begins its rounds: it is given no client's "
    "reply, so that Flower's differential privacy would clip nothing there; start the "
    "ProtectedStrategy itself, or give it wrapped=True where what is around it needs no replies"
)


class ProtectedStrategy(Strategy):
    """Runs the rounds of `strategy` under a protection.

    It sends the training messages of `strategy`, each with the terms of the round (`Offer`). It
    adds up the reports of the clients' `ProtectMod` as they arrive. A client's reply that is not
    such a report is refused and counted, and never averaged. At the end of the round, `strategy`
    receives one reply: the global arrays plus the protection's aggregate update. So `strategy` can
    be any strategy that averages the clients' arrays and continues from the average (FedAvg,
    FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi).

    `takes_averages`: set it to True if `strategy` overrides the aggregation and still works when it
    receives that one averaged reply. The default is False.

    `wrapped`: set it to True if another strategy wraps this one and starts the rounds. That outer
    strategy receives no replies, and must work without them. The default is False.

    `run_config`: the server app's `context.run_config`, whose keys that begin with "fedveil." are
    settings. Keyword arguments give the other settings (`Options`, and the protection's own
    parameters).

    `ledger_file`: the file in which the ledger is saved. If the server's process ends in mid-run, a
    new strategy with the same file continues with the earlier charges. Without a file, the charges
    start from zero again, also for the limit `max_epsilon`.

    During and after a run, `ledger` has every client's spent privacy, by Flower's number of the
    client. `rounds` has a record of every round, and `stopped` says why no further round was
    started.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        run_config: Mapping[str, Any] | None = None,
        takes_averages: bool = False,
        wrapped: bool = False,
        ledger_file: str | Path | None = None,
        **settings: Any,
    ) -> None:
        check_inner(strategy, takes_averages=takes_averages)
        self.strategy = strategy
        #: True if rounds may be started: inside `start`, which a wrapping strategy never calls.
        self._begun = wrapped or type(self).start is not ProtectedStrategy.start
        self.options: Options = parse(joined(run_config or {}, settings))
        check(self.options)
        self.rounds: list[RoundRecord] = []
        self.stopped: str | None = None
        adaptive = self.options.position.adapts(self.options.parameters)
        self.ledger = Ledger(adaptive=adaptive)
        self.ledger.note_in_clear(in_clear(self.options.revealed))
        if self.options.weighs == "by_size":
            self.ledger.note_in_clear([BY_SIZE])
        if self.options.noised and self.options.answer_after_s is None:
            self.ledger.note_in_clear([TIMING])
        self._state: State | None = None
        #: Rounds that an earlier process has started.
        self._earlier = 0
        self._kept = None if ledger_file is None else KeptRounds(ledger_file, self._terms)
        if self._kept is not None and (kept := self._kept.read()) is not None:
            self._earlier, self._state = kept.rounds, kept.state
            kept.ledger.note_in_clear(self.ledger.in_clear)
            self.ledger = kept.ledger
        self._timeout_s = 3600.0
        self._averaged: Averaged | None = None

    @property
    def weight_key(self) -> str:
        """The name of the metric by which `strategy` weights its clients."""
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    @property
    def _terms(self) -> str:
        """A text that describes the protection. A saved ledger with another text is refused."""
        parameters = self.options.parameters.model_dump(exclude_none=True)
        said = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        return f"{self.options.protection} ({said}; clients count {self.options.weighs})"

    def summary(self) -> None:
        log.info("\t├──> Protection: %s", self._terms)
        for advise in self.options.position.advice:
            if (sentence := advise(self.options.parameters, Cohort(None, None))) is not None:
                log.warning("fedveil: %s", sentence)
        log.info("\t│\t└── In clear: %s", self.options.reveal or "nothing")
        if self.options.max_epsilon is not None and self._kept is None:
            log.warning(
                "fedveil: max_epsilon counts from nothing whenever this strategy is made again: "
                "ledger_file names a file that keeps what was charged"
            )
        self.strategy.summary()

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        *args: Any, **kwargs: Any,
    ) -> Result:  # fmt: skip
        """Run `num_rounds` rounds, beginning with `initial_arrays`. `grid` is Flower's connection.

        Each exchange with the clients lasts at most `timeout` seconds. All arguments are those of
        Flower's `Strategy.start`.
        """
        self._timeout_s = positive("timeout", timeout)
        begun, self._begun = self._begun, True
        try:
            result = super().start(grid, initial_arrays, num_rounds, timeout, *args, **kwargs)
        finally:
            self._begun = begun
        self._log_ledger()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run the whole training exchange. Returns no messages, because all are sent already.

        Another strategy that wraps this one may call this method only if this strategy was created
        with `wrapped=True`. Otherwise the call raises `InvalidValue`.
        """
        if not self._begun:
            raise InvalidValue(_WRAPPED)
        self._averaged = None
        if self.stopped is not None:
            return []
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if messages:
            self._play(server_round, arrays, messages, grid)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the inner strategy's new arrays and metrics.

        The inner strategy gets only one reply: the global arrays plus the aggregate update. Both
        results are None if the round has no aggregate.
        """
        if self._averaged is None:
            return None, None
        averaged, self._averaged = self._averaged, None
        arrays, metrics = self.strategy.aggregate_train(server_round, [averaged.reply])
        if arrays is not None:
            for name, before in averaged.before.items():
                if name in averaged.kept:  # averaging turns integers into floats
                    arrays[name] = before
                elif arrays[name].dtype != before.dtype:  # and, in NumPy 1, widens 0-d arrays
                    arrays[name] = Array(arrays[name].numpy().astype(before.dtype))
        return arrays, metrics or None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's evaluation messages.

        Returns an empty list if clients may send no metric except their weight, according to the
        setting `reveal`. A client answers these messages after the same fixed time as a request for
        a report, if the setting `answer_after_s` states one.
        """
        if not self.options.revealed - {self.weight_key}:
            if server_round == 1:
                log.info("fedveil: no evaluation by clients, since `reveal` names no metric")
            return []
        messages = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        if self.options.answer_after_s is not None:
            for message in messages:
                message.content[TIME] = ConfigRecord({ANSWER_AFTER_S: self.options.answer_after_s})
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the inner strategy's result for the metrics that clients revealed.

        Clients have equal weights, except if all of them reveal their weight. A metric is ignored
        if a reply lacks it, or if its length differs between replies.
        """
        shown = []
        for reply in replies:
            if reply.has_error():
                continue
            metrics = usable(revealed(reply.content, self.options.revealed)[0], self.weight_key)
            if set(metrics) - {self.weight_key}:
                shown.append((reply, metrics))
        forms = [{(n, length_of(v)) for n, v in metrics.items()} for _, metrics in shown]
        common = {name for name, _ in set.intersection(*forms)} if forms else set()
        for reply, metrics in shown:
            kept = {name: value for name, value in metrics.items() if name in common}
            reply.content = RecordDict({METRICS: MetricRecord({self.weight_key: 1, **kept})})
        return self.strategy.aggregate_evaluate(server_round, [reply for reply, _ in shown])

    def _play(
        self, server_round: int, arrays: ArrayRecord, messages: list[Message], grid: Grid
    ) -> None:
        values = read(arrays)
        _check_messages(messages, arrays)
        layout = ArrayLayout(values, self.options.kept, perturbed=self.options.noised)
        offer = Offer(self.options, self.weight_key, layout.dimension, len(messages))
        record = RoundRecord(server_round, len(messages))
        if not self._reachable(offer, record):
            return
        protection = offer.protection(grid.run.run_id)
        check_report(protection)
        state = protection.initial_state() if self._state is None else self._state
        protection.check_state(state)
        invited = {number_of(m.metadata.dst_node_id): m for m in messages}
        model, origin = layout.vector(values), partial(digest, values)
        context = RoundContext(sorted(invited), self._number, model, state, origin)
        spending = protection.spending(state)
        if self._number == 1 and self.options.noised:
            self._warn_of_thin(spending, protection)
        try:
            self._check_limit(spending, context)
            server = protection.server_round(context)
        except LimitReached as limit:
            self.stopped = str(limit)
            log.warning("fedveil: no further round is begun: %s", limit)
            return
        carrier = AppCarrier(
            grid,
            invited,
            common_record(offer.words()),
            self.options.revealed,
            protection.trains,
            min(self._timeout_s, protection.deadline_s or self._timeout_s),
        )
        opening = dict.fromkeys(invited, server.opening())
        closed = self.ledger
        self.ledger = closed.copy()  # charges all that are asked, in case this process is killed

        def charge(ledger: Ledger, cost: Sequence[Spending], clients: Iterable[ClientId]) -> None:
            nodes = sorted(map(node_of, clients))
            ledger.record_many(cost, round=context.round, clients=nodes)

        def begun(clients: Iterable[ClientId]) -> None:
            charge(self.ledger, spending, clients)
            self._write(self._number, protection.cut_off(state, closed.charges(spending)))

        outcome = drive(server, carrier, opening, protection.trains, begun)
        found = outcome.result(
            lambda: (made := server.aggregate(), layout.moved(arrays, made.update))
        )
        reports = None if found is None else found[0].reports
        limited = self.options.max_epsilon is not None
        paid = protection.paid(state, reports, limited=limited)
        charge(closed, paid, outcome.charged)
        self.ledger = closed
        self._note(record, outcome, carrier)
        if found is not None:
            aggregate, moved = found
            record.reports, self._state = aggregate.reports, aggregate.state
            content = self._content(moved, record)
            self._averaged = Averaged(Message(content, reply_to=messages[0]), arrays, layout.kept)
        elif outcome.charged:
            self._state = protection.cut_off(state, closed.charges(spending))
        self._write(self._number, self._state)
        self._keep(record)

    def _write(self, rounds: int, state: State | None) -> None:
        if self._kept is not None:
            self._kept.write(Kept(rounds, self.ledger, state))

    def _note(self, record: RoundRecord, outcome: Outcome, carrier: AppCarrier) -> None:
        record.rejected, record.withheld = outcome.rejected, outcome.withheld
        record.failed, record.dropped = outcome.failed, len(outcome.dropped)
        record.bytes_up = outcome.bytes_up
        if outcome.void is not None:
            record.void = str(outcome.void)
            return
        means = Means(self.weight_key)
        for client in sorted(outcome.reported):
            means.add(carrier.metrics[client])
        record.metrics = means.record()

    @property
    def _number(self) -> int:
        """The number of the next round. Numbers continue if `start` is called again."""
        return self._earlier + len(self.rounds) + 1

    def _keep(self, record: RoundRecord) -> None:
        self.rounds.append(record)
        log.log(logging.WARNING if record.void else logging.INFO, "fedveil: %s", record)

    def _reachable(self, offer: Offer, record: RoundRecord) -> bool:
        """Return True if the protection can run a round with the number of clients in `offer`.

        If not, writes the reason to `record` and returns False. If this process has not used any
        report in an earlier round, raises `InvalidValue` with the reason instead.
        """
        cohort = Cohort(offer.clients, offer.clients)
        broken = [rule(self.options.parameters, cohort) for rule in self.options.position.rules]
        reason = next(filter(None, broken), None)
        if reason is None:
            return True
        if not any(earlier.reports for earlier in self.rounds):
            raise InvalidValue(reason)
        record.void = f"the round is void: {reason}"
        self._keep(record)
        return False

    def _check_limit(self, spending: Sequence[Spending], context: RoundContext) -> None:
        limit, delta = self.options.max_epsilon, self.options.delta
        if limit is None:
            return
        nodes = sorted(map(node_of, context.cohort))
        ahead = self.ledger.preview(spending, round=context.round, clients=nodes, delta=delta)
        figure = ahead["run_most_drawn"]
        if figure.epsilon > limit:
            raise LimitReached(
                f"the next round would bring the most-drawn client to {figure}, above "
                f"max_epsilon = {exactly(limit)}"
            )

    def _warn_of_thin(self, spending: Sequence[Spending], protection: Protection) -> None:
        figure = project(spending, 1, self.options.delta)["per_round"]
        if figure is None or not figure.thin:
            return
        key, more = protection.cost_key(protection.settings), "more noise promises more"
        if key is not None:
            more = f"a {'larger' if key.falls else 'smaller'} {key.parameter} promises more"
        log.warning("fedveil: a single report is promised %s: %s", figure, more)

    def _content(self, arrays: ArrayRecord, record: RoundRecord) -> RecordDict:
        metrics = MetricRecord({self.weight_key: record.reports, **record.metrics})
        key = str(getattr(self.strategy, "arrayrecord_key", "arrays"))
        return RecordDict({key: arrays, METRICS: metrics})

    def _log_ledger(self) -> None:
        figures = self.ledger.figures(self.options.delta)
        for name in ("per_round", "run_most_drawn"):
            log.info("fedveil: %s: %s", name.replace("_", " "), figures[name])
        for what in self.ledger.in_clear:
            log.info("fedveil: no finite epsilon: %s", what)


class Averaged(NamedTuple):
    """The averaged reply for the inner strategy, and the arrays `before` the round.

    `kept` are the names of the arrays that stay with the clients.
    """

    reply: Message
    before: ArrayRecord
    kept: list[str]


def _check_messages(messages: Sequence[Message], arrays: ArrayRecord) -> None:
    nodes = [message.metadata.dst_node_id for message in messages]
    if len(set(nodes)) < len(nodes):
        raise InvalidValue("the strategy asks a client twice in one round, which has one report")
    for message in messages:
        records = list(message.content.array_records.values())
        if len(records) != 1 or not (records[0] is arrays or records[0] == arrays):
            raise InvalidValue(
                "the strategy does not send every client the global arrays and no others: an "
                "update against anything else has no meaning for the server"
            )
        if {MESSAGE, OFFER} & set(message.content):
            raise InvalidValue(f"the strategy sends a record {MESSAGE!r} of its own")
