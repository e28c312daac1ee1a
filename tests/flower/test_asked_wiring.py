"""A question's client checks and charges each message, and its server sends the right ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from fedveil.base.message import encode
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, DeploymentError, MessageInvalid, RunStopped
from fedveil.flower.job.app_folder import ROSTER
from fedveil.flower.own_file import OwnFile
from fedveil.flower.records import addressed_records, common_record, from_addressed_records
from fedveil.privacy.compose import compose
from fedveil.privacy.ledger import Ledger
from fedveil.rounds.outcomes import Unreached, Withheld
from fedveil.statistics import flower_client, flower_server
from fedveil.statistics.answer_folder import QUESTION
from fedveil.statistics.carriage import Participants, digest, make_protection
from fedveil.statistics.flower_app import deployable, server_app, write_app
from fedveil.statistics.flower_client import Member, _answer, _charge
from fedveil.statistics.flower_server import FlowerEngine, GridCarrier
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule, Step
from flower_parts import context

CLIENTS = 9
WORDS = {"ask": "heavy_hitters", "column": "w", "alphabet": "abc", "length": 3, "most": 1}


def file_of(protection: str, **more: Any) -> QuestionFile:
    questions = {"n": {"ask": "count"}, "old": {"ask": "count", "where": "x > 3"}, "w": WORDS}
    keys = {"protection": protection, "epsilon": 2.0, "clients": CLIENTS, "questions": questions}
    return QuestionFile.read({**keys, **more}, [])


class Reached(Exception):
    """The watched function was called."""


def config(folder: Path, **more: Any) -> dict[str, Any]:
    return {"client": 3, "state-folder": str(folder), "data": "own.csv", **more}


def test_a_clients_settings_are_those_of_its_own_node(tmp_path: Path) -> None:
    named = {"question": "q.yaml", "identity": "me.pem", "roster": "r.yaml", "max-epsilon": 2}
    found = Member.of(config(tmp_path, **named), file_of("dp_encrypt"))
    assert (found.client, found.data, found.max_epsilon) == (3, "own.csv", 2.0)
    paths = found.question, found.identity, found.roster
    assert paths == (Path("q.yaml"), Path("me.pem"), Path("r.yaml"))
    simulated = {"partition-id": 2, "state-folder": str(tmp_path)}
    assert Member.of(simulated, file_of("dp_encrypt")).client == 2
    assert Member.of({**simulated, "client": 5}, file_of("dp_encrypt")).client == 5
    with pytest.raises(DeploymentError, match=r"client = 9, a whole number in \[0, 9\)"):
        Member.of({**config(tmp_path), "client": 9}, file_of("dp_encrypt"))


@pytest.mark.parametrize(
    ("keys", "most"),
    [({}, 1), ({"rows": 3}, 3), ({"unit": "row"}, 7), ({"unit": "row", "rows": 4}, 4)],
)
def test_a_client_with_its_own_data_contributes_as_many_rows_as_the_file_says(
    keys: dict[str, Any], most: int, tmp_path: Path
) -> None:
    own = tmp_path / "own.csv"
    own.write_text("x,w\n" + "".join(f"{i},ab\n" for i in range(7)))
    member = Member.of(config(tmp_path, data=str(own)), file_of("central_gaussian", **keys))
    clients, number = member.rows(file_of("central_gaussian", **keys))
    assert len(clients.contributed(number, Seeded(1, "rows"))) == most


def test_a_client_without_its_own_data_has_the_rows_of_its_number(tmp_path: Path) -> None:
    table = tmp_path / "all.csv"
    owners = [client for client in range(CLIENTS) for _ in range(client + 1)]
    lines = [f"{100 * owner},ab,{owner}\n" for owner in owners]
    table.write_text("x,w,who\n" + "".join(lines))
    file = file_of("central_gaussian", data=str(table), client="who", rows=20)
    clients, number = Member.of({"client": 3, "state-folder": str(tmp_path)}, file).rows(file)
    mine = clients.contributed(number, Seeded(1, "rows"))
    assert clients.table.numbers("x")[mine].tolist() == [300.0] * 4


@pytest.mark.parametrize("limit", ["1.5", True, 0, -1.0, float("nan")])
def test_a_limit_that_is_no_number_above_0_does_not_count_as_none(
    limit: object, tmp_path: Path
) -> None:
    """A text such as "1.5" would otherwise leave the client without its limit."""
    with pytest.raises(DeploymentError, match=r"max-epsilon = .*, a number above 0 is needed"):
        Member.of(config(tmp_path, **{"max-epsilon": limit}), file_of("dp_encrypt"))
    assert Member.of(config(tmp_path), file_of("dp_encrypt")).max_epsilon is None


def test_a_misspelt_limit_does_not_count_as_none(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"max_epsilon, .* \(did you mean max-epsilon\?\)"):
        Member.of(config(tmp_path, max_epsilon=1.5), file_of("dp_encrypt"))


@pytest.mark.parametrize("delta", ["1e-6", True, 0, -1e-6, 1.0, 3, float("nan")])
def test_a_delta_that_is_none_is_refused(delta: object, tmp_path: Path) -> None:
    named = config(tmp_path, **{"max-epsilon": 1.5, "delta": delta})
    with pytest.raises(DeploymentError, match=r"delta = .*, a number above 0 and below 1 is"):
        Member.of(named, file_of("dp_encrypt"))


def test_a_delta_without_a_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"says delta = 1e-07 without max-epsilon"):
        Member.of(config(tmp_path, delta=1e-7), file_of("dp_encrypt"))


@pytest.mark.parametrize(("stated", "own"), [(None, 1e-5), (3e-7, 3e-7)])
def test_a_servers_large_delta_does_not_pass_a_clients_own_limit(
    stated: float | None, own: float, tmp_path: Path
) -> None:
    """At delta 0.4 the report costs less than the limit, at the client's own delta far more."""
    file = file_of("dp_encrypt", delta=0.4, epsilon=0.5)
    more = {} if stated is None else {"delta": stated}
    schedule, who = Schedule(file), Participants(CLIENTS)
    protection = make_protection(file, 7, schedule.rounds, who)
    ledger = Ledger()
    ledger.record_many(protection.spending({}), round=0, clients=[3])
    theirs, mine = (ledger.figures(d)["run_most_drawn"].epsilon for d in (0.4, own))
    assert theirs < 0.5 < mine
    for limit in (mine * 0.99, mine * 1.01):
        folder = tmp_path / f"{limit}"
        member = Member.of(config(folder, **{"max-epsilon": limit, **more}), file)
        if limit > mine:
            _charge(file, member, protection, schedule)
            continue
        with pytest.raises(MessageInvalid, match="one more report would bring this client to"):
            _charge(file, member, protection, schedule)


