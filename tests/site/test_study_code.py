"""A job's own code trains in a process of its own, which reaches nothing and returns an update."""

from __future__ import annotations

import builtins
import ctypes
import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("flwr")

import hostile_code
from fedveil.base.example_arrays import Targets
from fedveil.base.message import decode, encode
from fedveil.engine.job_protection import make_protection
from fedveil.errors import JobError, SiteRefused
from fedveil.flower.job.client_training import Training
from fedveil.protections.base import RoundContext
from fedveil.site import (
    code_child,
    code_folder,
    code_process,
    isolation,
    namespace_root,
    system_calls,
)
from fedveil.site.code_folder import Module, read
from fedveil.site.code_process import CodeSandbox, CodeTraining, Process
from fedveil.site.door import Door
from fedveil.site.order import read_app
from fedveil.site.policy import Policy
from hostile_orders import own_code_jobs, text_of, with_code
from parts import CLASSES, FEATURES
from site_house import House, app_of_job, digest_of, noised, of_job, training

NET = f"""\
import builtins
from torch import nn

builtins.hostile_code_ran = True


def net():
    return nn.Linear({FEATURES}, {CLASSES})


def rate(round, rounds):
    return 0.5
"""
LIMITS = {"memory": 3 << 30, "seconds": 60.0}


@pytest.fixture(autouse=True)
def own_code() -> Iterator[None]:
    """A site's own process must not import a job's code."""
    builtins.__dict__.pop("hostile_code_ran", None)
    yield
    assert not hasattr(builtins, "hostile_code_ran")


def sandbox(module: Module, means: isolation.Means | None = "namespaces") -> CodeSandbox:
    return CodeSandbox([module], means, **LIMITS)  # type: ignore[arg-type]


def needs(means: isolation.Means) -> None:
    if means not in isolation.working():
        pytest.skip(f"{means} does not work on this system")


