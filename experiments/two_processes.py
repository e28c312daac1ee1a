"""A vertical run's parties as this machine's processes, linked over mutual TLS on loopback."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedveil.entry.vertical import resume, train
from fedveil.errors import RunFailed
from fedveil.link.own_authority import write_certificates
from fedveil.record.run_folder import JOB, MODEL
from fedveil.settings import yaml_file
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.one_process import VerticalRun

#: The command line, with the first weights that one process would draw from the job's seed.
_COMMAND = """
from fedveil.vertical.remote import machine
machine.drawn_seed = lambda: {seed}
from fedveil.cli.main import main
main()
"""
_LISTENS = "listens on "
_LOOK_S = 0.05


def together(job: VerticalJob, folder: Path) -> VerticalRun:
    """Run all parties in this process. Resumes a run of the job in the folder."""
    if (folder / JOB).exists():
        return resume(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return train(job, folder)


def apart(job: Path, leader: str, followers: Sequence[str], folder: Path) -> None:
    """Run every party of the job file `job` in its own process, with the run folder `folder`/PARTY.

    The initial weights are those of a run in one process, so that the results can be compared.
    Returns when all processes have ended. Resumes existing runs.
    """
    parties = [leader, *followers]
    if all((folder / party / party / MODEL).exists() for party in parties):
        return
    keys = folder / "certificates"
    shutil.rmtree(keys, ignore_errors=True)
    write_certificates(keys, parties)
    running: dict[str, subprocess.Popen[bytes]] = {}
    program = _COMMAND.format(seed=yaml_file.read(job).get("seed", 0))
    try:
        where = ["--listen", "127.0.0.1:0"]
        for party in parties:
            command = ["leader" if party == leader else "follower", *_run(job, folder / party)]
            arguments = [*command, *where, "--tls", str(keys / party)]
            running[party] = _started(program, arguments, folder, party)
            if party == leader:
                where = ["--connect", _address(folder, leader, running[leader])]
        while any(process.poll() is None for process in running.values()):
            time.sleep(_LOOK_S)
            _refuse_failed(folder, running)
        _refuse_failed(folder, running)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        shutil.rmtree(keys, ignore_errors=True)


def _run(job: Path, own: Path) -> list[str]:
    if (own / JOB).exists():
        return ["--resume", str(own)]
    shutil.rmtree(own, ignore_errors=True)
    return [str(job), "--out", str(own)]


def _started(
    program: str, arguments: Sequence[str], folder: Path, party: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program, "vertical", *arguments]
    with (folder / f"{party}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _address(folder: Path, leader: str, process: subprocess.Popen[bytes]) -> str:
    """Return the address at which the leader says that it listens."""
    while True:
        for line in _said(folder, leader):
            if _LISTENS in line:
                return line.partition(_LISTENS)[2]
        _refuse_failed(folder, {leader: process})
        time.sleep(_LOOK_S)


def _refuse_failed(folder: Path, running: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for party, process in running.items():
        if process.poll():
            last = (_said(folder, party) or ["it said nothing"])[-1]
            raise RunFailed(f"the process of {party} ended with {process.returncode}: {last}")


def _said(folder: Path, party: str) -> list[str]:
    return (folder / f"{party}.log").read_text("utf-8", "replace").splitlines()
