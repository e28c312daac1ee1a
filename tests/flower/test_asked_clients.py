"""A question over Flower: the simulator's objects, each client with its own rows and account."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.cli.ask import _print
from fedveil.errors import DeploymentError, RunFailed, RunFolderError, RunStopped
from fedveil.flower.job.signing_key_file import make_identity
from fedveil.flower.records import COMMON, common_record, from_addressed_records
from fedveil.statistics.answer_folder import ANSWERS, PAGE, QUESTION, saved
from fedveil.statistics.flower_app import client_app, deployable, run_app, write_app
from fedveil.statistics.flower_server import serve
from fedveil.statistics.question import QuestionFile
from flower_parts import LocalGrid, context

SITES = 5
AGES = [[31.0, 44.0], [65.0], [70.0, 29.0, 81.0], [55.0], [90.0, 66.0]]
OLD = 4 + 1  # of all rows, at least 65


def file_of(protection: str, **more: Any) -> QuestionFile:
    questions = {
        "old": {"ask": "count", "where": "age >= 65"},
        "ages": {"ask": "histogram", "column": "age", "edges": [0.0, 50.0, 100.0]},
    }
    settings = {"rows": 3, "clients": SITES, "answer_s": 3.0, "data": "unused.csv", **more}
    return QuestionFile.read({"protection": protection, "questions": questions, **settings}, [])


class SiteGrid(LocalGrid):
    """SuperNodes of this process, each with a table of its own."""

    def __init__(self, app: Path, folder: Path, sites: Iterable[int] = range(SITES)) -> None:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.app = client_app(app)
        self.contexts = {}
        for n in sites:
            table = folder / f"site-{n}.csv"
            table.write_text("age\n" + "".join(f"{age}\n" for age in AGES[n]))
            config = {"client": n, "data": str(table), "state-folder": str(folder / f"state-{n}")}
            self.contexts[100 + n] = context(100 + n, {}, config)
        self.sent, self.replies = [], []
        self.tamper = lambda message: message
        self._ready = {}


def over_flower(file: QuestionFile, folder: Path, **more: Any) -> tuple[Any, SiteGrid]:
    app = folder / "app"
    write_app(app, deployable(file))
    grid = SiteGrid(app, folder, **more)
    answers = serve(app, grid, context(0, {"folder": str(folder / "answer")}, {}))
    return answers, grid


@pytest.mark.parametrize("protection", ["not_encrypt", "pw_encrypt"])
def test_sites_answer_from_their_own_tables(protection: str, tmp_path: Path) -> None:
    answers, _ = over_flower(file_of(protection, client="person"), tmp_path)  # no site's column
    values = [answers["old"].value, *(e.value for e in answers["ages"].estimates)]
    assert values == pytest.approx([OLD, 3, 6], abs=0.01)
    found = saved(tmp_path / "answer")
    assert found["reports"] == SITES
    assert found["privacy"][0]["epsilon"] == float("inf")
    _print({**found, "page": "none"})
    assert (tmp_path / "answer" / "answers.html").is_file()


ROW = {"unit": "row"}


@pytest.mark.parametrize(
    ("protection", "more"), [("distributed_dp", {}), ("oue", {"rows": 1}), ("rr", ROW)]
)
def test_noise_and_account_are_those_of_a_simulation(
    protection: str, more: dict[str, Any], tmp_path: Path
) -> None:
    answers, _ = over_flower(file_of(protection, epsilon=2.0, **more), tmp_path)
    assert 1.5 < answers.epsilon <= 2
    for answer in answers.answers.values():
        for estimate in answer.estimates:
            assert abs(estimate.value) < 7 * (estimate.noise + estimate.sampling) + 9
    assert "the time that a client takes" in answers.in_clear[0]


def signed_grid(
    folder: Path, protection: str, *, false: bool = False, **more: Any
) -> tuple[Path, SiteGrid]:
    """Return an app with active security whose clients have keys, and its grid.

    With `false`, client 0's own roster names another key for client 1.
    """
    active = {"name": protection, protection: {"active_security": True}}
    app = folder / "app"
    keys = {"epsilon": 4.0, **more}
    write_app(app, deployable(file_of(active, **keys)))  # type: ignore[arg-type]
    publics = [make_identity(folder / f"client-{n}.pem") for n in range(SITES)]
    roster = "".join(f'client-{n}: "{public}"\n' for n, public in enumerate(publics))
    assert "fedveil identity" in (app / "roster.yaml").read_text()
    (app / "roster.yaml").write_text(roster)
    grid = SiteGrid(app, folder)
    for n in range(SITES):
        own = folder / f"own-{n}.yaml"
        own.write_text(roster.replace(publics[1], publics[2]) if n == 0 and false else roster)
        config = {"identity": str(folder / f"client-{n}.pem"), "roster": str(own)}
        grid.contexts[100 + n].node_config.update(config)
    return app, grid


def test_active_security_rests_on_the_clients_own_rosters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, grid = signed_grid(tmp_path, "distributed_dp")
    answers = serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))
    assert answers.reports == SITES
    assert "a server that lies" in answers.lines[0].what
    # Writing the app again keeps the keys.
    kept = (app / "roster.yaml").read_text()
    write_app(app, answers.file)
    assert (app / "roster.yaml").read_text() == kept
    del grid.contexts[103].node_config["roster"]
    (tmp_path / "state-3").rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="own log says why"):
        serve(app, grid, context(0, {"folder": str(tmp_path / "again")}, {}))
    assert "names no file with them: add roster=" in caplog.text


def test_an_empty_roster_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = {"name": "pw_encrypt", "pw_encrypt": {"active_security": True}}
    monkeypatch.setattr("shutil.which", lambda name: "/nowhere/flwr")
    with pytest.raises(DeploymentError, match=r"roster\.yaml names no keys"):
        run_app(file_of(active), tmp_path / "app", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("writes", "code"), [(True, 0), (False, 0), (True, 3)])
def test_an_app_that_flwr_has_run_has_an_answer_or_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool, code: int
) -> None:
    """`flwr` is a script here, which notes its arguments."""
    program, out, app = tmp_path / "flwr", tmp_path / "here", tmp_path / "app"
    answer = f"echo '{{\"reports\": 5}}' > '{out / ANSWERS}'" if writes else "true"
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{tmp_path}/given'\n{answer}\nexit {code}\n"
    )
    program.chmod(0o755)
    out.mkdir()
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    if not writes or code:
        with pytest.raises(DeploymentError, match="ended without an answer"):
            run_app(file_of("not_encrypt"), app, out)
        return
    monkeypatch.chdir(tmp_path)
    found = run_app(file_of("not_encrypt"), app, Path("here"))
    assert found == {"reports": 5, "folder": str(out), "page": str(out / PAGE)}
    given = ["run", str(app), "--stream", "--run-config", f'folder="{out}"']
    assert (tmp_path / "given").read_text().splitlines() == given
    assert QuestionFile.load(app / QUESTION).questions.keys() == {"old", "ages"}


def test_answers_of_an_earlier_run_are_not_those_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flwr run` exits with 0 even if the app has failed, for example because of these answers."""
    old = tmp_path / "app" / "answer" / ANSWERS
    old.parent.mkdir(parents=True)
    old.write_text('{"reports": 5}')
    monkeypatch.setattr("shutil.which", lambda name: "/bin/true")
    with pytest.raises(RunFolderError, match="answer is not empty: name another folder"):
        run_app(file_of("not_encrypt"), tmp_path / "app", None)


