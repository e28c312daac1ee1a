"""Each option of a command for one party reaches the link, the run or the scorer that it is for.

The machine, the link and the scorer are watched and not run. No value is a default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedveil.base.plain_text import remark
from fedveil.cli.vertical import machines, new_rows, one_process
from fedveil.cli.vertical.new_rows import meeting_of, only, opened, source_of
from fedveil.errors import InvalidValue
from fedveil.link.streams import Address
from fedveil.privacy.ledger import Line
from fedveil.vertical.remote.sessions import Meeting

Command = Callable[..., tuple[int, str, str]]
SPLIT = SimpleNamespace(leader="lead", followers=["bank", "shop"], parties=["lead", "bank", "shop"])
TASK = SimpleNamespace(leader="lead", followers=["bank", "shop"])
CERTIFIED = ("--tls", "keys", "--patience", 9)


class Reached(Exception):
    """The watched function was called."""


class Watched:
    """Records the arguments of the calls of replaced functions, and ends the command there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._patch = monkeypatch

    def __call__(self, path: str) -> None:
        name = path.rpartition(".")[2]

        def record(*arguments: Any, **named: Any) -> None:
            self.calls.append((name, *arguments, *named.values()))
            raise Reached

        self._patch.setattr(path, record)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr("fedveil.link.tls.Credentials.read", lambda *asked: asked)
    return Watched(monkeypatch)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, watched: Watched) -> list[tuple[Any, ...]]:
    """The job or run, the party and the further arguments of each machine that a command makes."""
    calls: list[tuple[Any, ...]] = []

    def machine(source: Any, here: Callable[[Any], str], *more: Any) -> Any:
        calls.append((source, here(TASK), *more[:-1]))
        party, finished = calls[-1][1], source == Path("finished")
        return SimpleNamespace(party=party, split=SPLIT, task=TASK, has_finished=finished)

    monkeypatch.setattr("fedveil.vertical.remote.machine.Machine.new", machine)
    monkeypatch.setattr("fedveil.vertical.remote.machine.Machine.reopened", machine)
    monkeypatch.setattr("fedveil.vertical.task.notes_of", lambda task, party: [f"note: {party}"])
    for name in ("lead", "follow", "serve"):
        watched(f"fedveil.vertical.remote.sessions.{name}")
    return calls


def met(meeting: Meeting) -> tuple[Any, ...]:
    return meeting.address, meeting.credentials, meeting.patience_s


HERE = Address("127.0.0.1", 7)
SECURE = (HERE, (Path("keys"), "lead", ["lead", "bank", "shop"]), 9)


