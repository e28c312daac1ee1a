"""Tries the commands of the core, in an environment that holds the wheel alone.

python tests/core_check.py RUN          # the folder of a run with one round, made elsewhere
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "fedveil"


def expect(code: int, words: str, *arguments: str) -> None:
    """Run a command and check its exit code and that its output has these words."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [PROGRAM, *arguments], cwd=empty, capture_output=True, text=True, check=False
        )
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{arguments} exits {done.returncode}: {said}"
    assert words in said, f"{arguments} does not say {words!r}: {said}"
    assert "Traceback" not in said, said
    print(f"{' '.join(arguments[:2])}: as it must be")


def main(run: str) -> None:
    extras = [name for name in ("torch", "numba", "flwr", "plotly", "click") if find_spec(name)]
    assert not extras, f"the core installs {extras}"
    expect(0, "fedveil ", "--version")
    expect(0, "2        1e-05  meaningful", "budget", "--parameters", "7850")
    expect(1, "pip install 'fedveil[torch]'", "budget")
    expect(1, "pip install 'fedveil[torch]'", "run")
    expect(0, "rounds: ", "job", "show")
    expect(1, "pip install 'fedveil[torch]'", "job", "show", "--layers")
    expect(0, "report.html", "report", run)
    expect(1, "pip install 'fedveil[flower]'", "deploy", "app")
    expect(0, "round 1/1", "watch", run)
    expect(0, "not refuted", "audit", "--trials", "1000")
    expect(2, "no command runn (did you mean run or runs?)", "runn")
    expect(2, "the command comes before job.yaml", "attack", "job.yaml", "gradient")
    expect(2, "did you mean --resume?", "run", "--resum", "x")
    site = Path(find_spec("numpy").origin).parents[1]  # type: ignore[union-attr, arg-type]
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 2**20
    assert size < 300, f"the core takes {size:.0f} MiB"
    print(f"the core takes {size:.0f} MiB")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
