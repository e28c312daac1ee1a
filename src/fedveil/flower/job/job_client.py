"""The ClientApp of a deployed job. It answers one message of a round at a time.

Flower starts a process for each message. A reply contains only the answer of the protection's
client half, or a fixed word in place of an answer. Reasons, warnings, metrics and tracebacks depend
on the client's data, so they stay in this machine's log. Other data is sent only if the job says
that clients reveal it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedveil.base.message import Message as Words
from fedveil.base.message import Value, encode, only_fields, take
from fedveil.base.own_code import place_of
from fedveil.engine.job_protection import Deployed, job_digest, make_protection, report_entropy
from fedveil.errors import (
    AnsweredBefore,
    ClientWithheld,
    DeploymentError,
    FedveilError,
    MessageInvalid,
)
from fedveil.federated.job import Job
from fedveil.flower.answered_rounds import AnsweredFile
from fedveil.flower.fixed_time import FixedTime
from fedveil.flower.job import app_folder
from fedveil.flower.job.example_shape import FORM_FIELDS
from fedveil.flower.job.saved_states import KEPT_FIELD, SUMMED_FIELD, kept_states
from fedveil.flower.job.signing_key_file import read_identity
from fedveil.flower.own_account import OwnLedger, asked_spending, count_report, total_of
from fedveil.flower.records import encoded_records, from_addressed_records
from fedveil.flower.sealed_state import STATE_FOLDER, SealedState, StateFolder
from fedveil.protections.always_answers import Reply, answer_trained, reason
from fedveil.protections.base import ClientContext, ClientRound, Protection, Update, origin_of
from fedveil.protections.catalog import find
from fedveil.rounds.outcomes import ClientId
from fedveil.settings.differences import differences

#: The server's queries: say which client you are, and forget a round that ended without you.
INTRODUCE, FORGET = "introduce", "forget"
#: Reasons in this app's error replies. Any other is Flower's own.
WITHHELD, FAILED, STRANGER = "withheld", "failed", "another client"
#: The reason that the client has already sent its update of that round.
ANSWERED = "answered before"
ERROR_CODE = 200

#: Fields of a round's messages: whether it is the round's first, its number, and the number of
#: weights. A training message adds the weights and their shape.
ROUND_FIELDS = ("opening", "round", "dimension")
TRAINING_FIELDS = ("weights", "example_shape", "classes", "fingerprint")

_log = logging.getLogger("flwr")


class Owner(Protocol):
    """The demands of the site's owner. They hold for every job, and no job can remove them.

    With an owner, an unusable update is reported as an update of zero under every protection. A
    missing report would reveal something that the owner has not permitted.
    """

    @property
    def answer_after_s(self) -> float | None:
        """Return the least time from a request to its answer, in seconds, or None."""

    def charge(self, protection: Protection, asked: Words) -> None:
        """Charge the report that the message `asked` requests. Raises if it may not be sent."""


class RoundTraining(Protocol):
    """A client's training in one round."""

    model: Update

    def update(self, client: ClientId, function: str | None) -> tuple[Update, int]:
        """Return the client's update and number of examples. Raises any error of training."""

    @property
    def reported(self) -> Callable[[Protection, Words], None]:
        """Save what a client keeps, once its report is made."""


@dataclass(frozen=True)
class Member:
    """This SuperNode's identity, from its node configuration.

    `client` is its number in the job. `data` names the user's function that returns its examples.
    Without it, the client has its part of the job's data set. `seeded` is True if its reports use
    the job's seed. `keys` and `accounts` are the folders of its keys and of its own accounts.
    `identity` is the file with its private key, and `roster` the file with every client's public
    key. `job` is the operator's own copy of the job. `owner` holds the demands of the site's owner,
    if the site has a policy. `training` makes a round's training elsewhere than in this process,
    from the server's message to all clients.
    """

    client: ClientId
    data: str | None
    seeded: bool
    keys: StateFolder
    accounts: StateFolder
    identity: Path | None
    roster: Path | None
    job: Path | None
    owner: Owner | None = None
    training: Callable[[Job, Words], RoundTraining] | None = None

    @classmethod
    def of(cls, config: Mapping[str, object], job: Job) -> Member:
        """Read the member from a node configuration. `partition-id` may replace `client`."""
        number = config.get("client", config.get("partition-id"))
        clients = job.clients.number or 0
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < clients:
            raise DeploymentError(
                f"the node configuration says client = {number!r}, a whole number in "
                f"[0, {clients}) is needed: flower-supernode --node-config 'client=0'"
            )
        folder = _text(config, STATE_FOLDER)
        seeded = config.get("seeded", False)
        if not isinstance(seeded, bool):
            raise DeploymentError(
                f"the node configuration says seeded = {seeded!r}, true or false is needed"
            )
        return cls(
            client=number,
            data=_text(config, "data"),
            seeded=seeded,
            keys=StateFolder.for_keys(folder),
            accounts=StateFolder.for_accounts(folder),
            identity=_path(config, "identity"),
            roster=_path(config, "roster"),
            job=_path(config, "job"),
        )


