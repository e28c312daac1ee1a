"""The commands as processes that are killed: the result is that of an uninterrupted run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

import vertical_process
from fedveil.link.own_authority import write_certificates
from fedveil.vertical import VerticalJob, train
from pki import Authority, pem

JOB = """
name: apart
task: vertical_apart:bottoms
epochs: 3
alignment: {least_common: 8}
batch_size: 10
checkpoint: {every_steps: 4}
record: {every_steps: 1}
"""
PARTIES = ("lead", "bank", "shop")
DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the job, certificates, and the same run in one process."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "job.yaml").write_text(JOB)
    write_certificates(folder / "certificates", PARTIES)
    train(VerticalJob.load(folder / "job.yaml"), folder / "together")
    return folder


class Run:
    """The processes of one test."""

    def __init__(self, place: Path, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.certificates = place / "certificates"
        self.address = "127.0.0.1:0"
        self.processes: dict[str, BaseProcess] = {}

    def start(
        self,
        party: str,
        *arguments: str,
        dies: tuple[str, int] | None = None,
        by: int = signal.SIGKILL,
        tls: bool = True,
    ) -> None:
        """Start a party's first process, or its next one, which resumes from its folder."""
        command = "leader" if party == "lead" else "follower"
        option = "--listen" if party == "lead" else "--connect"
        own = self.folder / party
        what = ["--resume", str(own)] if party in self.processes else self._anew(own)
        if arguments:
            command, what = arguments[0], list(arguments[1:])
        certificates = str(self.certificates / party)
        security = ["--tls", certificates] if tls else ["--insecure"]
        link = [option, self.address, *security, "--patience", "120"]
        self.processes[party] = vertical_process.start(
            ["vertical", command, *what, *link],
            self.folder / f"{party}.log",
            dies=dies,
            by=by,
            draws=None if (own / "own-seed").exists() else 0,  # as in one process: the job's seed
        )
        if party == "lead":
            self._find_address()

    def _anew(self, own: Path) -> list[str]:
        return [str(self.place / "job.yaml"), "--out", str(own)]

    def _find_address(self) -> None:
        """Find the address at which the leader listens. A restarted leader listens there again."""
        already = self.address != "127.0.0.1:0"
        wait_for(lambda: already or "listens on" in self.log("lead"))
        found = re.search(r"listens on (\S+)", self.log("lead"))
        if found is not None:
            self.address = found[1]

    def log(self, party: str) -> str:
        path = self.folder / f"{party}.log"
        return path.read_text() if path.exists() else ""

    def code(self, party: str) -> int | None:
        process = self.processes[party]
        process.join(DEADLINE_S)
        return process.exitcode

    def ends_well(self) -> None:
        for party in self.processes:
            assert self.code(party) == 0, self.log(party)
            assert "Traceback" not in self.log(party)

    def weights(self) -> dict[str, bytes]:
        return {p: (self.folder / p / p / "model.safetensors").read_bytes() for p in PARTIES}


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Iterator[Run]:
    run = Run(place, tmp_path)
    yield run
    for process in run.processes.values():
        process.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def unbroken(place: Path) -> dict[str, bytes]:
    return {p: (place / "together" / p / "model.safetensors").read_bytes() for p in PARTIES}