def test_a_clients_larger_delta_does_not_weaken_its_limit(tmp_path: Path) -> None:
    file = file_of("dp_encrypt", delta=2e-8, max_epsilon=4.0)
    member = Member.of(config(tmp_path, **{"max-epsilon": 1.5, "delta": 0.1}), file)
    assert member.limits(file) == [(4.0, 2e-8), (1.5, 2e-8)]


@pytest.mark.parametrize("name", ["oue", "central_gaussian"])
@pytest.mark.parametrize(("asked", "own"), [(9.0, 1.5), (1.5, 9.0), (None, 1.5), (1.5, None)])
def test_a_client_charges_itself_up_to_both_limits(
    name: str, asked: float | None, own: float | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    charged: list[Any] = []
    account = SimpleNamespace(
        begin=charged.append, charge=lambda spending, limits: charged.append((spending, limits))
    )
    monkeypatch.setattr(flower_client, "OwnLedger", lambda file: account)
    monkeypatch.setattr(flower_client, "count_report", lambda file, *asked: charged.append(asked))
    file = file_of(name, max_epsilon=asked, delta=3e-7)
    member = Member.of(config(tmp_path, **({"max-epsilon": own} if own else {})), file)
    schedule = Schedule(file)
    rounds = 1 if file.local else schedule.rounds
    protection = make_protection(file, 7, rounds, Participants(CLIENTS))
    OwnFile(member.accounts.file(digest(file), member.client, "reports")).write(b"2")
    _charge(file, member, protection, schedule)
    begun, (spending, most), (spent, limits) = charged
    assert begun == 2  # reports before this one
    assert spending == spent == protection.spending({})
    assert (most, limits) == (rounds, [(e, 3e-7) for e in (asked, own) if e is not None])
    assert schedule.rounds == 3


@pytest.mark.parametrize(("own", "answers"), [(1.9, 2), (2.0, 3)])
def test_a_client_s_limit_covers_every_dropout_that_the_noise_allows(
    own: float, answers: int, tmp_path: Path
) -> None:
    """Without dropouts, all rounds would cost less than 1.9."""
    settings = {"name": "distributed_dp", "distributed_dp": {"dropout_tolerance": 0.5}}
    file = file_of("distributed_dp").with_(protection=settings)
    member = Member.of(config(tmp_path, **{"max-epsilon": own}), file)
    schedule = Schedule(file)
    protection = make_protection(file, 7, schedule.rounds, Participants(CLIENTS))
    assert schedule.rounds == 3
    whole = [(spent.loss, 3) for spent in protection.spent({}, CLIENTS)]
    assert compose(whole, file.delta) < 1.9 < compose(_worst(protection), file.delta) <= 2.0
    for _ in range(answers):
        _charge(file, member, protection, schedule)
    with pytest.raises((MessageInvalid, ClientWithheld)):
        _charge(file, member, protection, schedule)


def _worst(protection: Any) -> list[Any]:
    return [(spent.loss, 3) for spent in protection.spent({}, protection.least_survivors)]


def asked(
    file: QuestionFile, step: Step, client: int, folder: Path, *, opening: bool = True, **more: Any
) -> Any:
    common = common_record({"opening": opening, **step.message()})
    message: Any = SimpleNamespace(content=addressed_records(client, encode({}), common))
    return _answer(file, message, context(103, {}, config(folder, **more)))


def test_a_client_answers_its_own_messages_in_its_own_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []

    def protection(file: QuestionFile, *arguments: Any) -> None:
        made.append(arguments)
        raise Reached

    monkeypatch.setattr(flower_client, "make_protection", protection)
    for name, rounds in (("oue", 1), ("central_gaussian", 3)):
        file = file_of(name)
        schedule = Schedule(file)
        with pytest.raises(MessageInvalid, match="for another client"):
            asked(file, Step(1, prefixes_of(file, 1)), 4, tmp_path)
        for number in range(1, schedule.rounds + 1):
            step = Step(number, prefixes_of(file, number))
            if 3 in schedule.cohort(step, CLIENTS):
                with pytest.raises(Reached):
                    asked(file, step, 3, tmp_path)
                dimension, over, who = made.pop()
                assert (dimension, over) == (schedule.layout(step).dimension, rounds)
                assert (who.clients, who.simulated) == (CLIENTS, False)
            else:
                with pytest.raises(MessageInvalid, match=f"takes no part in round {number}"):
                    asked(file, step, 3, tmp_path)


def test_a_client_that_is_asked_without_an_introduction_compares_its_own_question(
    tmp_path: Path,
) -> None:
    file, own = file_of("central_gaussian"), tmp_path / "own.yaml"
    own.write_text(file.with_(epsilon=0.5).to_yaml())
    with pytest.raises(DeploymentError, match=r"epsilon is 2\.0, and 0\.5 in the own copy"):
        asked(file, Step(1, prefixes_of(file, 1)), 3, tmp_path, question=str(own))


def test_a_client_draws_no_noise_that_a_seed_determines(tmp_path: Path) -> None:
    file = file_of("central_gaussian", randomness="seeded")
    with pytest.raises(ClientWithheld, match="randomness = 'seeded' protects nothing"):
        asked(file, Step(1, prefixes_of(file, 1)), 3, tmp_path)


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("kept", [None, {"key": b"of the phase before"}])
def test_only_a_later_phase_of_a_round_continues_from_what_the_client_kept(
    opening: bool, kept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was killed opens the round again: the old keys must not serve a second time."""
    taken: list[Any] = []
    half = SimpleNamespace(
        take_up=taken.append, wants_update=lambda message: False,
        respond=lambda message, update: {"phase": 1}, keep=lambda: {"left": 2},
    )  # fmt: skip
    protection = SimpleNamespace(dimension=7, client_round=lambda context: half)
    put: list[Any] = []
    state = SimpleNamespace(take=lambda round: kept, put=lambda *given: put.append(given))
    monkeypatch.setattr(flower_client, "make_protection", lambda *given: protection)
    monkeypatch.setattr(flower_client, "SealedState", lambda *given: state)
    file = file_of("central_gaussian")
    step = Step(2, prefixes_of(file, 2))
    assert asked(file, step, 3, tmp_path, opening=opening) == encode({"phase": 1})
    assert taken == ([] if opening or kept is None else [kept])
    assert put == [(2, {"left": 2})]


def test_a_server_app_serves_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr(flower_server, "serve", lambda *asked: served.append(asked))
    grid: Any = "grid"
    asked = context(0, {}, {})
    server_app(tmp_path)(grid, asked)
    assert served == [(tmp_path, "grid", asked)]


def test_answers_without_a_folder_are_in_one_named_after_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / QUESTION).write_text(file_of("dp_encrypt", name="survey").to_yaml())
    made: list[tuple[Any, ...]] = []
    folder = SimpleNamespace(path="there", close=lambda: made.append(("closed",)))
    asking = SimpleNamespace(run=lambda say: "answers")
    monkeypatch.setattr(flower_server, "FlowerEngine", lambda *given: None)
    monkeypatch.setattr(flower_server, "Asking", lambda *given: asking)
    monkeypatch.setattr(flower_server, "create", lambda *given: made.append(given) or folder)
    monkeypatch.setattr(flower_server, "keep", lambda *given: made.append(given))
    grid: Any = None
    for run, place in (({}, None), ({"folder": "there"}, Path("there"))):
        flower_server.serve(tmp_path, grid, context(0, run, {}))
        assert made == [(place, "survey"), ("answers", folder), ("closed",)]
        made.clear()


def test_an_app_asks_as_many_clients_as_the_data_names(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("who,x,w\n" + "".join(f"c{n % 4},{n},a\n" for n in range(11)))
    keys: dict[str, Any] = {"data": str(table), "client": "who", "rows": 3}
    assert deployable(file_of("dp_encrypt", **keys, clients=None)).clients == 4
    assert deployable(file_of("dp_encrypt", **keys, clients=7)).clients == 7


@pytest.mark.parametrize("name", ["a b " * 20, "9 lives", "-", "x-", "survey"])
def test_an_app_has_a_name_that_flower_takes(name: str, tmp_path: Path) -> None:
    write_app(tmp_path, file_of("dp_encrypt", name=name))
    (found,) = re.findall(r'^name = "(.*)"$', (tmp_path / "pyproject.toml").read_text(), re.M)
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?", found)
    assert name != "survey" or found == "survey"
    assert not (tmp_path / ROSTER).exists()  # no key is needed


@pytest.mark.parametrize("error", [ValueError("age 71"), ClientWithheld("age 71")])
def test_no_text_of_an_error_leaves_a_client(error: Exception) -> None:
    def fail(message: Any, context: Any) -> bytes:
        raise error

    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    asked = Message(RecordDict(), 103, "train.report")
    reply = flower_client._guarded(fail)(asked, context(103, {}, {}))
    assert (reply.error.code, reply.error.reason) == (200, "withheld")


def prefixes_of(file: QuestionFile, number: int) -> dict[str, Any]:
    """Return prefixes that may be asked about in a round."""
    schedule = Schedule(file)
    if file.local and schedule.turns[number - 1].tree is None:
        return {}
    return {"w": [["ab"[: schedule.trees["w"].size(schedule._level("w", Step(number)))]]]}


def test_a_message_goes_to_each_client_with_a_node_and_only_the_first_phase_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []

    def exchange(grid: Any, outgoing: list[Any], timeout_s: float) -> Iterator[Any]:
        sent.append((outgoing, timeout_s))
        yield 1, None

    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    monkeypatch.setattr(flower_server, "exchange", exchange)
    members: Any = SimpleNamespace(node_of={2: 102, 5: 105})
    step = Step(3, {"w": [["ab"]]})
    carrier = GridCarrier(None, members, step, 4.5)  # type: ignore[arg-type]
    messages = {number: {"own": number} for number in (2, 5, 7)}
    for phase, opening in (("report", True), ("unmask", False)):
        answers = list(carrier.ask(phase, messages))
        assert answers == [Unreached(7), Unreached(5)]
        outgoing, window_s = sent.pop()
        assert window_s == 4.5
        for message, client in zip(outgoing, (2, 5), strict=True):
            addressee, own, common = from_addressed_records(message.content)
            assert (addressee, own) == (client, {"own": client})
            assert common == {"opening": opening, **step.message()}
            metadata = message.metadata
            assert (metadata.dst_node_id, metadata.message_type) == (100 + client, f"train.{phase}")
            assert (metadata.ttl, metadata.group_id) == (304.5, "3")


@pytest.mark.parametrize(("round", "here", "starts"), [(1, 8, False), (1, 9, True), (2, 4, True),
                                                       (2, 3, False)])  # fmt: skip
def test_all_clients_begin_and_a_later_round_needs_only_the_least(
    round: int, here: int, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_server, "check_report", lambda protection: None)
    engine: Any = object.__new__(FlowerEngine)
    waited: list[Any] = []
    engine._members = SimpleNamespace(wait_for=lambda *asked: waited.append(asked) or here)
    engine._grid, engine._file = None, file_of("central_gaussian", answer_s=7.5)
    engine.who = Participants(CLIENTS)
    carriage: Any = SimpleNamespace(protection=SimpleNamespace(least_clients=4))
    if starts:
        assert isinstance(engine.carrier(Step(round), None, carriage), GridCarrier)
    else:
        with pytest.raises(RunStopped, match=f"{here} of 9 clients were .* answer_s = 7.5 s"):
            engine.carrier(Step(round), None, carriage)
    assert waited == [(range(CLIENTS), CLIENTS, 7.5)]


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (200, Withheld(5, "the client's own log says why")),
        (2, Unreached(5)),
        (4, None),  # there was a reply, but it is lost
        (5, None),  # the node is away, perhaps since its reply is with the SuperLink
    ],
)
def test_a_reply_that_was_lost_may_have_been_a_report(code: int, answer: Any) -> None:
    """A client counts as not reached, and its charge is taken back, only if no report has left."""
    reply: Any = SimpleNamespace(has_error=lambda: True, error=SimpleNamespace(code=code))
    assert flower_server._read(5, reply) == answer