@pytest.mark.parametrize(
    "means", ["namespaces", pytest.param("bubblewrap", marks=pytest.mark.slow)]
)
def test_hostile_code_reaches_nothing(
    means: isolation.Means, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    needs(means)
    good = noised(model="hostile_code:net")
    house = House(tmp_path / "site", stack, of_job(noised()))
    source = Path(hostile_code.__file__).read_bytes()
    module = Module({"hostile_code.py": source, "where.txt": str(house.folder).encode()})
    monkeypatch.setenv(hostile_code.SECRET, "key")
    names = list(hostile_code.ATTEMPTS)
    common = {**training(good).common, "dimension": len(names)}
    common["weights"] = np.zeros(len(names), np.float32)
    update, examples = CodeTraining(sandbox(module, means), good, common).update(0, "parts:data")
    assert [name for name, done in zip(names, update, strict=True) if done] == [names[-1]]
    assert examples == 240
    assert "4711" not in str(capfd.readouterr())


def test_bubblewrap_gets_every_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own test runs only where it is installed."""
    monkeypatch.setattr(isolation, "_found", lambda program: program)
    shown = {"/code": Path("/somewhere/code")}
    words = isolation.isolated(["python", "-c"], "bubblewrap", shown, Path("/scratch"))
    text = " ".join(words)
    assert text.endswith(
        " --ro-bind /somewhere/code /code --remount-ro /proc --remount-ro /dev --remount-ro /"
        " --chdir /tmp -- python -c"
    )
    for demand in ("--unshare-all --unshare-user --die-with-parent --new-session", "--cap-drop ALL",
                   "--proc /proc --dev /dev --size 268435456 --tmpfs /tmp"):  # fmt: skip
        assert demand in text
    assert words[0] == "bwrap"
    assert not {"--bind", "--dev-bind", "--share-net"} & set(words)


def test_a_permitted_code_trains_and_is_charged(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report leaves at its time. This test does not wait for it."""
    needs("namespaces")
    monkeypatch.setattr("fedveil.flower.fixed_time.time.sleep", lambda seconds: None)
    good = noised(1e7, model="heart_net:net", deployment={"answer_s": 90.0})
    house = House(tmp_path / "site", stack, of_job(good))
    rich = {"run": 1e9, "month": 1e9, "ever": 1e9}
    house.permit({"heart_net.py": NET}, epsilon=rich, jobs={"digests": [digest_of(good)]})
    said = training(good)
    sent = house.ask(app_of_job(good), said.message())
    assert sent is not None, house.why()
    house.account.refresh()
    (charged,) = house.account.charges
    assert (charged.unit, charged.in_clear) == ("client", ())
    builtin = good.with_({"model": "logistic"})
    alone = Training(builtin, said.common, _no_states, lambda: pytest.fail("it has its own data"))
    update, _ = alone.update(0, "parts:data")
    protection = make_protection(good, len(update))
    weights = said.common["weights"]
    context = RoundContext(range(6), 1, weights, protection.initial_state())
    received = protection.reading(context, decode(sent)).estimate
    np.testing.assert_allclose(received, 0.5 * update / np.linalg.norm(update), atol=1e-3)
    (house.folder / "code" / "heart_net.py").write_text(NET + "\n")
    assert house.ask(app_of_job(good), said.message()) is None
    assert "not the one in code.modules" in house.why()
    assert house.charges == 1


def _no_states(client: int) -> Any:
    raise AssertionError("nobody keeps a state")


def test_a_job_with_own_code_meets_more_demands(
    tmp_path: Path, stack: ExitStack, reads: list[int]
) -> None:
    good = noised(model="heart_net:net")
    jobs = {"template": "template.yaml", "may_differ": sorted(type(good).model_fields)}
    every = ["dp_encrypt", "pw_encrypt", "distributed_dp"]
    strength = {"unit": "example", "honest": 1.0, "survivors": 2}
    house = House(tmp_path / "site", stack, of_job(
        good, jobs={"digests": ["ab" * 32]}, strength=strength,
    ))  # fmt: skip
    (house.folder / "template.yaml").write_text(good.to_yaml())
    house.permit({"heart_net.py": NET, "lung/__init__.py": "", "lung/net.py": NET}, jobs=jobs,
                 protections=every, clear={"answer_after_s": 0.01, "counts": True})  # fmt: skip
    (house.folder / "code" / "spleen.py").write_text(NET)
    message = training(good).message()
    cases = list(own_code_jobs(good))
    for case in cases:
        assert house.ask(case.app, message) is None, case.name
        assert case.why in house.why(), (case.name, house.why())
    assert len(cases) >= 20
    assert (reads, house.charges) == ([], 0)
    house.permit({"heart_net.py": NET}, data={"heart": {"named": "digits"}})
    assert house.ask(with_code(text_of(good)), message) is None
    assert "data.heart.reader is null" in house.why()


def test_the_policy_sets_the_limits(tmp_path: Path, stack: ExitStack) -> None:
    needs("namespaces")
    good = noised(model="heart_net:net", deployment={"answer_s": 90.0})
    house = House(tmp_path / "site", stack, of_job(good))
    digest = house.permit({"heart_net.py": NET})["heart_net"]
    jobs = {"digests": [digest_of(good)]}
    found = []
    for kind in ("strong", "weak"):
        code = {"modules": {"heart_net": digest}, "isolation": kind, "memory_gb": 2.5}
        house.permit({}, code=code, clear={"answer_after_s": 7.0}, jobs=jobs)
        _, member = house.door.member(app_of_job(good))
        assert member.training is not None
        made = member.training(good, training(good).common)
        assert isinstance(made, CodeTraining)
        found.append(made.sandbox)
    module, strong = read(house.folder, "heart_net"), isolation.working()[0]
    assert found == [CodeSandbox([module], means, 2_500_000_000, 7.0) for means in (strong, None)]
    assert any("code.isolation is weak" in one for one in house.site.policy.warnings)
    keys = house.site.policy.model_dump(exclude_unset=True)
    with pytest.raises(JobError, match=r"code\.modules needs clear\.answer_after_s"):
        Policy(**{**keys, "clear": {"answer_after_s": None}})


def test_every_module_of_a_job_must_be_the_permitted_one(tmp_path: Path, stack: ExitStack) -> None:
    good = noised(
        model="heart_net:net", training={"lr_schedule": "rates.all.slow:rate", "epochs": 1}
    )
    house = House(tmp_path / "site", stack, of_job(good))
    files = {"heart_net.py": NET, "rates/__init__.py": "", "rates/all/slow.py": NET}
    house.permit(files, jobs={"digests": [digest_of(good)]})
    order, admission = read_app(app_of_job(good)), house.site.admission
    assert admission.modules(order) == [read(house.folder, name) for name in ("heart_net", "rates")]
    assert "rates/all/slow.py" in admission.modules(order)[1].files
    (house.folder / "code" / "rates" / "__pycache__").mkdir()
    (house.folder / "code" / "rates" / "__pycache__" / "slow.pyc").write_bytes(b"")
    assert len(admission.modules(order)[1].files) == 2
    (house.folder / "code" / "rates" / "all" / "slow.py").write_text(f"{NET}\n")
    with pytest.raises(SiteRefused, match="the module rates has the digest"):
        admission.modules(order)


def test_the_files_of_a_module_are_limited_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("a.py", "b.py")]
    for file in files:
        file.write_bytes(bytes(6))
    monkeypatch.setattr(code_folder, "_MOST_BYTES", 12)
    assert list(code_folder.files_of(tmp_path, files).files) == ["a.py", "b.py"]
    monkeypatch.setattr(code_folder, "_MOST_FILES", 2)
    assert len(code_folder.files_of(tmp_path, [tmp_path, *files]).files) == 2
    monkeypatch.setattr(code_folder, "_MOST_FILES", 1)
    with pytest.raises(SiteRefused, match="has more than 1 files: remove the others"):
        code_folder.files_of(tmp_path, files)
    monkeypatch.setattr(code_folder, "_MOST_BYTES", 11)
    with pytest.raises(SiteRefused, match=r"b\.py cannot be read"):
        code_folder.files_of(tmp_path, files)
    assert Module({"a.py": b"xyz"}).digest != Module({"a.pyx": b"yz"}).digest