@pytest.mark.parametrize("changes", [{"randomness": "seeded"}, {"fidelity": "aggregate"}])
def test_what_is_for_simulations_is_not_deployed(changes: dict[str, Any]) -> None:
    ((key, value),) = changes.items()
    with pytest.raises(DeploymentError, match=f"{key} = '{value}' is "):
        deployable(file_of("oue", epsilon=2.0, rows=1, **changes))


def test_a_client_does_not_trust_the_server_s_roster(tmp_path: Path) -> None:
    app, grid = signed_grid(tmp_path, "pw_encrypt", false=True)
    answers = serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))
    assert answers.reports == SITES - 1


#: Nobody's word begins with c or d.
WORDS = ["aa", "b", "ab", "b", "a"]


@pytest.mark.parametrize("lies", [False, True])
def test_a_server_cannot_ask_one_client_for_its_own_words(lies: bool, tmp_path: Path) -> None:
    """It asks the others for words that nobody has, so the sum would be this client's vector."""
    words = {"ask": "heavy_hitters", "column": "word", "alphabet": "abcd", "length": 2, "most": 1}
    more: dict[str, Any] = {"epsilon": None, "rows": 1, "questions": {"words": words}}
    app, grid = signed_grid(tmp_path, "pw_encrypt", **more)
    for n, word in enumerate(WORDS):
        (tmp_path / f"site-{n}.csv").write_text(f"word\n{word}\n")

    def lied(message: Any) -> Any:
        asks = message.has_content() and COMMON in message.content
        if asks and lies and message.metadata.dst_node_id != 102:
            _, _, fields = from_addressed_records(message.content)
            if fields["step"] == 2:
                prefixes = json.dumps({"words": [["c", "d"]]})
                message.content[COMMON] = common_record({**fields, "prefixes": prefixes})
        return message

    grid.tamper = lied
    folder = context(0, {"folder": str(tmp_path / "answer")}, {})
    if lies:
        with pytest.raises(RunFailed, match="the round is void"):
            serve(app, grid, folder)
    else:
        assert serve(app, grid, folder)["words"].value == pytest.approx(2, abs=0.01)


