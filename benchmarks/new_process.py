"""Runs a measurement in a new process, whose memory contains nothing else."""

from __future__ import annotations

import json
import multiprocessing
import resource
import subprocess
from collections.abc import Callable
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


def memory_mb() -> float:
    """Return the peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(work: Callable[..., None], *given: object) -> Any:
    """Run `work` in a new process. Returns what it sends to its last argument, a pipe."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(*given, there))
    process.start()
    there.close()  # otherwise `recv` would wait for ever if the process fails
    try:
        found = here.recv()
    except EOFError:
        raise SystemExit(f"{work.__name__} failed in its process") from None
    process.join()
    return found


def last_line(*words: object) -> dict[str, Any]:
    """Run a command and return the JSON object in the last line that it prints.

    If the command fails, ends the program with the end of its error output.
    """
    command = list(map(str, words))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
