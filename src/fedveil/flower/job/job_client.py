"""The ClientApp of a deployed job. It answers one message of a round at a time.

A reply contains only the answer of the client's side of the protection, or a fixed word in place of
an answer. Reasons, warnings, metrics and tracebacks depend on the client's data, so they stay in
this machine's log. Other data is sent only if the job says that clients reveal it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedveil.base.message import MOST_CARRIED, encode, only_fields, take, take_array
from fedveil.base.message import Message as Words
from fedveil.base.own_code import place_of
from fedveil.engine.job_protection import (
    REVEALED,
    Deployed,
    job_digest,
    make_protection,
    report_entropy,
)
from fedveil.errors import (
    AnsweredBefore,
    ClientWithheld,
    DeploymentError,
    FedveilError,
    MessageInvalid,
)
from fedveil.federated.job import Job
from fedveil.flower.answered_rounds import AnsweredFile, check_due
from fedveil.flower.fixed_time import FixedTime
from fedveil.flower.job import app_folder
from fedveil.flower.job.example_shape import FORM_FIELDS
from fedveil.flower.job.member import Member, RoundTraining, members_of
from fedveil.flower.job.own_charges import charge, left_late
from fedveil.flower.job.saved_states import KEPT_FIELD, SUMMED_FIELD, kept_states, told_run
from fedveil.flower.job.signing_key_file import read_identity
from fedveil.flower.records import (
    Addressed,
    encoded_records,
    from_addressed_records,
    from_bundled_records,
    named_clients,
)
from fedveil.flower.sealed_state import SealedState
from fedveil.protections.always_answers import Reply, answer_trained, reason
from fedveil.protections.base import ClientContext, ClientRound, Protection, Update
from fedveil.protections.catalog import POSITIONS, find
from fedveil.protections.origin import Origin, VectorDigest, model_alone, origin_of
from fedveil.protections.own_errors import own_errors
from fedveil.rounds.outcomes import LONGEST_LOGGED, short
from fedveil.settings.differences import differences

if TYPE_CHECKING:
    from fedveil.engine.executors.client_side import ClientsData

#: The server's queries: say which client you are, and forget a round that ended without you.
INTRODUCE, FORGET = "introduce", "forget"
#: Reasons in this app's error replies. Any other is Flower's own.
WITHHELD, FAILED, STRANGER = "withheld", "failed", "another client"
#: The reason that the client has already trained in that round.
ANSWERED = "answered before"
WORDS = (WITHHELD, FAILED, STRANGER, ANSWERED)
ERROR_CODE = 200

#: Fields of a round's messages: whether the message opens the round, the round's number, and the
#: number of weights. A training message adds the weights and their shape.
ROUND_FIELDS = ("opening", "round", "dimension")
TRAINING_FIELDS = ("weights", "example_shape", "classes", "fingerprint")

#: A message carries no more float32 weights.
_MOST_WEIGHTS = MOST_CARRIED // 4

_log = logging.getLogger("flwr")


def make_app(folder: Path) -> ClientApp:
    job = app_folder.read_job(folder)
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        said = _guarded(lambda: _node_answer(job, message, context))
        content = Error(ERROR_CODE, said) if isinstance(said, str) else encoded_records(said)
        return Message(content, reply_to=message)

    for action in find(job.protection.name).phases:
        app.train(action)(handle)
    app.query(INTRODUCE)(handle)
    app.query(FORGET)(handle)
    return app


def answer(job: Job, member: Member, message: Message, context: Context) -> bytes:
    """Return the encoded answer of the client `member` to a message of the job.

    Raises an error if there is no answer. The caller must not send the error's text.
    """
    match message.metadata.message_type.split("."):
        case ["query", kind] if kind == INTRODUCE:
            return _introduce(OwnFiles(job), [member])
        case ["query", kind] if kind == FORGET:
            SealedState(member.keys, job_digest(job), member.client, context.state).erase()
            return encode({})
        case ["train", phase] if phase in find(job.protection.name).phases:
            return _answer(OwnFiles(job), member, from_addressed_records(message.content), context)
    raise MessageInvalid("a message of a kind that no job sends")


def _node_answer(job: Job, message: Message, context: Context) -> bytes:
    """Return a node's encoded answer, for all of its clients together, to a message of the job."""
    members, files = members_of(context.node_config, job), OwnFiles(job)
    if len(members) == 1:
        (member,) = members.values()
        return answer(job, member, message, context)
    match message.metadata.message_type.split("."):
        case ["query", kind] if kind == INTRODUCE:
            return _introduce(files, list(members.values()))
        case ["query", kind] if kind == FORGET:
            for client in members.keys() & set(named_clients(message.content)):
                SealedState(members[client].keys, job_digest(job), client, context.state).erase()
            return encode({})

    # All parts are read before the first is answered and charged.
    parts = list(from_bundled_records(message.content))
    return encode({str(p[0]): _part(files, members.get(p[0]), p, context) for p in parts})


