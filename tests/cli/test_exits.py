"""How every command ends: its exit code, its one sentence, and what it prints literally."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import typer

import fedveil
from cold_commands import Case, End, ends
from fedveil import __main__
from fedveil.base import plain_text
from fedveil.cli import exits, layers, path_argument
from fedveil.cli import main as cli
from fedveil.cli.exits import Exit
from fedveil.federated.job import Job
from fedveil.vertical.job import VerticalJob
from folders import DOCS

Command = Callable[..., tuple[int, str, str]]


def commands(
    group: click.Command | None = None, name: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that there is, with its words."""
    group = group or typer.main.get_command(cli.app)
    if not isinstance(group, click.Group):
        yield name, group
        return
    for word, command in group.commands.items():
        yield from commands(command, (*name, word))


COMMANDS = dict(commands())
NAMES = list(COMMANDS)
TAKE_JOBS = [
    ("run",), ("budget",), ("deploy", "app"), ("job", "show"), ("vertical", "run"),
    ("vertical", "show"), ("vertical", "leader", "--listen", "127.0.0.1:0", "--insecure"),
    ("vertical", "follower", "--connect", "127.0.0.1:9", "--insecure"),
]  # fmt: skip


def test_the_exit_codes_are_those_of_the_page() -> None:
    rows = re.findall(
        r"^\| (\d+) \|", (DOCS / "when-something-fails.md").read_text("utf-8"), re.MULTILINE
    )
    assert list(map(int, rows)) == [code.value for code in Exit] == [0, 1, 2, 129, 130, 143]


@pytest.mark.parametrize("name", NAMES, ids=" ".join)
def test_help_says_what_every_argument_is(command: Command, name: tuple[str, ...]) -> None:
    """click 8.5 drops the help of arguments under Flower's typer: its extra bounds click."""
    code, out, _ = command(*name, "--help")
    assert code == Exit.DONE
    said = " ".join(re.sub("[│╭╮╰╯─*]", " ", out).split())
    for parameter in COMMANDS[name].params:
        text = getattr(parameter, "help", None)
        assert text, f"{parameter.name} has no help"
        assert " ".join(text.split()) in said


@pytest.mark.parametrize("name", NAMES, ids=" ".join)
def test_an_option_that_is_not_there_is_wrong_usage(
    command: Command, name: tuple[str, ...]
) -> None:
    code, out, err = command(*name, "--zzz")
    assert (code, out) == (Exit.WRONG, "")
    assert err == (
        f"error: there is no option --zzz; `fedveil {' '.join(name)} --help` lists what there is\n"
    )