def test_a_client_gives_no_more_reports_than_the_question_has_rounds(tmp_path: Path) -> None:
    file = file_of("dp_encrypt", epsilon=2.0)
    over_flower(file, tmp_path)
    (tmp_path / "answer").rename(tmp_path / "first")
    with pytest.raises(Exception, match="own log says why"):
        over_flower(file, tmp_path)


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize(
    ("protection", "phase", "left"), [("dp_encrypt", "report", 2), ("pw_encrypt", "masked", 1)]
)
def test_a_client_answers_no_second_time_after_the_server_was_killed(
    protection: str, phase: str, left: int, tmp_path: Path
) -> None:
    """The others answer again, and under another name all clients do."""
    finite = {} if protection == "pw_encrypt" else {"epsilon": 300.0}
    file, app = file_of(protection, **finite), tmp_path / "app"
    write_app(app, deployable(file))
    grid = SiteGrid(app, tmp_path)

    def killed(message: Any) -> Any:
        replies = [r for r in grid.replies if r.metadata.message_type == f"train.{phase}"]
        if len(replies) == left:
            raise Killed
        return message

    grid.tamper = killed
    with pytest.raises(Killed):
        serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))
    grid = SiteGrid(app, tmp_path)
    again = serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))
    assert again.reports == SITES - left
    write_app(tmp_path / "renamed", deployable(file.with_(name="once-more")))
    grid = SiteGrid(tmp_path / "renamed", tmp_path)
    renamed = serve(tmp_path / "renamed", grid, context(0, {"folder": str(tmp_path / "other")}, {}))
    assert renamed.reports == SITES


def test_a_client_s_own_limit_holds_against_the_server(tmp_path: Path) -> None:
    file = file_of("dp_encrypt", epsilon=2.0)
    app = tmp_path / "app"
    write_app(app, deployable(file))
    grid = SiteGrid(app, tmp_path)
    for held in grid.contexts.values():
        held.node_config["max-epsilon"] = 1.0
    with pytest.raises(Exception, match="own log says why"):
        serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))


def test_a_limit_that_comes_between_two_rounds_does_not_count_from_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both rounds together cost epsilon 300, and each alone less than the limit of 250."""
    words = {"ask": "heavy_hitters", "column": "word", "alphabet": "ab", "length": 2, "most": 1}
    app = tmp_path / "app"
    write_app(app, deployable(file_of("dp_encrypt", epsilon=300.0, questions={"words": words})))
    grid, late = SiteGrid(app, tmp_path), 101
    for n in range(SITES):
        (tmp_path / f"site-{n}.csv").write_text("word\naa\n")

    def limited(message: Any) -> Any:
        if message.has_content() and COMMON in message.content:
            _, _, fields = from_addressed_records(message.content)
            for node, first in ((late, 2), (104, 1)):
                if fields["step"] == first:
                    grid.contexts[node].node_config["max-epsilon"] = 250.0
        return message

    grid.tamper = limited
    answers = serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))
    assert answers.reports == SITES
    refused = [r.metadata.src_node_id for r in grid.replies if not r.has_content()]
    assert sorted(refused) == [late, 104]
    said = "\n".join(record.message for record in caplog.records)
    assert said.count("has given 1 report of this job without a limit") == 1
    assert said.count("one more report would bring this client to") == 1


@pytest.mark.parametrize(
    ("protection", "unit", "why"),
    [
        ("central_gaussian", "client", "under central_gaussian the server itself adds the noise"),
        ("pw_encrypt", "client", "under pw_encrypt the server itself adds the noise"),
        ("dp_encrypt", "row", "its epsilon is for one of them"),  # client 2 has three rows
    ],
)
def test_a_client_with_a_limit_answers_a_question_beyond_it_only_if_its_own_copy_says_so(
    protection: str, unit: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A lying server could read the sum or every vector, or make it a limit for each row."""
    app, own = tmp_path / "app", tmp_path / "own.yaml"
    file = file_of(protection, epsilon=2.0, unit=unit, answer_s=0.1)
    own.write_text(file.to_yaml())
    write_app(app, deployable(file))
    grid = SiteGrid(app, tmp_path)
    for held in grid.contexts.values():
        held.node_config["max-epsilon"] = 2.5
    with pytest.raises(RunStopped, match="0 of 5 clients were connected"):
        serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))
    assert why in caplog.text
    for held in grid.contexts.values():
        held.node_config["question"] = str(own)
    answers = serve(app, grid, context(0, {"folder": str(tmp_path / "other")}, {}))
    assert answers.reports == SITES