@pytest.mark.parametrize("starts", [True, False])
def test_a_process_leaves_no_pipe_and_no_folder(
    starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site serves for months, and starts a process in each round."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def started(*words: object, **more: object) -> SimpleNamespace:
        if not starts:
            raise OSError("no more processes")
        assert next(tmp_path.glob("*/code/a.py")).read_bytes() == b"x = 3"
        return SimpleNamespace(pid=1 << 30, wait=lambda: waited.append(1))

    waited: list[int] = []
    monkeypatch.setattr(code_process.subprocess, "Popen", started)
    before = len([*Path("/proc/self/fd").iterdir()])
    running = code_process.running([Module({"a.py": b"x = 3"})], None, 3 << 30, 9.0)
    with nullcontext() if starts else pytest.raises(OSError, match="no more processes"), running:
        assert len([*Path("/proc/self/fd").iterdir()]) == before + 2
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert ([*tmp_path.iterdir()], waited) == ([], [1] if starts else [])


def test_the_process_is_told_its_pipes_and_its_limits() -> None:
    words = code_process._words("/code", 5, 8, 3 << 30, 59.5)
    assert json.loads(words[-5])[-1] == "/code"
    assert words[-4:] == ["5", "8", str(3 << 30), "60"]


def test_the_process_has_its_own_folder_time_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started, ended = list[Any](), list[Any]()

    class Started:
        pid = 1 << 22

        def __init__(self, words: list[str], **how: Any) -> None:
            started.append(how)

        def wait(self) -> None:
            ended.append("waited")

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(os, "killpg", lambda *what: ended.append(what))
    began = time.monotonic()
    with code_process.running([], None, 3 << 30, 59.5) as process:
        assert 59.5 <= process._end - began < 65
        (how,) = started
        assert (how["cwd"].name, how["start_new_session"]) == ("scratch", True)
        assert set(how["env"]) == {"HOME", "LANG", "OMP_NUM_THREADS"}  # no secret of the site's
    assert ended == [(Started.pid, signal.SIGKILL), "waited"]  # with its children


@pytest.mark.parametrize(("isolates", "means"), [("strong", "bwrap"), ("weak", None)])
def test_code_has_the_isolation_and_the_limits_of_the_policy(
    isolates: str, means: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "working", lambda: ["bwrap", "namespaces"])
    policy = SimpleNamespace(
        code=SimpleNamespace(isolation=isolates, memory_gb=1.5),
        clear=SimpleNamespace(answer_after_s=7.0),
    )
    door: Any = Door.__new__(Door)
    admission = SimpleNamespace(modules=lambda order: [order])
    door._site = SimpleNamespace(policy=policy, admission=admission)
    (sandbox,) = door._training("the order").args
    assert sandbox == CodeSandbox(["the order"], means, 1_500_000_000, 7.0)  # type: ignore


FINE = encode({"targets": "class"})
UPDATE = np.arange(5, dtype=np.float32)
ANSWERS: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "an unknown target": (encode({"targets": "all"}), b""),
    "more than a target": (encode({"targets": "class", "age": 71}), b""),
    "a long word": (encode({"targets": "x" * 2000}), b""),
    "a pickle": (pickle.dumps("class"), b""),
    "no update": (FINE, b""),
    "a pickled update": (FINE, pickle.dumps(UPDATE)),
    "an empty message": (FINE, encode({})),
    "metrics": (FINE, encode({"update": UPDATE, "loss": 0.5})),
    "doubles": (FINE, encode({"update": UPDATE.astype(np.float64)})),
    "a longer one": (FINE, encode({"update": np.zeros(6, np.float32)})),
    "a huge one": (FINE, encode({"update": np.zeros(6000, np.float32)})),
    "a shorter one": (FINE, encode({"update": UPDATE[1:]})),
    "a matrix": (FINE, encode({"update": UPDATE[None]})),
    "text": (FINE, encode({"update": "patient 4711"})),
    "a cut one": (FINE, encode({"update": UPDATE})[:-1]),
}