def _part(files: OwnFiles, member: Member | None, part: Addressed, context: Context) -> bytes | str:
    return STRANGER if member is None else _guarded(lambda: _answer(files, member, part, context))


class OwnFiles:
    """Computes what several clients of a node need, such as the content of files, at most once.

    A new object is made for each message of the server.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.own_job = cache(Job.load)
        self.roster = cache(app_folder.read_roster)
        self.data = cache(self._data)
        #: Clients of one message have the same weights, which are digested once.
        self.digest_of = VectorDigest()

    def origin(self, common: Words, fields: Collection[str], dimension: int) -> Origin:
        """Return a function that digests the `fields` with which the server starts a training."""
        told = {name: common[name] for name in fields if name not in ("weights", SUMMED_FIELD)}
        weights = take_array(common, "weights", "float32", (None,))
        return partial(origin_of, weights, dimension, told, self.digest_of)

    def _data(self) -> ClientsData:
        from fedveil.flower.job.client_training import shared_data

        return shared_data(self.job)


class _Misaddressed(Exception):
    """Raised for a message to another client: the server's map of clients to nodes is outdated."""


def _guarded(answer: Callable[[], bytes]) -> bytes | str:
    """Return `answer()` or, if it raises an error, a fixed word.

    The error's text may contain data, so it is only logged.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said = answer()
        for warning in caught:
            _log.warning("%s: %s", warning.category.__name__, warning.message)
        return said
    except _Misaddressed:
        return STRANGER
    except AnsweredBefore as reason:
        _log.warning("%s", reason)
        return ANSWERED
    except (ClientWithheld, MessageInvalid) as reason:
        _log.warning("this client withholds its answer: %s", short(str(reason), LONGEST_LOGGED))
        return WITHHELD
    except FedveilError as error:
        _log.error("this client cannot answer: %s", short(str(error), LONGEST_LOGGED))
        return FAILED
    except Exception as error:
        _log.exception("this client cannot answer: %s", _told(error))
        return FAILED


def _introduce(files: OwnFiles, members: Sequence[Member]) -> bytes:
    """Return an encoded message with the ids of the clients `members` of this node.

    If the job says that clients reveal how many examples they have, the message has these counts
    too. `files` loads the examples.
    """
    clients, counts = [member.client for member in members], list[int]()
    for member in members:
        _check_own_job(files, member)
        if "examples" in files.job.deployment.reveal:
            from fedveil.flower.job.client_training import example_count

            if member.owner is not None:
                member.owner.disclose(REVEALED)
            counts.append(example_count(files.job, member.client, member.data, files.data))
    said = {"client": clients} | ({"examples": counts} if counts else {})
    return encode({k: v[0] if len(v) == 1 else np.array(v, np.int64) for k, v in said.items()})


def _check_own_job(files: OwnFiles, member: Member) -> None:
    """Raise an error if the app's job, which the server made, differs from the operator's copy.

    `files` loads the app's job, and `member.job` names the operator's copy. Without a copy, nothing
    is checked.
    """
    if member.job is None:
        return
    own = files.own_job(member.job)
    changed = differences(files.job.model_dump(), own.model_dump(), exact=True)
    if told := [f"{key} is {theirs}, and {mine} in the own copy" for key, theirs, mine in changed]:
        raise DeploymentError(
            f"the app's job is not the one in {member.job}, which this node's configuration names: "
            f"{'; '.join(told)}"
        )


def _answer(files: OwnFiles, member: Member, part: Addressed, context: Context) -> bytes:
    job, (addressee, asked, common) = files.job, part
    trains = "weights" in common
    kept_fields = [KEPT_FIELD, SUMMED_FIELD] if job.keeps_state else []
    form_fields = FORM_FIELDS if job.privacy.unit == "example" else ()
    more = [*TRAINING_FIELDS, *form_fields, *kept_fields] if trains else ()
    only_fields(common, *ROUND_FIELDS, *more)
    round, dimension, opening = _asked(job, common)
    if trains and job.keeps_state:
        told_run(common)
    if addressee != member.client:
        raise _Misaddressed
    _check_own_job(files, member)
    state = SealedState(member.keys, job_digest(job), member.client, context.state)
    kept = state.take(round)
    deployed = Deployed(
        roster=app_folder.own_roster(job.protection, member.roster, member.identity, files.roster),
        identity=None if member.identity is None else read_identity(member.identity),
    )
    protection = make_protection(job, job.training.report_length(dimension), deployed)

    origin = files.origin(common, more, protection.dimension) if trains else model_alone
    last = AnsweredFile(member.accounts.file(job_digest(job), member.client, "answered"))

    nothing = np.broadcast_to(np.float32(0), dimension)

    def half(examples: int, sent: Update) -> ClientRound:
        mine = protection.client_round(
            ClientContext(
                client=member.client,
                round=round,
                model=sent[: protection.dimension],
                examples=examples,
                entropy=report_entropy(job).stream("report", round, member.client),
                answered=last,
                origin=origin,
            )
        )
        if kept is not None and not opening:
            mine.take_up(kept)
        return mine

    if trains:
        check_due(last, protection, lambda: half(0, nothing), round, asked)
    after_s = _answer_after_s(job, member) if trains else None
    # Before the time starts: importing and compiling would use up the time of a short training, and
    # a report of an all-zero update would leave.
    training = _training(files, member, common) if trains else None
    if training is not None and after_s is not None:
        _compile(training, protection)
    with FixedTime(after_s, partial(left_late, job, member)) as time:
        if training is not None:
            begin = partial(last.begin, protection, round)
            answered = _trained(job, member, protection, asked, training, half, time, begin)
        else:  # no update needed: no model, no examples
            with own_errors(protection):
                mine = half(0, nothing)
                answered = Reply(mine, mine.respond(asked, None))
        with own_errors(protection):
            left = answered.half.keep()
        if left:
            state.put(round, left)
        return encode(answered.message)


def _asked(job: Job, common: Words) -> tuple[int, int, bool]:
    """Return the round, the number of weights, and whether the round is opened."""
    round, dimension = take(common, "round", int), take(common, "dimension", int)
    opening = take(common, "opening", bool)
    if not 1 <= round <= job.rounds:
        raise MessageInvalid(f"round = {round} is outside [1, {job.rounds}]")
    if not 1 <= dimension <= _MOST_WEIGHTS:
        raise MessageInvalid(f"dimension = {dimension} is outside [1, {_MOST_WEIGHTS:,}]")
    return round, dimension, opening


def _trained(
    job: Job,
    member: Member,
    protection: Protection,
    asked: Words,
    training: RoundTraining,
    half: Callable[[int, Update], ClientRound],
    time: FixedTime,
    begin: Callable[[], None],
) -> Reply:
    """Charge a report, train the client, and return its answer with the report.

    `asked` is the server's message to this client. `half` returns the client's side of the
    protection. Its arguments are the client's number of examples, and the weights that the server
    sent. `time` limits the training. `begin` records on disk that the client trains in this round.
    """
    if job.privacy.randomness == "seeded" and not member.seeded:
        raise ClientWithheld(
            "the job's reports draw from its seed, which protects nothing: a client sends them "
            "only if its own node configuration says seeded=true, which is for tests"
        )
    charge(job, member, protection, asked)
    if member.owner is not None:
        member.owner.charge(protection, asked)
    begin()
    answered = answer_trained(
        protection,
        lambda examples: half(examples, training.model),
        lambda: half(1, training.model),
        asked,
        lambda: time.trained(lambda: training.update(member.client, member.data, time.given_up)),
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


def load_training() -> None:
    """Import torch and the training code, which takes seconds."""
    import fedveil.flower.job.client_training  # noqa: F401


def _training(files: OwnFiles, member: Member, common: Words) -> RoundTraining:
    """Return the object that trains this client in the round. It has read no examples yet.

    `common` has the message's fields for all clients. The first call imports torch, unless the
    client trains in another process.
    """
    job = files.job
    if member.training is not None:
        return member.training(job, common)
    from fedveil.flower.job.client_training import Training

    states = partial(kept_states, job, common, member.accounts)
    return Training(job, common, states, files.data)


def _compile(training: RoundTraining, protection: Protection) -> None:
    """Compile the native code of the training and of the report, if it is not in numba's cache.

    Nothing here depends on the client's examples, so the time that it takes reveals nothing.
    """
    from fedveil.engine.precompile import compile_reports

    try:
        training.compile()
        if protection.name in POSITIONS:
            compile_reports(protection)
    except Exception as error:  # the user's model may raise anything, and does so again in training
        _log.warning("the client's code is not compiled before its time starts: %s", _told(error))


def _answer_after_s(job: Job, member: Member) -> float | None:
    owners = None if member.owner is None else member.owner.answer_after_s
    said = (job.deployment.answer_after_s, owners)
    return max((seconds for seconds in said if seconds is not None), default=None)


def _told(error: BaseException) -> str:
    place = place_of(error)
    told = short(reason(error), LONGEST_LOGGED)
    return told if place is None else f"{told} ({place})"
