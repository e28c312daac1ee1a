"""Runs a benchmark in its own process, so that it can be stopped whatever Ray is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


def run_apart(script: str, limit: float) -> int:
    """Run `script` again with `--inner FOLDER` added, for at most `limit` seconds.

    Returns its exit status, or 1 if it is stopped.
    """
    with tempfile.TemporaryDirectory(prefix="fl-", ignore_cleanup_errors=True) as folder:
        # Flower keeps a home; fedveil's counts of reports lie in the user's run-time folder.
        own = {"FLWR_HOME": str(Path(folder, "flwr")), "XDG_RUNTIME_DIR": folder}
        command = [sys.executable, script, *sys.argv[1:], "--inner", folder]
        process = subprocess.Popen(command, env={**os.environ, **own}, start_new_session=True)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"not finished after {limit:g} seconds", file=sys.stderr)
            return 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
