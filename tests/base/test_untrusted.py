"""Every file that a stranger may have made is opened by one helper, and refused in one sentence."""

from __future__ import annotations

import ast
import io
import os
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from data_files import TINY_SET
from fedveil.base.untrusted import (
    check_regular,
    ends_whole,
    escaped,
    lines,
    opened,
    read_bytes,
    read_text,
)
from fedveil.data import femnist, image_folder, purchase100, text_folder
from fedveil.data.idx import read_idx
from fedveil.data.npz_archive import read_npz
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.errors import (
    CertificateError,
    DataUnavailable,
    FedveilError,
    JobError,
    ModelInvalid,
    RunFolderError,
)
from fedveil.federated.job import Job
from fedveil.language import text
from fedveil.link.tls import named_in
from fedveil.pages.read_run import read_run
from fedveil.pretrained.model_folder import ModelFolder
from fedveil.record.event_log import anchors, faults
from fedveil.record.finding_lines import add_finding, read_findings
from fedveil.record.model_file import read_model
from fedveil.record.recorder import Metrics
from fedveil.record.run_folder import RunFolder
from fedveil.record.saved_job import look_where_a_run_looked, reopen
from fedveil.record.started_rounds import Attempts
from fedveil.tasks.tables import table_file
from fedveil.tasks.tables.table_file import Wanted
from fedveil.vertical import noisy_labels, tensor_fields
from folders import ROOT
from hostile_files import HOSTILE, bounded, pipe

SOURCE = ROOT / "src" / "fedveil"


def test_a_file_is_read_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"first\n")
    link.symlink_to(file)
    assert read_bytes(link, 6) == b"first\n"
    with opened(link, 6) as stream, file.open("ab") as more:
        more.write(b"second\n" * 100_000)
        more.flush()
        assert stream.read(4) == b"firs"
        assert stream.read() == b"t\n"
        assert stream.read() == b""
        stream.seek(0)
        assert list(stream) == [b"first\n"]


def test_files_of_the_system_which_have_no_size_are_empty() -> None:
    assert read_bytes("/proc/self/pagemap", 1 << 20) == b""
    assert Path("/proc/self/maps").read_bytes() != b""
    assert read_text("/proc/self/maps", 1 << 20) == ""


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1001))
    assert len(read_bytes(file, 1001)) == 1001
    with pytest.raises(OSError, match="it has 1,001 bytes; the limit is 1,000"):
        read_bytes(file, 1000)
    with pytest.raises(OSError, match="it has 1,001 bytes; the limit is 1,000"):
        check_regular(file, 1000)


def test_a_file_ends_whole_if_its_last_line_does(tmp_path: Path) -> None:
    for content, whole in ((b"", True), (b"a", False), (b"\n", True), (b"a\nb", False),
                           (b"a\nb\n", True)):  # fmt: skip
        (tmp_path / "log").write_bytes(content)
        assert ends_whole(tmp_path / "log", 9) == whole, content


def test_characters_that_control_a_terminal_are_shown_as_text() -> None:
    shown = {"\t", "\n", "\xa0", "\u2065", "\u206a", "\u061b", "\u2027", "\u202f", "é", "𐀀"}
    assert {one for one in shown if escaped(one) != one} == set()
    borders = "\x00\x08\x0b\x0c\r\x1b\x1f\x7f\x9f\u061c\u200e\u200f\u2028\u202e\u2066\u2069"
    for one in [*borders, "\ud800", "\udfff", "\ufffe", "\uffff"]:
        assert escaped(f"a{one}b") == f"a{one.encode('unicode_escape').decode()}b"


def test_a_line_is_read_up_to_its_limit() -> None:
    class Counted(io.StringIO):
        most = 0

        def readline(self, size: int | None = -1, /) -> str:
            line = super().readline(size)
            self.most = max(self.most, len(line))
            return line

    text = Counted("ab\ncd\n" + "e" * 5_000)
    assert list(islice(lines(text, 3), 2)) == ["ab\n", "cd\n"]
    text.seek(0)
    with pytest.raises(ValueError, match="line 3 has more than 3 characters"):
        list(lines(text, 3))
    assert text.most == 4


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a" * 5_000])
def test_a_name_that_no_file_has_is_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"null|surrogates|File name too long"):
        read_bytes(tmp_path / name, 1)
    with pytest.raises(DataUnavailable):
        text.read(tmp_path / name)
    with pytest.raises(DataUnavailable):
        table_file.read(str(tmp_path / name), Wanted("id"))
    with pytest.raises(JobError):
        Job.load(tmp_path / name)


def test_neither_a_folder_nor_a_socket_is_read(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path, 1)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="it is a socket, not a regular file"):
            read_bytes(tmp_path / "s", 1)