class Replay:
    """A process whose pipe already holds its answers, right or wrong."""

    def __init__(self, stack: ExitStack, *answers: bytes, lengths: list[int] | None = None) -> None:
        pipes = [os.pipe(), os.pipe()]
        sizes = map(len, answers) if lengths is None else lengths
        for size, answer in zip(sizes, answers, strict=True):
            os.write(pipes[1][1], size.to_bytes(8) * bool(answer) + answer)
        os.close(pipes[1][1])
        for file in (*pipes[0], pipes[1][0]):
            stack.callback(os.close, file)
        self.process = Process(pipes[0][1], pipes[1][0], time.monotonic() + 60)


def exchanged(process: Process) -> np.ndarray[Any, Any]:
    good = noised(model="heart_net:net")
    common = {**training(good).common, "dimension": 5, "weights": UPDATE}
    mine = CodeTraining(sandbox(Module({})), good, common)
    return mine.exchanged(process, 0, "parts:data")[0]


def test_an_answer_that_is_no_update_is_refused(stack: ExitStack) -> None:
    right = Replay(stack, FINE, encode({"update": UPDATE}), encode({"update": UPDATE})).process
    np.testing.assert_array_equal(exchanged(right), UPDATE)
    for name, answers in ANSWERS.items():
        with pytest.raises(SiteRefused, match="job's code") as raised:
            exchanged(Replay(stack, *answers).process)
        assert "4711" not in str(raised.value), name
    for size in (1 << 10, 1 << 40, (1 << 64) - 1):
        with pytest.raises(SiteRefused, match=r"ended|the limit is"):
            exchanged(Replay(stack, FINE, lengths=[size]).process)


def test_a_process_that_hangs_is_left_at_its_end(stack: ExitStack) -> None:
    for deaf in (True, False):
        (asked, send), (receive, said) = os.pipe(), os.pipe()
        for file in (asked, send, receive, said):
            stack.callback(os.close, file)
        process = Process(send, receive, time.monotonic() + 0.05)
        with pytest.raises(SiteRefused, match="not ready in time"):
            process.send({"x": bytes(1 << 20)}) if deaf else process.receive(9)