def make_app(folder: Path) -> ClientApp:
    job = app_folder.read_job(folder)
    app = ClientApp()
    handle = _guarded(lambda m, c: answer(job, Member.of(c.node_config, job), m, c))
    for action in find(job.protection.name).phases:
        app.train(action)(handle)
    app.query(INTRODUCE)(handle)
    app.query(FORGET)(handle)
    return app


def answer(job: Job, member: Member, message: Message, context: Context) -> bytes:
    """Return the member's encoded answer to a message of the job.

    Raises an error if there is no answer. The caller must not send the error's text.
    """
    match message.metadata.message_type.split("."):
        case ["query", kind] if kind == INTRODUCE:
            return _introduce(job, member)
        case ["query", kind] if kind == FORGET:
            SealedState(member.keys, job_digest(job), member.client, context.state).erase()
            return encode({})
        case ["train", phase] if phase in find(job.protection.name).phases:
            return _answer(job, member, message, context)
    raise MessageInvalid("a message of a kind that no job sends")


class _Misaddressed(Exception):
    """Raised if the message is for another client: the server's mapping of nodes is outdated."""


def _guarded(handle: Callable[[Message, Context], bytes]) -> Callable[[Message, Context], Message]:
    """Wrap `handle` to send a fixed word for an error. Flower would send the error's text."""

    def reply(message: Message, context: Context) -> Message:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                answer = handle(message, context)
            for warning in caught:
                _log.warning("%s: %s", warning.category.__name__, warning.message)
            return Message(encoded_records(answer), reply_to=message)
        except _Misaddressed:
            return Message(Error(ERROR_CODE, STRANGER), reply_to=message)
        except AnsweredBefore as reason:
            _log.warning("%s", reason)
            return Message(Error(ERROR_CODE, ANSWERED), reply_to=message)
        except (ClientWithheld, MessageInvalid) as reason:
            _log.warning("this client withholds its answer: %s", reason)
            return Message(Error(ERROR_CODE, WITHHELD), reply_to=message)
        except Exception as error:
            _log.exception("this client cannot answer: %s", _told(error))
            return Message(Error(ERROR_CODE, FAILED), reply_to=message)

    return reply


def _introduce(job: Job, member: Member) -> bytes:
    _check_own_job(job, member)
    answer: dict[str, Value] = {"client": member.client}
    if "examples" in job.deployment.reveal:
        from fedveil.flower.job.client_training import example_count

        answer["examples"] = example_count(job, member.client, member.data)
    return encode(answer)


def _check_own_job(job: Job, member: Member) -> None:
    """Raise an error if the app's job differs from the operator's own copy of the job.

    The app comes from the server. Every guarantee depends on its job: on the protection, the
    threshold, the number of rounds and more.
    """
    if member.job is None:
        return
    own = Job.load(member.job)
    changed = differences(job.model_dump(), own.model_dump())
    if told := [f"{key} is {theirs}, and {mine} in the own copy" for key, theirs, mine in changed]:
        raise DeploymentError(
            f"the app's job is not the one in {member.job}, which this node's configuration names: "
            f"{'; '.join(told)}"
        )


