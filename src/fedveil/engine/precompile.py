"""Compiles native code before it is needed, in this process or in a second one.

A run starts a second process the first time that a protection runs on a machine. Compiling holds
the GIL, so a thread would not help.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from fedveil.base.kernels import is_cached
from fedveil.base.message import Message, decode, encode
from fedveil.engine.job_protection import make_protection
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.protections.base import ClientContext, Protection, RoundContext, ServerRound
from fedveil.protections.catalog import build

#: The length of the report's update. The compiled code does not depend on it.
_DIMENSION = 1000


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def precompiling(job: Job) -> Iterator[None]:
    """A context in which a second process compiles the native code of the job's protection.

    The process is killed at the end of the context. No process starts if the protection has no
    native code, if its code is already compiled, if the job does not set the number of clients, or
    if only one core is available.
    """
    loop = job.protection.position.loop
    if loop is None or job.clients.number is None or is_cached(loop) or _cores() < 2:
        yield
        return
    command = [sys.executable, "-m", "fedveil.engine.precompile"]
    try:
        beside = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:  # the run compiles its loops itself
        yield
        return
    try:
        assert beside.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError), beside.stdin as to:
            to.write(job.model_dump_json().encode())
        yield
    finally:
        beside.kill()
        beside.wait()


def compile_products() -> None:
    """Compile the matrix products that training in native code uses."""
    from fedveil.compiled.product import meet_rows, product, product_of_few

    for function in (product, product_of_few, meet_rows):
        function.address(np.float32)


def compile_reports(protection: Protection) -> None:
    """Compile the native code that makes a client's reports under `protection`.

    Makes one report of a short artificial update, without the masks of secure aggregation.
    `protection` must be one of fedveil's own, not a user's.
    """
    alike = replace(protection.context, dimension=_DIMENSION, simulated=True, masks=False)
    _one_report(build(protection.name, protection.settings, alike))


def make_one_report(protection: Protection) -> None:
    """Make and receive one report, so that all native code of the protection is compiled."""
    server, report = _one_report(protection)
    server.receive(0, decode(encode(report)))


def _one_report(protection: Protection) -> tuple[ServerRound, Message]:
    """Return the server's half of an artificial round with one client, and the client's report."""
    model = np.zeros(protection.dimension, np.float32)
    server = protection.server_round(RoundContext([0], 1, model, protection.initial_state()))
    told = server.opening()
    half = protection.client_round(ClientContext(0, 1, model, 1, Seeded(0)))
    update = np.ones_like(model) if half.wants_update(told) else None
    return server, half.respond(told, update)


if __name__ == "__main__":
    compile_products()
    of_stdin = Job(**json.loads(sys.stdin.read()))
    make_one_report(make_protection(of_stdin.with_({"simulation.masks": False}), _DIMENSION))