@pytest.mark.parametrize(
    ("who", "event", "time"),
    [
        ("bank", "send", 1),  # applying
        ("bank", "send", 9),  # in the middle of a step
        pytest.param("bank", "receive", 16, marks=pytest.mark.slow),
        ("bank", "write", 3),  # the leader may have the checkpoint, this party does not
        ("lead", "receive", 2),  # one of two applications has arrived
        pytest.param("lead", "send", 23, marks=pytest.mark.slow),
        pytest.param("lead", "receive", 31, marks=pytest.mark.slow),
        ("lead", "play", 1),  # all have agreed, and it has written nothing since
        pytest.param("lead", "write", 2, marks=pytest.mark.slow),
        ("lead", "write", 5),  # the last: the followers are done
    ],
)
def test_killed_at_any_moment_the_pair_ends_with_the_same_weights(
    run: Run, place: Path, who: str, event: str, time: int
) -> None:
    for party in PARTIES:
        run.start(party, dies=(event, time) if party == who else None)
    assert run.code(who) == -signal.SIGKILL
    if not (run.folder / who / "job.yaml").exists():
        del run.processes[who]  # it had agreed on nothing, so it starts from scratch
    run.start(who)
    run.ends_well()
    assert run.weights() == unbroken(place)
    for party in PARTIES:
        assert (run.folder / party / "report.html").is_file()
        lines = (run.folder / party / party / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == len(
            (place / "together" / party / "metrics.jsonl").read_text().splitlines()
        )


def test_leader_and_follower_are_killed_one_after_the_other(run: Run, place: Path) -> None:
    run.start("lead", dies=("send", 40))
    run.start("bank", dies=("send", 7))
    run.start("shop")
    assert run.code("bank") == -signal.SIGKILL
    run.start("bank", dies=("receive", 24))
    assert run.code("lead") == -signal.SIGKILL
    run.start("lead")
    assert run.code("bank") == -signal.SIGKILL
    run.start("bank")
    run.ends_well()
    assert run.weights() == unbroken(place)


@pytest.mark.slow
@pytest.mark.parametrize("who", PARTIES)
def test_twenty_kills_after_the_first_checkpoint_change_nothing(
    place: Path, tmp_path: Path, who: str
) -> None:
    """Each process starts after the first checkpoint, saves at least one more, and is killed."""
    long = tmp_path / "place"
    shutil.copytree(place / "certificates", long / "certificates")
    (long / "job.yaml").write_text(JOB.replace("epochs: 3", "epochs: 30"))
    train(VerticalJob.load(long / "job.yaml"), long / "together")
    run = Run(long, tmp_path / "apart")
    run.folder.mkdir()
    try:
        for party in PARTIES:
            run.start(party, dies=("step", 6) if party == who else None)
        before = 0
        for kill in range(20):
            assert run.code(who) == -signal.SIGKILL, run.log(who)
            names = (run.folder / who / who / "checkpoint").glob("0*")
            saved = max(int(path.name) for path in names)
            assert saved > before, "it dies after a checkpoint of its own"
            before = saved
            run.start(who, dies=("step", 5 + kill % 4) if kill < 19 else None)
        assert before >= 4 * 20
        run.ends_well()
        assert run.weights() == unbroken(long)
    finally:
        for process in run.processes.values():
            process.kill()


@pytest.mark.parametrize("who", ["bank", "lead"])
def test_the_others_wait_for_a_party_that_a_supervisor_restarts(
    run: Run, place: Path, who: str
) -> None:
    for party in PARTIES:
        run.start(party, dies=("send", 23) if party == who else None, by=signal.SIGTERM)
    assert run.code(who) == 128 + signal.SIGTERM, run.log(who)
    assert "interrupted by SIGTERM; resume it with `fedveil vertical" in run.log(who)
    run.start(who)
    run.ends_well()
    assert run.weights() == unbroken(place)


def test_plaintext_on_loopback_then_evaluation_and_prediction_with_serving_followers(
    run: Run, place: Path
) -> None:
    for party in PARTIES:
        name = () if party == "lead" else ("--party", party)
        run.start(party, *_command(party), *run._anew(run.folder / party), *name, tls=False)
    run.ends_well()
    assert run.weights() == unbroken(place)
    assert re.search(r"epoch 2 step 5/5 loss: 0\.\d{6}, [\d,]+ examples/s, \S+ \w+ a step, \S+ s "
                     r"waiting", run.log("lead"))  # fmt: skip
    own = {party: str(run.folder / party) for party in PARTIES}
    for party in ("bank", "shop"):
        run.start(party, "follower", "--serve", own[party])
    run.start("lead", "evaluate", own["lead"])
    assert run.code("lead") == 0, run.log("lead")
    assert re.search(r"^accuracy 0\.\d{6}$", run.log("lead"), re.M)
    out = run.folder / "predictions.npz"
    run.start("lead", "predict", own["lead"], "--out", str(out))
    assert run.code("lead") == 0, run.log("lead")
    with np.load(out) as found:
        assert found["outputs"].shape == (20, 3)
        assert found["ids"].tolist() == list(range(20))
    for party in ("bank", "shop"):
        os.kill(run.processes[party].pid or 0, signal.SIGINT)
        assert run.code(party) == 130, run.log(party)
    run.start("lead", "leader", "--resume", own["lead"])
    assert run.code("lead") == 1
    assert "has ended" in run.log("lead")


def test_own_pki_with_encrypted_keys_lists_and_several_names(run: Run, place: Path) -> None:
    """Run three processes, one of which is revoked in the end."""
    root = Authority("Example Root", "rsa2048")
    issuing = Authority("Example Issuing CA", "rsa2048", root)
    names = {party: f"fl.{party}.example" for party in PARTIES}
    secret, run.certificates = "horse-battery-9", run.folder / "pki"
    leaves = {
        party: issuing.leaf(f"{party}7.internal", names[party], kind=kind, common="lead")
        for party, kind in zip(PARTIES, ("rsa2048", "p384", "p256"), strict=True)
    }
    for party, leaf in leaves.items():
        own = leaf.write(
            run.certificates / party, root, password=secret.encode(), password_file="password",
            crl="crl.pem", names=names,
        )  # fmt: skip
        (own / "password").write_text(f"{secret}\n")
        (own / "password").chmod(0o600)
        (own / "crl.pem").write_bytes(pem(root.crl(), issuing.crl()))
    for party in PARTIES:
        run.start(party)
    run.ends_well()
    assert run.weights() == unbroken(place)
    for path in run.folder.rglob("*"):
        if path.is_file() and path.name != "password":
            assert secret.encode() not in path.read_bytes(), f"{path} shows the password"

    revoked = pem(root.crl(), issuing.crl(leaves["shop"].certificate))
    (run.certificates / "lead" / "crl.pem").write_bytes(revoked)
    served = ("follower", "--serve", str(run.folder / "shop"), "--party", "shop")
    run.start("lead", "evaluate", str(run.folder / "lead"))
    run.start("shop", *served)
    assert run.code("shop") == 1
    said = f"lead refuses: the certificate of shop7.internal, {names['shop']} with the serial"
    assert said in " ".join(run.log("shop").split())


def _command(party: str) -> tuple[str, ...]:
    return ("leader",) if party == "lead" else ("follower",)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--listen", "127.0.0.1:0"), "--tls DIR is missing: plaintext needs --insecure"),
        (("--listen", "127.0.0.1:0", "--insecure", "--tls", "x"), "exclude each other"),
        (("--listen", "0.0.0.0:0", "--insecure"), "--listen = 0.0.0.0:0 is not a loopback"),
        (("--listen", "nowhere", "--insecure"), "--listen = 'nowhere' is not HOST:PORT"),
        (("--listen", "127.0.0.1:0", "--tls", "missing"), "missing/certificate.pem cannot be read"),
    ],
)
def test_a_leader_without_a_safe_link_does_not_begin(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    log = tmp_path / "log"
    start = ["vertical", "leader", str(place / "job.yaml"), "--out", str(tmp_path / "run")]
    process = vertical_process.start([*start, "--patience", "1", *arguments], log)
    process.join(DEADLINE_S)
    # An impossible command is wrong usage (2); a missing file is a failure (1).
    assert process.exitcode == (1 if "cannot be read" in sentence else 2)
    assert sentence in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "run" / "job.yaml").exists()


def test_a_follower_without_a_leader_says_at_once_whom_it_waits_for(
    place: Path, tmp_path: Path
) -> None:
    """The message appears while it waits, not after it has given up."""
    log = tmp_path / "log"
    start = ["vertical", "follower", str(place / "job.yaml"), "--out", str(tmp_path / "run")]
    link = ["--connect", "127.0.0.1:1", "--insecure", "--patience", "600", "--party", "bank"]
    process = vertical_process.start([*start, *link], log)
    try:
        wait_for(lambda: log.exists() and "waits for" in log.read_text())
        assert process.is_alive()
        assert log.read_text() == "bank waits for lead, the leader, at 127.0.0.1:1\n"
    finally:
        process.kill()
