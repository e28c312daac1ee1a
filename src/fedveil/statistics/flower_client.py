"""The ClientApp of a question: answers the messages of a round from the rows of one client.

Errors in the client's data, and the number of rows and values that are left out, appear only in the
client's own log. The client's account is charged before its rows are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedveil.base.message import encode, only_fields, take
from fedveil.entropy import Secure
from fedveil.errors import ClientWithheld, DeploymentError, MessageInvalid
from fedveil.flower.answered_rounds import AnsweredFile
from fedveil.flower.job.app_folder import own_roster
from fedveil.flower.job.member import NODE_KEYS
from fedveil.flower.job.signing_key_file import read_identity
from fedveil.flower.misspelt_keys import refuse_misspelt
from fedveil.flower.own_account import LIMIT_KEYS, OWN_DELTA, OwnLedger, count_report, own_limit
from fedveil.flower.own_file import number_in
from fedveil.flower.records import encoded_records, from_addressed_records
from fedveil.flower.sealed_state import STATE_FOLDER, SealedState, StateFolder
from fedveil.protections.always_answers import Reply, answer_trained, reason
from fedveil.protections.base import ClientContext, ClientRound, Protection, Update
from fedveil.secagg.phases import PHASES
from fedveil.settings.differences import differences
from fedveil.statistics.answer_folder import QUESTION
from fedveil.statistics.carriage import Carriage, Participants, digest, make_protection
from fedveil.statistics.clients import Clients, load
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import STEP_FIELDS, Schedule, Step
from fedveil.statistics.simulation import Contributions
from fedveil.statistics.tables import as_table

ERROR_CODE = 200
_KEYS = (*NODE_KEYS, *LIMIT_KEYS, "question")
_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Member:
    """The settings of one SuperNode (a client's machine), from its node configuration.

    `client` is the client's number. `data` names its rows: a file or package.module:function.
    Without `data`, the client takes part as client number `client` of the data that the question
    file names. `question` is the operator's copy of the question file, if any. `max_epsilon` is the
    largest epsilon that the client spends on this question (None: no limit), at a delta of at most
    `delta`. `keys` and `accounts` are folders for encryption keys and accounts. For signed
    messages, `identity` is the file with the client's private key, and `roster` the file with all
    clients' public keys.
    """

    client: int
    data: str | None
    question: Path | None
    max_epsilon: float | None
    delta: float
    keys: StateFolder
    accounts: StateFolder
    identity: Path | None
    roster: Path | None

    @classmethod
    def of(cls, config: Mapping[str, object], file: QuestionFile) -> Member:
        refuse_misspelt(config, _KEYS)
        number, most = config.get("client", config.get("partition-id")), file.clients or 0
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < most:
            raise DeploymentError(
                f"the node configuration says client = {number!r}, a whole number in [0, {most}) "
                "is needed: flower-supernode --node-config 'client=0'"
            )
        limit, delta = own_limit(config) or (None, OWN_DELTA)
        data = config.get("data")
        folder = config.get(STATE_FOLDER)
        return cls(
            client=number,
            data=None if data is None else str(data),
            question=_path(config, "question"),
            max_epsilon=limit,
            delta=delta,
            keys=StateFolder.for_keys(folder),
            accounts=StateFolder.for_accounts(folder),
            identity=_path(config, "identity"),
            roster=_path(config, "roster"),
        )

    def limits(self, file: QuestionFile) -> list[tuple[float, float]]:
        """Return the limits on this client's account, each as (epsilon, delta).

        There are up to two: the limit of the question file, and the client's own, `max_epsilon`.
        The server chooses the file's delta, and at a large delta almost any report has a small
        epsilon. So the client's own limit holds at the smaller of the file's delta and its own
        `delta`.
        """
        theirs, mine = (file.max_epsilon, file.delta), (self.max_epsilon, self.delta)
        named = theirs, (mine[0], min(theirs[1], mine[1]))
        return [(epsilon, delta) for epsilon, delta in named if epsilon is not None]

    def rows(self, file: QuestionFile) -> tuple[Clients, int]:
        """Return a table grouped by client, and the index of this SuperNode's client in it.

        With `data`, the table has only this client's rows, and the index is 0. Otherwise it has
        the rows of all clients in the data of the question file `file`.
        """
        if self.data is None:
            return load(file), self.client
        clients = load(file.with_(data=self.data, client=None))
        table, everything = clients.table, np.arange(len(clients.table))
        offsets = np.array([0, len(everything)])
        return Clients(as_table(table), everything, offsets, file.rows_of_a_client), 0


def _path(config: Mapping[str, object], key: str) -> Path | None:
    return None if config.get(key) is None else Path(str(config[key]))


def make_app(folder: Path) -> ClientApp:
    file = QuestionFile.load(folder / QUESTION)
    app = ClientApp()
    for action in ("report", *PHASES):
        app.train(action)(_guarded(lambda m, c: _answer(file, m, c)))
    app.query("introduce")(_guarded(lambda m, c: _introduce(file, c)))
    return app


def _guarded(handle: Callable[[Message, Context], bytes]) -> Callable[[Message, Context], Message]:
    """Return a function that replies to a message with the bytes that `handle` returns.

    If `handle` raises an error, the error is logged, and the reply is an error that says only
    "withheld".
    """

    def reply(message: Message, context: Context) -> Message:
        try:
            return Message(encoded_records(handle(message, context)), reply_to=message)
        except (ClientWithheld, MessageInvalid) as why:
            _log.warning("this client withholds its answer: %s", why)
        except Exception as error:
            _log.exception("this client cannot answer: %s", reason(error))
        return Message(Error(ERROR_CODE, "withheld"), reply_to=message)

    return reply


def _introduce(file: QuestionFile, context: Context) -> bytes:
    member = Member.of(context.node_config, file)
    _check_own(file, member)
    return encode({"client": member.client})


def _check_own(file: QuestionFile, member: Member) -> None:
    """Raise an error if the app's question file differs from the operator's copy in `member`.

    A client's own limit is held against the server, and for all rows of the client together. So
    without a copy, a client with such a limit accepts no question whose noise the server adds, and
    none whose epsilon is for one row.
    """
    if member.question is None:
        if member.max_epsilon is not None and file.unit == "row":
            raise DeploymentError(
                "max-epsilon of the node configuration is a limit for all rows of this client "
                "together, but the question has unit = row, so its epsilon is for one of them. A "
                "client that accepts this names its own copy of the question file: question="
            )
        if member.max_epsilon is not None and file.rests_on_server:
            raise DeploymentError(
                f"max-epsilon of the node configuration is held against the server, and under "
                f"{file.protection.name} the server itself adds the noise. A client that trusts it "
                "names its own copy of the question file: question="
            )
        return
    own = QuestionFile.load(member.question)
    if own.clients is None:
        raise DeploymentError(
            f"{member.question} does not state clients, on which each client's share of the noise "
            "rests: write their number there"
        )
    changed = differences(file.model_dump(), own.model_dump(), exact=True)
    if told := [f"{key} is {theirs}, and {mine} in the own copy" for key, theirs, mine in changed]:
        raise DeploymentError(f"the app asks something else than {member.question}: {told[0]}")


def _answer(file: QuestionFile, message: Message, context: Context) -> bytes:
    addressee, asked, common = from_addressed_records(message.content)
    only_fields(common, "opening", *STEP_FIELDS)
    step, opening = Step.of(common, file), take(common, "opening", bool)
    member = Member.of(context.node_config, file)
    if addressee != member.client:
        raise MessageInvalid("the message is for another client")
    _check_own(file, member)
    if file.randomness != "secure":
        raise ClientWithheld("randomness = 'seeded' protects nothing: use randomness = 'secure'")
    schedule = Schedule(file)
    if member.client not in schedule.cohort(step, file.clients or 0):
        raise MessageInvalid(f"this client takes no part in round {step.round}")
    layout = schedule.layout(step)
    rounds = 1 if file.local else schedule.rounds
    who = Participants(
        file.clients or 0,
        simulated=False,
        roster=own_roster(file.protection, member.roster, member.identity),
        identity=None if member.identity is None else read_identity(member.identity),
    )
    protection = make_protection(file, layout.dimension, rounds, who)
    state = SealedState(member.keys, digest(file), member.client, context.state)
    kept = state.take(step.round)
    answered = AnsweredFile(member.accounts.file(digest(file), member.client, "answered"))
    model, entropy = np.zeros(protection.dimension, np.float32), Secure()

    def half(examples: int) -> ClientRound:
        mine = protection.client_round(
            ClientContext(
                member.client, step.round, model, examples, entropy, answered, step.origin
            )
        )
        if kept is not None and not opening:
            mine.take_up(kept)
        return mine

    def update() -> tuple[Update, int]:
        clients, number = member.rows(file)
        made = Contributions(layout, clients, Carriage(protection), entropy)
        return made.of(number), 1

    first = half(1)
    if not first.wants_update(asked):
        reply = Reply(first, first.respond(asked, None))
    else:
        answered.check(step.round)
        _charge(file, member, protection, schedule)
        answered.begin(protection, step.round)
        reply = answer_trained(protection, half, lambda: half(1), asked, update)
        if reply.unusable is not None:
            _log.warning("an answer of zero is reported: %s", reason(reply.unusable))
    if left := reply.half.keep():
        state.put(step.round, left)
    return encode(reply.message)


def _charge(file: QuestionFile, member: Member, protection: Protection, schedule: Schedule) -> None:
    """Charge the client's own account for one more report, before its rows are read.

    `member` has the account and the client's own limit. The cost is for the fewest clients that a
    sum may have, because the client cannot know how many others will drop out. Raises an error if
    the report would exceed this limit, or that of the question file. Also raises one if the client
    has given reports of this file before it had a limit, because their cost is unknown.
    """
    own, limits = member.accounts, member.limits(file)
    reports = own.file(digest(file), member.client, "reports")
    account = OwnLedger(own.file(digest(file), member.client, "account"))
    spending = protection.spending(protection.initial_state())
    most = 1 if file.local else schedule.rounds
    if limits:
        account.begin(number_in(reports) or 0)
    count_report(reports, spending, most)
    if limits:
        account.charge(spending, limits)