def _answer(job: Job, member: Member, message: Message, context: Context) -> bytes:
    addressee, asked, common = from_addressed_records(message.content)
    trains = "weights" in common
    kept_fields = [KEPT_FIELD, SUMMED_FIELD] if job.keeps_state else []
    form_fields = FORM_FIELDS if job.privacy.unit == "example" else ()
    more = [*TRAINING_FIELDS, *form_fields, *kept_fields] if trains else ()
    only_fields(common, *ROUND_FIELDS, *more)
    round, dimension = take(common, "round", int), take(common, "dimension", int)
    opening = take(common, "opening", bool)
    if not (1 <= round <= job.rounds and dimension >= 1):
        raise MessageInvalid(f"round = {round} is outside [1, {job.rounds}]")
    if addressee != member.client:
        raise _Misaddressed
    _check_own_job(job, member)
    state = SealedState(member.keys, job_digest(job), member.client, context.state)
    kept = state.take(round)
    deployed = Deployed(
        roster=app_folder.own_roster(job.protection, member.roster, member.identity),
        identity=None if member.identity is None else read_identity(member.identity),
    )
    protection = make_protection(job, job.training.report_length(dimension), deployed)

    answered_file = member.accounts.file(job_digest(job), member.client, "answered")

    def half(examples: int, sent: Update) -> ClientRound:
        mine = protection.client_round(
            ClientContext(
                client=member.client,
                round=round,
                model=sent[: protection.dimension],
                examples=examples,
                entropy=report_entropy(job).stream("report", round, member.client),
                answered=AnsweredFile(answered_file),
                origin=origin_of(sent, protection.dimension),
            )
        )
        if kept is not None and not opening:
            mine.take_up(kept)
        return mine

    with FixedTime(_answer_after_s(job, member) if trains else None) as time:
        if trains:
            answered = _trained(job, member, protection, asked, common, half, time)
        else:  # no update needed: no model, no examples
            mine = half(0, np.broadcast_to(np.float32(0), dimension))
            answered = Reply(mine, mine.respond(asked, None))
        left = answered.half.keep()
        if left:
            state.put(round, left)
        return encode(answered.message)


def _trained(
    job: Job,
    member: Member,
    protection: Protection,
    asked: Words,
    common: Words,
    half: Callable[[int, Update], ClientRound],
    time: FixedTime,
) -> Reply:
    """Return the answer in the phase in which clients train.

    The report is charged before any example is read. `asked` is the message to this client,
    `common` the message to all. `half` makes the protection's client half. `time` fixes when the
    answer leaves.
    """
    if job.privacy.randomness == "seeded" and not member.seeded:
        raise ClientWithheld(
            "the job's reports draw from its seed, which protects nothing: a client sends them "
            "only if its own node configuration says seeded=true, which is for tests"
        )
    training = _training(job, member, common)
    _charge(job, member, protection, asked)
    if member.owner is not None:
        member.owner.charge(protection, asked)
    answered = answer_trained(
        protection,
        lambda examples: half(examples, training.model),
        lambda: half(1, training.model),
        asked,
        lambda: time.trained(lambda: training.update(member.client, member.data)),
        always=member.owner is not None,
    )
    if answered.unusable is not None:
        foreign = not isinstance(answered.unusable, FedveilError)
        _log.warning(
            "an update of zero is reported: %s",
            _told(answered.unusable),
            exc_info=answered.unusable if foreign else None,
        )
    else:
        training.reported(protection, asked)
    return answered


def _training(job: Job, member: Member, common: Words) -> RoundTraining:
    if member.training is not None:
        return member.training(job, common)
    from fedveil.flower.job.client_training import Training

    return Training(job, common, partial(kept_states, job, common, member.accounts))


def _answer_after_s(job: Job, member: Member) -> float | None:
    """Return the longer of the delays that the job and the site's owner demand, or None."""
    owners = None if member.owner is None else member.owner.answer_after_s
    said = (job.deployment.answer_after_s, owners)
    return max((seconds for seconds in said if seconds is not None), default=None)


def _told(error: BaseException) -> str:
    place = place_of(error)
    return reason(error) if place is None else f"{reason(error)} ({place})"


def _charge(job: Job, member: Member, protection: Protection, asked: Words) -> None:
    """Charge a report to this client's account. Raises an error if that would exceed a limit.

    The client enforces the job's limits itself, because a lying server would not end its run at
    them.
    """
    if job.privacy.randomness != "secure":  # seeded draws are only for tests
        return
    file, limits = partial(member.accounts.file, job_digest(job), member.client), []
    spending = protection.spending(protection.initial_state())
    count_report(file("reports"), spending, job.rounds + job.deployment.repeats)
    if job.privacy.max_epsilon is not None:
        limits.append((job.privacy.max_epsilon, job.privacy.delta))
    limits += total_of(job.protection.position, protection.settings)
    if limits:
        OwnLedger(file("account")).charge(asked_spending(protection, asked), limits)


def _text(config: Mapping[str, object], key: str) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise DeploymentError(f"the node configuration says {key} = {value!r}, text is needed")
    return value


def _path(config: Mapping[str, object], key: str) -> Path | None:
    value = _text(config, key)
    return None if value is None else Path(value)