def test_a_pipe_that_takes_a_files_place_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swap the file after it was looked at and before it is opened."""
    file, real = tmp_path / "file", os.open
    file.write_bytes(b"as it was")

    def swapped(path: Any, *rest: Any) -> int:
        file.unlink()
        pipe(file)
        return real(path, *rest)

    monkeypatch.setattr(os, "open", swapped)
    with bounded(), pytest.raises(OSError, match="it is a named pipe"):
        read_bytes(file, 100)


# --- each kind of file ---


def run_with(name: str, make: Callable[[Path], None], folder: Path) -> Path:
    """Make a run's folder in which one file is replaced."""
    run = folder / "run"
    (run / "checkpoint").mkdir(parents=True)
    (run / "job.yaml").write_text("name: x\n")
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    make(run / name)
    return run


def plain(read: Callable[[Path], object]) -> Callable[[Any, Path], object]:
    """Read a file of any name."""

    def with_made(make: Callable[[Path], None], folder: Path) -> object:
        make(folder / "file")
        return read(folder / "file")

    return with_made


def within(name: str, read: Callable[[Path], object]) -> Callable[[Any, Path], object]:
    """Read a run's folder that holds the file by that name."""
    return lambda make, folder: read(run_with(name, make, folder))


def named(name: str, read: Callable[[Path], object]) -> Callable[[Any, Path], object]:
    """Read a file of that name."""

    def with_made(make: Callable[[Path], None], folder: Path) -> object:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        make(folder / name)
        return read(folder / name)

    return with_made


def reopened(run: Path) -> object:
    (run / "imports.txt").touch()
    with ExitStack() as stack:
        return reopen(run, Job.load, stack)


def vouched(run: Path) -> object:
    return Metrics.vouched(RunFolder(run, None), 1, "")  # type: ignore[arg-type]


def own_folder(run: Path) -> RunFolder:
    return RunFolder(run, None)  # type: ignore[arg-type]