def test_a_leader_trains_and_resumes_as_asked(
    command: Command, watched: Watched, made: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    leader = ("vertical", "leader", "--listen", "127.0.0.1:7")
    with pytest.raises(Reached):
        command(*leader, *CERTIFIED, "--set", "epochs=3", "--out", "there")
    job, party, out, begun = made.pop()
    assert (job.epochs, party, out, begun) == (
        3, "lead", Path("there"), "fedveil vertical leader",
    )  # fmt: skip
    (name, _, meeting) = watched.calls.pop()
    assert (name, met(meeting)) == ("lead", SECURE)
    assert capsys.readouterr().out == "note: lead\n"
    monkeypatch.setattr("fedveil.vertical.log_lines.line", lambda record: f"round {record}")
    with pytest.raises(Reached):
        command(*leader, "--insecure", "--set", "epochs=3", "--out", "there")
    made.pop()
    meeting = watched.calls.pop()[2]
    capsys.readouterr()
    meeting.report("the link broke")
    meeting.progress(4)
    meeting.listening("127.0.0.1:7")
    said = capsys.readouterr()
    assert said.out == "round 4\nlead listens on 127.0.0.1:7\n"
    assert said.err == "the link broke\n"
    with pytest.raises(Reached):
        command(*leader, "--insecure", "--resume", "run")
    assert made.pop() == (Path("run"), "lead")
    assert met(watched.calls.pop()[2]) == (HERE, None, 600)
    code, _, err = command(*leader, "--insecure", "--resume", "finished")
    assert (code, "the run in finished has ended: use its model with" in err) == (1, True)


def test_a_follower_trains_and_serves_as_asked(
    command: Command, watched: Watched, made: list[tuple[Any, ...]]
) -> None:
    follower = ("vertical", "follower", "--connect", "127.0.0.1:7", "--party", "shop")
    with pytest.raises(Reached):
        command(*follower, *CERTIFIED, "--set", "epochs=3", "--out", "there")
    job, party, out, begun = made.pop()
    assert (job.epochs, party, out) == (3, "shop", Path("there"))
    assert begun == "fedveil vertical follower"
    (name, _, meeting) = watched.calls.pop()
    assert (name, *met(meeting)) == ("follow", HERE, (Path("keys"), "shop", SECURE[1][2]), 9)
    for run in ("run", "finished"):
        with pytest.raises(Reached):
            command(*follower, "--insecure", "--serve", run)
        assert made.pop() == (Path(run), "shop")
        assert watched.calls.pop()[0] == "serve"
    for more in (("--set", "epochs=3"), ("--out", "there")):
        code, _, err = command(*follower, "--insecure", "--serve", "run", *more)
        assert (code, "--serve use the run's own job" in err) == (2, True)
    code, _, err = command(*follower, "--insecure", "--serve", "run", "--resume", "other")
    assert (code, "--serve and --resume exclude each other" in err) == (2, True)
    assert (made, watched.calls) == ([], [])


@pytest.mark.parametrize("purpose", ["evaluate", "predict", "generate"])
def test_a_leader_looks_with_an_exchange_of_its_own(
    purpose: str, command: Command, watched: Watched, made: list[tuple[Any, ...]]
) -> None:
    looking = ("vertical", purpose, "run", "--listen", "127.0.0.1:7", *CERTIFIED)
    with pytest.raises(Reached):
        command(*looking)
    assert made == [(Path("run"), "lead")]
    ((_, _, meeting, named, own),) = watched.calls
    assert (met(meeting), named, own is None) == (SECURE, purpose, purpose == "evaluate")


@pytest.mark.parametrize(
    ("more", "said"),
    [((), "--tls DIR is missing"), (("--insecure", *CERTIFIED), "exclude each other")],
)
def test_a_link_is_secure_or_is_said_not_to_be(
    more: tuple[Any, ...], said: str, command: Command, made: list[tuple[Any, ...]]
) -> None:
    code, _, err = command("vertical", "leader", "--listen", "127.0.0.1:7", *more)
    assert (code, said in err) == (2, True)


def test_certificates_are_valid_for_as_long_as_asked(command: Command, watched: Watched) -> None:
    watched("fedveil.link.own_authority.write_certificates")
    asked = ("vertical", "certificates", "there", "--party", "bank", "--party", "lead")
    for more, days in ((("--days", 7), 7), ((), 825)):
        with pytest.raises(Reached):
            command(*asked, *more)
        assert watched.calls.pop()[1:] == (Path("there"), ["bank", "lead"], days)


def test_each_certificate_is_given_to_its_party_alone(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote = [Path("there", party) for party in ("bank", "lead")]
    monkeypatch.setattr("fedveil.link.own_authority.write_certificates", lambda *asked, days: wrote)
    asked = ("vertical", "certificates", "there", "--party", "bank", "--party", "lead")
    assert command(*asked)[1].splitlines() == [
        "wrote there/bank: give this folder only to bank",
        "wrote there/lead: give this folder only to lead",
        "there/authority.key stays here: anyone who has it can impersonate any party",
    ]


def test_a_party_that_has_trained_keeps_the_page_of_its_own_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        "fedveil.pages.run_folder_page.keep_page", lambda *given: kept.append(given)
    )
    monkeypatch.setattr(machines, "print_results", lambda folder: f"the end of {folder}")
    log = SimpleNamespace(event="an event")
    session: Any = SimpleNamespace(folder="bank's", run=SimpleNamespace(log=log))
    machine: Any = SimpleNamespace(root="the root")
    assert machines._ended(machine, session) == "the end of bank's"
    assert kept == [("the root", "an event")]


def test_a_simulated_run_shows_each_step_and_the_end(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(job: Any, out: Path, *, progress: Any, say: Any) -> Any:
        progress(f"{job.epochs} at {out}")
        say("a remark")
        return SimpleNamespace(folder="there")

    monkeypatch.setattr("fedveil.vertical.train", train)
    monkeypatch.setattr("fedveil.vertical.log_lines.line", lambda record: f"step {record}")
    monkeypatch.setattr(one_process, "print_results", lambda folder: None)
    code, out, err = command("vertical", "run", "--set", "epochs=3", "--out", "there")
    assert (code, out, err) == (0, "step 3 at there\n", "a remark\n")


def test_the_keys_of_a_vertical_job_are_explained(command: Command) -> None:
    code, out, _ = command("vertical", "keys", "epochs")
    assert code == 0
    assert out.startswith("epochs: ")


def test_a_leaders_text_is_printed_behind_its_prompt(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(text="thére".encode(), stopped="", sent=7)
    run = SimpleNamespace(setting=SimpleNamespace(split="the split"))
    session = SimpleNamespace(result=found, run=run)
    monkeypatch.setattr("fedveil.cli.vertical.generate.look", lambda *asked: session)
    monkeypatch.setattr("fedveil.language.text_account.figures", lambda split, sent: [split, sent])
    asked = ("vertical", "generate", "run", "--prompt", "Hi ", "--listen", "localhost:7")
    assert command(*asked, "--insecure")[1] == "Hi thére\nthe split\n7\n"


def scorer(name: str) -> Any:
    return SimpleNamespace(name=name, split=SPLIT, keep_account=lambda: None)


def test_new_rows_are_scored_as_asked(command: Command, watched: Watched) -> None:
    watched("fedveil.cli.vertical.one_process.predict_new")
    with pytest.raises(Reached):
        command(
            "vertical", "predict", "run", "--data", "bank=a.csv", "--data", "lead=b.csv",
            "--out", "there.npz", "--listen", "127.0.0.1:7", "--connect", "127.0.0.1:8",
            "--most-ids", 33, *CERTIFIED,
        )  # fmt: skip
    assert watched.calls == [(
        "predict_new", Path("run"), ["bank=a.csv", "lead=b.csv"], Path("there.npz"),
        "127.0.0.1:7", "127.0.0.1:8", Path("keys"), False, 9, 33,
    )]  # fmt: skip
    code, _, err = command("vertical", "predict", "run", "--connect", "127.0.0.1:8")
    assert (code, "--connect needs --data FILE" in err) == (2, True)
    code, _, err = command("vertical", "predict", "run", "--most-ids", 33)
    assert (code, "--most-ids needs --data FILE" in err) == (2, True)
    with pytest.raises(InvalidValue, match="--listen is for the leader and --connect for a"):
        new_rows.predict_new(Path(), [], Path("x.csv"), "a", "b", None, True, 9, None)


@pytest.mark.parametrize("leads", [True, False])
def test_scores_are_counted_by_outcome_and_a_follower_writes_none(
    leads: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    party, followed = "lead" if leads else "bank", list[str]()
    lines, drift = [Line(1.5, 1e-6, "a row"), Line(2.5, 0.0, "all rows")], ("age", "sex")
    scored = SimpleNamespace(name=party, split=SPLIT, keep_account=lambda: lines,
                             new=SimpleNamespace(drift=drift))  # fmt: skip
    counts = {"scored": 1234, "alone": 2345, "refused": 6}
    monkeypatch.setattr(new_rows, "opened", lambda *asked: {party: scored})
    monkeypatch.setattr(new_rows, "source_of", lambda *asked: "source")
    file = SimpleNamespace(write=lambda source, tell: counts)
    made: list[Path] = []
    monkeypatch.setattr(
        "fedveil.vertical.scoring.predicted.ScoreFile", lambda out: made.append(out) or file
    )
    monkeypatch.setattr(
        "fedveil.vertical.scoring.sources.follow", lambda own, _: followed.append(own.name)
    )
    at = ("127.0.0.1:7", None) if leads else (None, "127.0.0.1:7")
    found: Any = new_rows.predict_new(Path(), [], Path("x.csv"), *at, None, True, 9, None)
    said = capsys.readouterr().out.splitlines()
    assert found["drift"] == {party: ["age", "sex"]}
    assert said[-2:] == [f"{party}: {line}" for line in lines]
    assert [line["epsilon"] for line in found["accounts"][party]] == [1.5, 2.5]
    if leads:
        assert (made, followed, found["rows"]) == ([Path("x.csv")], [], counts)
        assert said[0] == (
            "wrote x.csv: 1,234 predictions; 2,345 rows are not at all parties, 6 are refused by a "
            "party's privacy.max_epsilon"
        )
    else:
        assert (made, followed, "rows" in found) == ([], ["bank"], False)


def test_each_party_opens_its_own_bundle_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {Path("a"): "bank", Path("b"): "lead"}
    read = lambda path: SimpleNamespace(  # noqa: E731
        contents=SimpleNamespace(party=places[path]),
        manifest=SimpleNamespace(contents=SPLIT.parties),
    )
    monkeypatch.setattr("fedveil.vertical.bundle.Bundle.read", read)
    monkeypatch.setattr("fedveil.vertical.scoring.sources.bundles_in", lambda path: [*places])
    monkeypatch.setattr("fedveil.link.tls.Credentials.read", lambda *asked: asked)
    monkeypatch.setattr("fedveil.vertical.scoring.scorer.Scorer", lambda *made: made)
    with ExitStack() as stack:
        found = opened(Path("run"), ["lead=l.csv", "bank=k.csv"], stack, Path("keys"), 33)
    for party, (bundle, file, _, own, _, most) in found.items():
        assert places[bundle] == party
        assert file == {"lead": "l.csv", "bank": "k.csv"}[party]
        assert own == (Path("keys"), party, SPLIT.parties)
        assert most == 33
    with ExitStack() as stack:
        bare = opened(Path("run"), ["lead=l.csv", "bank=k.csv"], stack, None, 33)
    assert [made[3] for made in bare.values()] == [None, None]  # type: ignore[index]


def test_a_party_listens_or_connects_by_its_role(monkeypatch: pytest.MonkeyPatch) -> None:
    lead, bank = scorer("lead"), scorer("bank")
    assert only({"lead": lead}, leads=True) is lead
    assert only({"bank": bank}, leads=False) is bank
    with pytest.raises(InvalidValue, match="the bundle is of lead, which needs --listen"):
        only({"lead": lead}, leads=False)
    with pytest.raises(InvalidValue, match="the bundle is of bank, which needs --connect"):
        only({"bank": bank}, leads=True)
    with pytest.raises(InvalidValue, match="are for one party"):
        only({"lead": lead, "bank": bank}, leads=True)
    asked = meeting_of("--connect", "127.0.0.1:7", bank, None, True, 9)
    assert met(asked) == (HERE, None, 9)
    monkeypatch.setattr("fedveil.vertical.scoring.sources.Together", lambda held: held)
    monkeypatch.setattr("fedveil.vertical.scoring.sources.Apart", lambda *made: made[:2])
    with ExitStack() as stack:
        both = {"lead": lead, "bank": bank}
        assert source_of(both, None, None, True, 9, stack) == [lead, bank]
        apart: Any = source_of({"lead": lead}, "127.0.0.1:7", None, True, 9, stack)
    assert (apart[0], met(apart[1])) == (lead, (HERE, None, 9))


def test_a_service_has_the_limits_that_were_asked_for(
    command: Command, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("service.PredictionService", "sources.serve"):
        watched(f"fedveil.vertical.scoring.{name}")
    module, asked = "fedveil.cli.vertical.serve_predictions", list[Any]()
    kept, saved = {"lead": scorer("lead")}, list[str]()
    kept["lead"].keep_account = lambda: saved.append("lead")
    monkeypatch.setattr(f"{module}.opened", lambda *made: asked.append(made) or kept)
    source = SimpleNamespace(leader=kept["lead"])
    monkeypatch.setattr(f"{module}.source_of", lambda *made: asked.append(made) or source)
    service = ("vertical", "serve-predictions", "run", "--data", "a.csv", "--most-ids", 33)
    listening = ("--http", "127.0.0.1:8", "--listen", "127.0.0.1:7")
    with pytest.raises(Reached):
        command(*service, *listening, "--queue", 5, "--guesses", 3, *CERTIFIED)
    opening, sought = asked
    assert (*opening[:2], *opening[3:]) == (Path("run"), ["a.csv"], Path("keys"), 33)
    assert sought[:-1] == (kept, "127.0.0.1:7", Path("keys"), False, 9)
    assert watched.calls.pop() == ("PredictionService", source, SECURE[1], 5, 3, remark)
    assert saved == ["lead"]

    class Service:
        note = "mind this"

        def __init__(self, *made: Any, **limits: Any) -> None: ...

        async def run(self, address: Any, tell: Callable[[Any], None]) -> None:
            tell(address)

    with monkeypatch.context() as place:
        place.setattr("fedveil.vertical.scoring.service.PredictionService", Service)
        for more, scheme in ((CERTIFIED, "https"), (("--insecure",), "http")):
            _, out, err = command(*service, *listening, *more)
            assert out == f"predictions at {scheme}://127.0.0.1:8/predict\n"
            assert "mind this" in err
    kept["bank"] = scorer("bank")
    del kept["lead"]
    with pytest.raises(Reached):
        command(*service, "--connect", "127.0.0.1:7", "--insecure", "--patience", 9)
    name, held, meeting = watched.calls.pop()
    assert (name, held, *met(meeting)) == ("serve", kept["bank"], HERE, None, 9)
    for more in ((), ("--http", "127.0.0.1:8", "--connect", "127.0.0.1:7")):
        code, _, err = command(*service, "--insecure", *more)
        assert (code, "the leader needs --http HOST:PORT, a follower" in err) == (2, True)


def test_the_help_of_a_service_names_the_folder_and_no_option_that_new_rows_have(
    command: Command,
) -> None:
    code, out, _ = command("vertical", "serve-predictions", "--help")
    said = " ".join(out.replace("│", " ").split())
    assert code == 0
    assert (
        "A run folder. If the parties are on several machines: its subfolder PARTY/bundle" in said
    )
    assert "For new rows with --listen or --connect" not in said