def test_a_server_cannot_lie_about_the_number_of_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each client's share of the noise would be that of one among thousands."""
    app, own = tmp_path / "app", tmp_path / "own.yaml"
    more: dict[str, Any] = {"epsilon": 2.0, "rows": 1, "answer_s": 0.1}
    write_app(app, deployable(file_of("distributed_dp", clients=5000, **more)))
    for stated, said in ((SITES, "clients is 5000, and 5 in the own"), (None, "does not state")):
        own.write_text(file_of("distributed_dp", clients=stated, **more).to_yaml())
        grid = SiteGrid(app, tmp_path)
        for held in grid.contexts.values():
            held.node_config["question"] = str(own)
        with pytest.raises(RunStopped, match="0 of 5000 clients were connected"):
            serve(app, grid, context(0, {"folder": str(tmp_path / f"answer-{stated}")}, {}))
        assert said in caplog.text


MEAN = {"ask": "mean", "column": "age", "range": [0.0, 90.0]}
AGREED = {"old": {"ask": "count", "where": "age >= 65"}, "age": MEAN, "all": {"ask": "count"}}


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        (
            {name: AGREED[name] for name in ("age", "all", "old")},
            "questions is in the order ['age', 'all', 'old'], and in the order ['old', 'age', 'all'"
            "] in the own copy",
        ),
        (
            {**AGREED, "age": {**MEAN, "range": [-0.0, 90.0]}},
            "questions.age.range is [-0.0, 90.0], and [0.0, 90.0] in the own copy",
        ),
    ],
)
def test_an_agreed_file_that_is_written_otherwise_gets_no_second_answer(
    questions: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has another digest, so the client's limit and its reports would count from zero."""
    file, other = (
        file_of("dp_encrypt", epsilon=2.0, answer_s=0.1, questions=asked)
        for asked in (AGREED, questions)
    )
    assert other == file
    (tmp_path / "own.yaml").write_text(file.to_yaml())

    def grid(name: str, asked: QuestionFile) -> SiteGrid:
        write_app(tmp_path / name, deployable(asked))
        found = SiteGrid(tmp_path / name, tmp_path)
        for held in found.contexts.values():
            own = {"question": str(tmp_path / "own.yaml"), "max-epsilon": 2.0}
            held.node_config.update(own)
        return found

    app = grid("app", file)
    first = serve(tmp_path / "app", app, context(0, {"folder": str(tmp_path / "answer")}, {}))
    assert first.reports == SITES
    app = grid("other", other)
    with pytest.raises(RunStopped, match="0 of 5 clients were connected"):
        serve(tmp_path / "other", app, context(0, {"folder": str(tmp_path / "again")}, {}))
    assert said in caplog.text


def test_unusable_rows_are_reported_as_zero_under_a_guarantee(tmp_path: Path) -> None:
    file = file_of("dp_encrypt", epsilon=500.0)
    app = tmp_path / "app"
    write_app(app, deployable(file))
    grid = SiteGrid(app, tmp_path)
    (tmp_path / "site-2.csv").write_text("age\nmany\n")
    answers = serve(app, grid, context(0, {"folder": str(tmp_path / "answer")}, {}))
    assert answers.reports == SITES
    assert np.isfinite(answers["old"].value)


def test_absent_clients_and_unfit_settings_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=r"3 of 5 clients were connected within answer_s = 0\.1"):
        over_flower(file_of("not_encrypt", answer_s=0.1), tmp_path, sites=range(3))
    with pytest.raises(DeploymentError, match="fidelity = 'aggregate' is a simulation"):
        deployable(file_of("oue", epsilon=1.0, rows=1, fidelity="aggregate"))
    other = file_of("not_encrypt", confidence=0.9)
    with pytest.raises(DeploymentError, match=r"already holds question\.yaml with other content"):
        write_app(tmp_path / "app", deployable(other))