IMAGES = TINY_SET.files[0]
READERS: dict[str, tuple[type[FedveilError], Callable[[Any, Path], object]]] = {
    "job": (JobError, plain(Job.load)),
    "csv": (DataUnavailable, named("t.csv", lambda p: table_file.read(str(p), Wanted("id")))),
    "parquet": (DataUnavailable, named("t.parquet", lambda p: table_file.header(str(p)))),
    "npz": (DataUnavailable, plain(lambda p: read_npz(p, "x"))),
    "idx": (DataUnavailable, plain(lambda p: read_idx(p, IMAGES))),
    "purchase": (DataUnavailable, plain(purchase100._read_text)),
    "femnist": (DataUnavailable, plain(femnist._read_file)),
    "image": (DataUnavailable, plain(lambda p: image_folder._decoded(p, None))),
    "texts": (
        DataUnavailable,
        plain(lambda p: list(text_folder._lines(p, "next_token", apart=False))),
    ),
    "config": (ModelInvalid, named("m/config.json", lambda p: ModelFolder(p.parent).config)),
    "tokens": (
        ModelInvalid,
        named("m/tokenizer.json", lambda p: ModelFolder(p.parent).read_tokenizer()),
    ),
    "text": (DataUnavailable, named("a/b.txt", lambda p: text.read(p.parent))),
    "certificate": (
        CertificateError,
        named("certificate.pem", lambda p: named_in(p.parent, ("left",))),
    ),
    "model": (ModelInvalid, plain(lambda p: read_model(p, nn.Linear(2, 3)))),
    "labels": (RunFolderError, plain(lambda p: noisy_labels.kept(p, None, 2))),  # type: ignore[arg-type]
    "checkpoint": (
        RunFolderError,
        within("checkpoint/latest", lambda r: Checkpoint.read(own_folder(r))),
    ),
    "begun": (RunFolderError, within("checkpoint/begun", lambda r: Attempts(own_folder(r), 1))),
    "began": (RunFolderError, within("checkpoint/job.yaml", reopened)),
    "imports": (RunFolderError, within("imports.txt", look_where_a_run_looked)),
    "metrics": (RunFolderError, within("metrics.jsonl", read_run)),
    "vouched": (RunFolderError, within("metrics.jsonl", vouched)),
    "events": (RunFolderError, within("events.log", read_run)),
    "findings": (RunFolderError, within("attacks.jsonl", read_run)),
    "findings alone": (RunFolderError, within("attacks.jsonl", read_findings)),
    "log": (RunFolderError, within("events.log", lambda r: faults(r / "events.log"))),
    "chain": (RunFolderError, within("events.chain", lambda r: faults(r / "events.log"))),
    "other log": (RunFolderError, plain(lambda p: list(anchors(p)))),
    "added": (RunFolderError, within("attacks.jsonl", lambda r: add_finding(own_folder(r), None))),  # type: ignore[arg-type]
    "accounts": (RunFolderError, within("accounts.jsonl", read_run)),
    "compared": (RunFolderError, within("before-after.jsonl", read_run)),
    "state": (RunFolderError, within("clients/3-4", lambda r: ClientStates(r).load(3, 5, 2))),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_its_kind_is_refused(reader: str, hostile: str, tmp_path: Path) -> None:
    error, read = READERS[reader]
    make, reason = HOSTILE[hostile]
    with bounded(), pytest.raises(error) as caught:
        read(make, tmp_path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_party_goes_on_from_a_file_alone(hostile: str, tmp_path: Path) -> None:
    make, reason = HOSTILE[hostile]
    make(tmp_path / "000000003")
    with bounded(), pytest.raises(OSError, match=reason):
        tensor_fields.read(tmp_path / "000000003")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_job_of_a_run_is_a_file(hostile: str, tmp_path: Path) -> None:
    run = run_with("job.yaml", HOSTILE[hostile][0], tmp_path)
    with bounded(), pytest.raises((RunFolderError, JobError), match=r"is not a run's|it has 8,796"):
        read_run(run)


# --- nothing else opens a file ---

#: Where a file is opened otherwise, how often, and why.
ELSEWHERE = {
    "base/untrusted.py": (1, "the helper itself"),
    "base/files.py": (4, "two new files, a file that is changed in place, a file that is synced"),
    "record/model_file.py": (1, "safetensors opens the file; the helper has looked at it"),
    "link/tls.py": (1, "OpenSSL opens the files; the helper has read both"),
    "data/digits.py": (1, "a file of scikit-learn"),
    "data/purchase100.py": (1, "NumPy reads the lines that the helper gives"),
    "vertical/predictions.py": (3, "new files, which are never opened where one is"),
    "vertical/scoring/predicted.py": (1, "a new file, which is never opened where one is"),
    "flower/sealed_state.py": (1, "a key in a folder that is the user's alone"),
    "site/code_child.py": (1, "bytes in memory, from the site's own reader, without objects"),
    "starter/__init__.py": (1, "a template of this package"),
    "starter/vertical_tables.py": (1, "a script that a user runs in a folder of his own"),
    "engine/known_accuracy.py": (1, "a table of this package"),
    "engine/cluster/machine.py": (1, "a proof that this run wrote itself, on a shared folder"),
    "engine/cluster/machine_check.py": (2, "this package's own sources, and a round's opening"),
    "pages/dossier/dossier_folder.py": (1, "a script of this package"),
    "pages/dossier/recompute.py": (1, "a script that a reviewer runs on a record, without fedveil"),
    "pages/page.py": (1, "the script and the style of this package"),
    "pages/page_files.py": (1, "the first bytes of a plain file that a page would replace"),
    "learning/device.py": (1, "/proc/meminfo"),
    "cli/standard_output.py": (1, "/dev/null"),
}
_READING = {"read_bytes", "read_text", "load_file", "load_cert_chain", "loadtxt", "genfromtxt"}
_BY_OWNER = {"np.load", "np.fromfile", "os.open", "io.open", "gzip.open"}


def opens(call: ast.Call) -> bool:
    """Return True if a call opens a file by itself, as far as its name and arguments tell."""
    match call.func:
        case ast.Name("open"):
            return True
        case ast.Attribute(ast.Name(owner), name) if f"{owner}.{name}" in _BY_OWNER:
            return True
        case ast.Attribute(_, name) if name in _READING:
            return True
        case ast.Attribute(_, "open"):  # of a path: its arguments are modes
            return all(isinstance(a, ast.Constant | ast.IfExp) for a in call.args)
    return False


def test_every_other_place_that_opens_a_file_is_known() -> None:
    found = {}
    names = {"open", *_READING, *(name.split(".")[1] for name in _BY_OWNER)}
    called = re.compile(rf"\b({'|'.join(names)})\(")
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if not called.search(text):  # it takes a second to parse all
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        many = sum(map(opens, calls))
        if many:
            found[path.relative_to(SOURCE).as_posix()] = many
    assert found == {name: many for name, (many, why) in ELSEWHERE.items() if why}


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("open(path)", True), ("path.open()", True), ("path.open('rb')", True),
        ("(a / b).read_text('utf-8')", True), ("np.load(path)", True), ("os.open(p, 0)", True),
        ("training.open(round, model)", False), ("opened(path, 1)", False),
        ("read_bytes(path, 1)", False),
    ],
)  # fmt: skip
def test_a_place_that_opens_a_file_is_noticed(line: str, is_one: bool) -> None:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert opens(call) is is_one