HOLDS = """\
import sys, time
from pathlib import Path
from fedveil.site import code_process
from fedveil.site.code_folder import Module
code_process._BOOT = "import time; time.sleep(600)"
with code_process.running([], {means!r}, 1 << 30, 600.0):
    print("running", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("means", ["bubblewrap", "namespaces", None])
def test_code_ends_with_its_site(means: isolation.Means | None, tmp_path: Path) -> None:
    if means:
        needs(means)
    mark = f"{time.time_ns()}"
    words = [sys.executable, "-c", HOLDS.format(means=means), mark]
    # A killed process leaves its temporary folder.
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=own)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "running\n"
    inner = children(holder.pid)
    seen = environment(inner[0])
    assert sorted(seen) == [b"HOME=/tmp", b"LANG=C.UTF-8", b"OMP_NUM_THREADS=1"], "not the site's"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    end = time.monotonic() + 20
    while any(map(alive, inner)):
        assert time.monotonic() < end
        time.sleep(0.01)
    holder.stdout.close()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, listed) for found in (child, *children(child))]


def environment(pid: int) -> list[bytes]:
    """Return a process's environment variables. While it replaces its program, it shows none."""
    end = time.monotonic() + 20
    while not (seen := Path(f"/proc/{pid}/environ").read_bytes()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return seen.split(b"\0")[:-1]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_package_is_written_with_its_folders(tmp_path: Path) -> None:
    files = {"net.py": b"1", "lung/__init__.py": b"", "lung/deep/parts.py": b"2"}
    Module(files).write(tmp_path / "code")
    for name, data in files.items():
        assert (tmp_path / "code" / name).read_bytes() == data


def test_every_kind_of_targets_is_understood() -> None:
    for kind in get_args(Targets):
        assert code_process._targets({"targets": kind}) == kind
    for other in ({}, {"targets": "other"}, {"targets": "own", "more": 1}):
        with pytest.raises(SiteRefused, match="did not say what its targets are"):
            code_process._targets(other)


def test_a_round_of_code_has_the_limits_of_its_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    @contextmanager
    def running(*limits: Any) -> Iterator[str]:
        given.append(limits)
        yield "process"

    monkeypatch.setattr(code_process, "running", running)
    monkeypatch.setattr(CodeTraining, "exchanged", lambda self, *asked: asked)
    module, good = Module({"net.py": b""}), noised()
    code = CodeSandbox([module], "bubblewrap", 7_000_000, 41.5)
    asked = CodeTraining(code, good, training(good).common).update(3, "own:rows")
    assert asked == ("process", 3, "own:rows")
    assert given == [([module], "bubblewrap", 7_000_000, 41.5)]


def test_a_process_that_has_ended_is_refused_in_both_directions() -> None:
    (asked, send), (receive, said) = os.pipe(), os.pipe()
    os.close(asked)
    os.close(said)
    try:
        process = Process(send, receive, time.monotonic() + 20)
        with pytest.raises(SiteRefused, match="ended without an update"):
            process.send({"rows": 3})
        with pytest.raises(SiteRefused, match="ended without an update"):
            process.receive(99)
    finally:
        os.close(send)
        os.close(receive)


def test_examples_travel_without_python_objects() -> None:
    rows = np.arange(6, dtype=np.int16).reshape(2, 3)
    sent: Any = {"x": code_child.packed(rows)}
    back = code_child.unpacked(sent, "x")
    assert (back.dtype, back.tolist()) == (rows.dtype, rows.tolist())
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        code_child.packed(np.array([{"a": 1}, "b"], object))


def test_isolation_needs_both_a_tool_and_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {"namespaces"}
    monkeypatch.setattr(isolation, "_works", lambda means: means in tools)
    found = []
    for filters in (True, False):
        monkeypatch.setattr(system_calls, "can_forbid", lambda known=filters: known)
        isolation.working.cache_clear()
        try:
            found.append(isolation.working())
        finally:
            isolation.working.cache_clear()
    assert found == [["namespaces"], []]


def verdict(steps: list[tuple[int, int, int, int]], *, number: int, code: int, flags: int) -> int:
    """Run a seccomp filter on a system call, as the kernel does, and return its answer."""
    call, place, held = {0: number, 4: code, 16: flags}, 0, 0
    while True:
        kind, yes, no, operand = steps[place]
        if kind == 0x06:
            return operand
        skipped = 0
        if kind == 0x20:
            held = call[operand]
        else:
            met = {0x15: held == operand, 0x35: held >= operand, 0x45: bool(held & operand)}[kind]
            skipped = yes if met else no
        place += 1 + skipped


@pytest.mark.parametrize(("machine", "other"), [("x86_64", "aarch64"), ("aarch64", "x86_64")])
def test_a_filter_forbids_every_call_that_is_listed_and_no_other(machine: str, other: str) -> None:
    (code, numbers), steps = system_calls._MACHINES[machine], system_calls._filter(machine)
    allowed, forbidden, unknown, ends = 0x7FFF0000, 0x50001, 0x50000 + errno.ENOSYS, 0x80000000

    def said(number: int, flags: int = 0, of: int = code) -> int:
        return verdict(steps, number=number, code=of, flags=flags)

    clone, clone3, theirs = numbers["clone"], 435, system_calls._MACHINES[other][0]
    listed = {*numbers.values(), *system_calls._NEWER}
    assert {said(number) for number in listed - {clone}} == {forbidden}
    assert {said(number) for number in set(range(600)) - listed - {clone3}} == {allowed}
    assert (said(clone), said(clone, 0x10F00), said(clone3)) == (forbidden, allowed, unknown)
    assert {said(0x40000000 + number) for number in (0, 1, clone)} == {forbidden}
    assert {said(number, of=theirs) for number in (0, clone, clone3)} == {ends}


def test_a_process_loses_every_privilege_and_its_files_are_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a call of the system fails, the process ends before it runs any code."""
    calls: list[tuple[Any, ...]] = []

    def recorded(name: str, result: int = 0) -> Any:
        def call(*arguments: Any) -> int:
            plain = [getattr(one, "value", one) for one in arguments]
            calls.append((name, *(list(p) if isinstance(p, ctypes.Array) else p for p in plain)))
            return result

        return call

    libc = SimpleNamespace(**{name: recorded(name) for name in ("mount", "prctl", "syscall")})
    monkeypatch.setattr(namespace_root, "_libc", libc)
    namespace_root._drop_privileges()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    assert {call[2] for call in calls if call[1] == 24} >= set(range(last + 1))
    assert [call[1:3] for call in calls if call[1] != 24] == [(38, 1), (1, signal.SIGKILL)]
    calls.clear()
    (tmp_path / "data").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("data", "file"):
        namespace_root._show(str(tmp_path / name), str(tmp_path / "deep" / name))
    assert (tmp_path / "deep/data").is_dir()
    assert (tmp_path / "deep/file").is_file()
    shown, sealed = calls[::2], calls[1::2]
    assert [(call[0], call[4]) for call in shown] == [("mount", 0x1000 | 0x4000)] * 2
    assert [(call[1], call[4], call[5]) for call in sealed] == [(442, 0x8000, [7, 0, 0, 0])] * 2
    libc.mount = recorded("mount", -1)
    with pytest.raises(OSError, match="mount"):
        namespace_root._show(str(tmp_path / "data"), str(tmp_path / "other"))


def test_a_system_without_isolation_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    isolation.working.cache_clear()
    try:
        (reason,) = isolation.reasons(tmp_path)
        assert "cannot isolate a process: install bubblewrap" in reason
    finally:
        isolation.working.cache_clear()
    (inside,) = isolation.reasons(Path(np.__file__).parent) if isolation.working() else ("move it",)
    assert "move it" in inside


def test_a_site_is_hidden_unless_it_is_in_a_folder_that_a_process_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, link = tmp_path / "library", tmp_path / "link"
    (library / "sites" / "north").mkdir(parents=True)
    link.symlink_to(library / "sites")
    own = isolation.Interpreter("python", [], [tmp_path / "other", library])
    monkeypatch.setattr(isolation.Interpreter, "own", lambda: own)
    monkeypatch.setattr(isolation, "working", lambda: ["namespaces"])
    for site in (library, library / "sites" / "north", link / "north"):
        (reason,) = isolation.reasons(site)
        assert f"is in {library}, which every process may read" in reason
    assert list(isolation.reasons(tmp_path / "library-2")) == []


def test_a_process_reads_packages_and_none_of_the_users_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, user, packages = tmp_path / "base", tmp_path / "user", tmp_path / "env" / "site-packages"
    for folder in (base / "lib", user, packages / "inner"):
        folder.mkdir(parents=True)
    path = [str(user), str(base / "lib"), str(packages), str(packages), str(base / "gone.zip")]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.setattr(sys, "base_prefix", str(base))
    system = (str(base), str(packages / "inner"), str(tmp_path / "gone"))
    monkeypatch.setattr(isolation, "_SYSTEM", system)
    ours = Path(isolation.__file__).parents[2]
    own = isolation.Interpreter.own()
    assert own.path == [*path[1:3], path[4], str(ours)]
    assert own.reads == [base, packages, ours]