@pytest.mark.parametrize("name", NAMES, ids=" ".join)
def test_ctrl_c_ends_every_command_alike(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: tuple[str, ...]
) -> None:
    def interrupted(self: click.Command, context: click.Context) -> None:
        end = KeyboardInterrupt()
        end.add_note("it goes on thus")
        raise end

    needed = {
        ("deploy",): ["app"], ("init",): ["x"], ("identity",): ["x"],
        ("data", "fetch"): ["mnist"], ("job", "convert"): ["x"],
        ("vertical", "evaluate"): ["x"], ("vertical", "predict"): ["x"],
        ("vertical", "generate"): ["x"], ("vertical", "leader"): ["--listen", "x"],
        ("vertical", "follower"): ["--connect", "x"],
        ("vertical", "certificates"): ["x", "--party", "y"],
    }  # fmt: skip
    # The consoles and the code around are real; only the command itself is cut off at once.
    monkeypatch.setattr(click.Command, "invoke", interrupted)
    code, out, err = command(*name, *needed.get(name, []))
    assert (code, out, err) == (Exit.INTERRUPTED, "", "interrupted; it goes on thus\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_a_command_is_treated_like_ctrl_c(
    number: signal.Signals, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: click.Command, context: click.Context) -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as end:
            end.add_note("it goes on thus")
            raise

    monkeypatch.setattr(click.Command, "invoke", interrupted)
    told = f"interrupted by {number.name}; it goes on thus\n"
    assert command("audit") == (128 + number, "", told)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_under_nohup_a_closed_terminal_does_not_end_a_command(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        click.Command, "invoke", lambda self, context: signal.raise_signal(signal.SIGHUP)
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert command("audit") == (Exit.DONE, "", "")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def hear_interrupts() -> None:
    """A process that a shell starts in the background ignores interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_at_a_process(tmp_path: Path) -> None:
    begin = "import fedveil.cli.main; print('there', flush=True); fedveil.cli.main.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", begin, "audit", "--trials", "100000000"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PATH": "", "PYTHONUNBUFFERED": "1"},
        preexec_fn=hear_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    subprocess.run(
        [sys.executable, "-c", "import fedveil.cli.audit_cases"], check=True, cwd=tmp_path
    )  # by then it is at work, or will be interrupted while it imports what it needs
    err = ""
    try:
        for _ in range(2):  # llvmlite loses an interrupt that falls into one of its callbacks
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                _, err = process.communicate(timeout=20)
                break
    finally:
        process.kill()
    assert process.returncode == Exit.INTERRUPTED
    assert err.endswith("interrupted\n")


def _is_interrupted(folder: Path, program: str, code: int = Exit.INTERRUPTED) -> None:
    """The program ends as one that Ctrl-C has met."""
    (folder / "cut.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "-m", "cut", "budget"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (code, "interrupted\n")


def test_ctrl_c_while_the_program_is_imported(tmp_path: Path) -> None:
    _is_interrupted(
        tmp_path,
        "import sys\nfrom fedveil.__main__ import main\n"
        "class Cut:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'fedveil.cli.exits':\n"
        "            exec('raise KeyboardInterrupt')\n"
        "sys.meta_path.insert(0, Cut())\nmain()\n",
    )


def test_ctrl_c_before_a_command_is_found(tmp_path: Path) -> None:
    _is_interrupted(
        tmp_path,
        "import typer.main\nfrom fedveil.cli.main import main\n"
        "typer.main.get_command = lambda app: exec('raise KeyboardInterrupt')\nmain()\n",
    )


def test_ctrl_c_while_text_is_executed(tmp_path: Path) -> None:
    _is_interrupted(
        tmp_path,
        "import click\nfrom fedveil.cli.main import main\n"
        "click.Command.invoke = lambda self, context: exec('raise KeyboardInterrupt')\nmain()\n",
    )


@pytest.mark.parametrize("where", ["while it says so", "while it exits"])
def test_an_impatient_ctrl_c_shows_no_traceback(tmp_path: Path, where: str) -> None:
    """A shell shows both ends as 130. Python would print a traceback for the second Ctrl-C."""
    again = "os.kill(os.getpid(), signal.SIGINT)"
    exits = where == "while it exits"
    second = (
        f"atexit.register(lambda: {again})"
        if exits
        else f"said = exits.remark\nexits.remark = lambda text: ({again}, said(text))"
    )
    _is_interrupted(
        tmp_path,
        "import atexit, os, signal, click\nfrom fedveil.__main__ import main\n"
        "from fedveil.cli import exits\n"
        # A program in the background ignores Ctrl-C, and so do the programs that it starts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "click.Command.invoke = lambda self, context: exec('raise KeyboardInterrupt')\n"
        f"{second}\nmain()\n",
        -signal.SIGINT if exits else Exit.INTERRUPTED,
    )


@pytest.mark.parametrize("arguments", TAKE_JOBS, ids=" ".join)
def test_a_wrong_job_is_wrong_usage(command: Command, arguments: tuple[str, ...]) -> None:
    code, out, err = command(*arguments, "--set", "nonsense=1")
    assert (code, out) == (Exit.WRONG, "")
    assert err.startswith("error: nonsense = 1 is not a known key; the keys are name, seed")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("audit", "--trials", "1"), Exit.WRONG, "Invalid value for '--trials': 1 is not in the"),
        (("deploy",), Exit.WRONG, "Missing argument 'DIRECTORY'"),
        (("ask",), Exit.WRONG, "Missing argument 'QUESTION'; `fedveil ask --help` lists what"),
        (("runn",), Exit.WRONG, "there is no command runn (did you mean run or runs?)"),
        (("--rounds", "3"), Exit.WRONG, "there is no option --rounds; `fedveil --help` lists"),
        (
            ("run", "--rounds", "3"),
            Exit.WRONG,
            "there is no option --rounds; --set rounds=VALUE sets a key of the job; `fedveil run",
        ),
        (
            ("run", "--lr", "3"),
            Exit.WRONG,
            "there is no option --lr; --set training.lr=VALUE or --set server.lr=VALUE sets a key",
        ),
        (("budget", "--protection", "rr"), Exit.WRONG, "there is no option --protection; --set p"),
        (
            ("deploy", "app", "--clients", "3"),
            Exit.WRONG,
            "there is no option --clients; --set clients.number=VALUE sets",
        ),
        (
            ("vertical", "run", "--epochs", "3"),
            Exit.WRONG,
            "there is no option --epochs; --set epochs=VALUE sets a key of the job; `fedveil verti",
        ),
        (
            ("run", "model=resnet18"),
            Exit.WRONG,
            "model=resnet18 cannot be read: No such file or directory; --set model=resnet18 sets a",
        ),
        (
            ("data", "fetch", "mnits"),
            Exit.WRONG,
            "there is no data set mnits (did you mean mnist?)",
        ),
        (
            ("run", "--set", "rounds", "3"),
            Exit.WRONG,
            "--set rounds 3 must be written --set rounds=3",
        ),
        (
            ("run", "job.yaml", "--set", "rounds", "3"),
            Exit.WRONG,
            "--set rounds 3 must be written --set rounds=3",
        ),
        (
            ("run", "--epsilon", "2"),
            Exit.WRONG,
            "there is no option --epsilon; --set protection.distributed_dp.target_epsilon=VALUE or",
        ),
        (
            ("run", "--batch-size", "7"),
            Exit.WRONG,
            "there is no option --batch-size; --set training.batch_size=VALUE sets a key",
        ),
        (
            ("budget", "--target", "2"),
            Exit.WRONG,
            "there is no option --target (did you mean --target-epsilon?)",
        ),
        (("report", "x", "--epsilon"), Exit.WRONG, "there is no option --epsilon; `fedveil report"),
        (
            ("vertical", "show", "--set", "epochs", "3"),
            Exit.WRONG,
            "--set epochs 3 must be written --se",
        ),
        (("init", ""), Exit.WRONG, "Invalid value for 'DIRECTORY': an empty text names no"),
        (("deploy", ""), Exit.WRONG, "Invalid value for 'DIRECTORY': an empty text names no"),
        (("site", "init", ""), Exit.WRONG, "Invalid value for 'SITE': an empty text names no"),
        (("run", "--out", ""), Exit.WRONG, "Invalid value for '--out': an empty text names no"),
        (("run", "--resume", ""), Exit.WRONG, "Invalid value for '--resume': an empty text na"),
        (("audit", ""), Exit.WRONG, "Invalid value for '[RUN]': an empty text names no file"),
        (
            ("vertical", "certificates", "", "--party", "a"),
            Exit.WRONG,
            "Invalid value for 'DIRECTORY': an empty text names no file or folder; write . for",
        ),
        (("init", "x", "--template", ""), Exit.WRONG, "--template '' is not one of image, "),
        (("init", "x", "--template", "imag"), Exit.WRONG, "--template imag is not one of image, "),
        (("run", "--set", "data=mnist"), Exit.WRONG, "data = 'mnist' is not a block of keys; its "),
        (("run", "--resum", "x"), Exit.WRONG, "there is no option --resum (did you mean --resume"),
        (("run", "a.yaml", "b.yaml"), Exit.WRONG, "Got unexpected extra argument (b.yaml)"),
        (
            ("vertical", "follower", "--connect", "127.0.0.1:9"),
            Exit.WRONG,
            "--party is missing: the followers of the job are left, right",
        ),
        (
            ("vertical", "leader", "--listen", "nowhere", "--insecure"),
            Exit.WRONG,
            "--listen = 'nowhere' is not HOST:PORT with a port in [0, 65535]",
        ),
        (
            ("vertical", "leader", "--listen", "127.0.0.1:0"),
            Exit.WRONG,
            "--tls DIR is missing: plaintext needs --insecure",
        ),
        (("data", "fetch", "digits"), Exit.FAILED, "data.name = digits has no download"),
        (("run", "--resume", "nowhere"), Exit.FAILED, "nowhere is not a run's folder"),
        (("vertical", "evaluate", "nowhere"), Exit.FAILED, "nowhere is not a run's folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_goes_wrong_is_one_sentence_and_its_code(
    command: Command, arguments: tuple[str, ...], code: Exit, sentence: str
) -> None:
    found, _, err = command(*arguments)
    assert found == code
    assert err.startswith(f"error: {sentence}")
    assert len(err.splitlines()) == 1


NEED_A_RUN = [
    ("audit",), ("report",), ("watch",), ("run", "--resume"), ("vertical", "run", "--resume"),
    ("vertical", "evaluate"), ("vertical", "predict"), ("vertical", "generate"),
]  # fmt: skip


@pytest.mark.parametrize("words", [*NEED_A_RUN, ("compare", "--resume")], ids=" ".join)
def test_what_is_no_runs_folder_is_told_so(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    held, what = ("job.yaml", "a run's") if words in NEED_A_RUN else ("comparison.yaml", "a compar")
    (tmp_path / held).touch()
    for name, why in (
        ("nowhere", "there is no such folder"),
        ("file", "it is a file"),
        ("empty", f"it has no {held}"),
        (f"./{held}", "it is a file. Its folder is ."),
    ):
        code, out, err = command(*words, name)
        assert (code, out) == (Exit.FAILED, ""), name
        assert err.startswith(f"error: {Path(name)} is not {what}")
        assert err.endswith(f" folder: {why}\n")


@pytest.mark.parametrize(
    "words",
    [("run",), ("budget",), ("compare",), ("job", "show"), ("job", "convert"), ("vertical", "show"),
     ("deploy", "app")],
    ids=" ".join,
)  # fmt: skip
def test_a_folder_in_place_of_a_jobs_file_is_told_so(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "folder").mkdir()
    said = "error: folder is a folder, not a job file"
    assert command(*words, "folder") == (Exit.WRONG, "", f"{said}\n")
    (tmp_path / "folder" / "job.yaml").write_text("name: x\n")
    assert command(*words, "folder")[2] == f"{said}: its job is folder/job.yaml\n"


@pytest.mark.parametrize(
    "words",
    [("init",), ("deploy",), ("vertical", "certificates", "--party", "a"),
     ("reproduce", "signds-table", "--scale", "small", "--out"),
     ("attack", "distinguish", "--set", "model=logistic", "--out")],
    ids=" ".join,
)  # fmt: skip
def test_a_file_where_a_folder_is_to_be_made_is_told_so(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/in/it"):
        code, _, err = command(*words, place)
        assert code == Exit.FAILED
        assert err.endswith(f"error: {place} cannot be written: file is a file, not a folder\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_job_of_the_other_kind_is_told_its_command(command: Command, tmp_path: Path) -> None:
    (tmp_path / "split.yaml").write_text("name: x\nepochs: 2\ntask: tables\n")
    (tmp_path / "federated.yaml").write_text("name: x\nrounds: 2\nmodel: mlp\n")
    (tmp_path / "neither.yaml").write_text("name: x\ntask: tables\nrunds: 2\n")
    split, whole = "is a vertical job.", "is a federated job."
    for words, kind, advice in (
        (("run",), split, "Run it with: fedveil vertical run"),
        (("budget",), split, "Run it with: fedveil vertical run"),
        (("job", "show"), split, "Show it with: fedveil vertical show"),
        (("vertical", "run"), whole, "Run it with: fedveil run"),
        (("vertical", "show"), whole, "Show it with: fedveil job show"),
    ):
        name = "split.yaml" if kind == split else "federated.yaml"
        assert command(*words, name) == (2, "", f"error: {name} {kind} {advice} {name}\n")
        run = tmp_path / f"run of {name}"
        run.mkdir(exist_ok=True)
        (run / "job.yaml").write_text((tmp_path / name).read_text())
        said = f"error: {run.name}/job.yaml {kind} {advice} '{run.name}/job.yaml'\n"
        assert command(*words, run.name) == (2, "", said)
    for words, name in ((("vertical", "show"), "split.yaml"), (("job", "show"), "federated.yaml")):
        assert command(*words, f"run of {name}/job.yaml")[0] == 0
    both = "fedveil vertical leader or follower"
    told = f"error: split.yaml {split} Parties run: {both} split.yaml\n"
    assert command("deploy", "app", "split.yaml") == (2, "", told)
    assert "vertical job" not in command("run", "neither.yaml")[2]
    federated = "error: federated.yaml is a federated job. "
    assert (
        command("ask", "federated.yaml")[2]
        == f"{federated}Run it with: fedveil run federated.yaml\n"
    )
    attack = command("attack", "labels", "federated.yaml")[2]
    assert attack == f"{federated}Attack it with: fedveil attack gradient federated.yaml\n"


def test_a_folder_with_a_job_file_is_no_run_to_resume(command: Command, tmp_path: Path) -> None:
    for name, text in (("run", "rounds: 1\n"), ("vertical run", "epochs: 1\n")):
        (tmp_path / "job.yaml").write_text(text)
        code, _, err = command(*name.split(), "--resume", ".")
        assert code == Exit.FAILED
        assert err == (
            "error: . holds a job file, and no run that could be resumed: start one from job.yaml\n"
        )
        assert {path.name for path in tmp_path.iterdir()} == {"job.yaml", ".lock"}


def test_a_run_of_the_other_kind_is_told_its_command(command: Command, tmp_path: Path) -> None:
    for folder, job in (("a split", VerticalJob()), ("of banks", Job())):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.yaml").write_text(job.to_yaml())
    code, _, err = command("run", "--resume", "a split")
    assert code == Exit.WRONG
    assert err.startswith("error: a split/job.yaml is a vertical job. Resume its run with: ")
    assert err.endswith("fedveil vertical run --resume 'a split'\n")
    assert len(err.splitlines()) == 1
    for words in (("run", "--resume"), ("evaluate",), ("predict",), ("generate",)):
        code, _, err = command("vertical", *words, "of banks")
        assert code == Exit.WRONG
        assert err.startswith("error: of banks/job.yaml is a federated job. Resume its run with: ")
        assert err.endswith("fedveil run --resume 'of banks'\n")
        assert len(err.splitlines()) == 1


MISSING = [
    ("torch", ("run", "--set", "protection=not_encrypt"), "torch"),
    ("torch", ("vertical", "run"), "torch"),
    ("grpc", ("vertical", "follower", "--connect", "127.0.0.1:9", "--insecure"), "vertical"),
    ("grpc", ("vertical", "leader", "--listen", "127.0.0.1:0", "--insecure"), "vertical"),
    ("flwr", ("deploy", "app"), "flower"),
]
NO_TORCH = [
    *((*job, "--set", "nonsense=1") for job in TAKE_JOBS),
    ("--help",),
    ("run", "--help"),
    ("vertical", "leader", "--help"),
    ("init", "made"),
    ("job", "show"),
    ("vertical", "show"),
    ("budget", "--parameters", "651"),
    ("run", "--rounds", "3"),
    ("run", "--resume", "nowhere"),
]


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., End]:
    """The end of a command in a process that has imported nothing before it."""
    folder = str(tmp_path_factory.mktemp("cold"))
    keys = [(words, package) for package, words, _ in MISSING] + [(w, None) for w in NO_TORCH]
    keys.append((("budget",), "torch"))
    found = dict(zip(keys, ends([Case(folder, *key) for key in keys]), strict=True))
    return lambda words, missing=None: found[words, missing]


@pytest.mark.parametrize(("package", "arguments", "extra"), MISSING)
def test_a_missing_package_is_told_with_its_extra(
    cold: Callable[..., End], package: str, arguments: tuple[str, ...], extra: str
) -> None:
    ended = cold(arguments, package)
    assert (ended.code, ended.out) == (Exit.FAILED, "")
    assert ended.err.endswith(
        f" needs the package {package}: pip install 'fedveil[{extra}]' installs it\n"
    )
    assert len(ended.err.splitlines()) == 1


def test_a_budget_without_torch_asks_for_it_or_for_the_number_of_parameters(
    cold: Callable[..., End],
) -> None:
    assert cold(("budget",), "torch").err == (
        "error: counting the model's parameters needs the package torch: pip install "
        "'fedveil[torch]' installs it; or state their number: fedveil budget --parameters N\n"
    )
    ended = cold(("budget", "--parameters", "651"))
    assert (ended.code, ended.err) == (Exit.DONE, "")
    assert "651" in ended.out


@pytest.mark.parametrize("arguments", NO_TORCH, ids=" ".join)
def test_torch_is_not_imported_for_what_needs_none(
    cold: Callable[..., End], arguments: tuple[str, ...]
) -> None:
    ended = cold(arguments)
    assert ended.code in (Exit.DONE, Exit.WRONG, Exit.FAILED)
    assert "fedveil.cli.main" in ended.imported
    assert "torch" not in ended.imported


def test_a_wrong_key_costs_no_import_that_only_a_run_needs(cold: Callable[..., End]) -> None:
    """They would be more than half of what such an end takes, half a second of CPU."""
    for job in TAKE_JOBS:
        imported = cold((*job, "--set", "nonsense=1")).imported
        assert "pydantic" in imported
        late = ("scipy", "cryptography.hazmat.backends.openssl", "fedveil.engine.federation")
        assert not [name for name in late if name in imported]


def test_what_the_program_imports_is_no_garbage_to_look_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedveil", "--version"])
    gc.unfreeze()
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    assert end.value.code == Exit.DONE
    assert capsys.readouterr().out.startswith("fedveil ")


WORDS = "[red]data[/] emo:train :smile:"


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    plain_text.say(WORDS)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row(WORDS)
    plain_text.console().print(table)
    plain_text.remark(WORDS, "error")
    said = capsys.readouterr()
    assert said.out.splitlines() == [WORDS, WORDS]
    assert said.err == f"error: {WORDS}\n"


def test_no_other_console_is_made() -> None:
    source = Path(fedveil.__file__).parent
    makers = [p.name for p in source.rglob("*.py") if re.search(r"Console\(", p.read_text())]
    assert makers == ["plain_text.py"]


def test_names_of_the_users_are_printed_as_they_are(command: Command) -> None:
    assert "data emo:train: " in command("run", "--set", "data.name=emo:train")[2]
    assert ":train:" in command("data", "fetch", ":train:")[2]


@pytest.mark.parametrize("name", [None, "a_package_of_the_user.part"])
def test_an_import_that_no_extra_mends_is_raised(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command and the list of layers import what a user's own module imports too."""

    def broken(*given: object, **named: object) -> None:
        raise ImportError("cannot import name 'own'", name=name)

    app: Any = broken
    with pytest.raises(ImportError, match="'own'"):
        exits._ended(app)
    monkeypatch.setattr("fedveil.engine.trainer_choice.layer_training", broken)
    with pytest.raises(ImportError, match="'own'"):
        layers.remark_layers(Job())


def test_a_question_that_is_missing_is_named_with_its_command(command: Command) -> None:
    code, _, err = command("ask")
    assert code == Exit.WRONG
    assert err == ("error: Missing argument 'QUESTION'; `fedveil ask --help` lists what there is\n")


def test_a_data_set_is_here_or_not(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [
        SimpleNamespace(name=name, origin="of tests", shape=(3, 5), classes=classes, how=how,
                        here=lambda here=here: here)
        for name, classes, how, here in (("one", 7, "load it", True), ("two", 9, "make it", False))
    ]  # fmt: skip
    monkeypatch.setattr("fedveil.data.datasets.available", lambda: known)
    rows = [line.split() for line in command("data", "list")[1].splitlines()[1:]]
    assert rows == [
        ["one", "of", "tests", "3x5", "7", "yes", "load", "it"],
        ["two", "of", "tests", "3x5", "9", "no", "make", "it"],
    ]


def test_every_path_of_a_command_is_read_by_the_same_function() -> None:
    """A path that typer reads by itself takes an empty text for the current folder."""
    bare = re.compile(r"Path\]?(?: \| None)?,\s*typer\.")
    files = [*Path(path_argument.__file__).parent.rglob("*.py")]
    texts = {file.name: file.read_text("utf-8") for file in files}
    assert [name for name, text in texts.items() if bare.search(text)] == []
    assert sum(text.count("path_option(") for text in texts.values()) > 15
