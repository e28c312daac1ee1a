"""A user's script under a type checker, without the settings of this repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from folders import ROOT

#: torch's own types are many, and not asked about here.
CONFIG = """[mypy]
strict = true
[mypy-torch.*]
follow_imports = skip
"""
SCRIPT = """from typing import Any
import numpy as np
import fedveil
from fedveil.entropy import Secure
from fedveil.mechanisms import GaussianMechanism
from fedveil.protections.catalog import POSITIONS
from fedveil.vertical import VerticalJob, train

class Own(fedveil.Task):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).abs().mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {"error": float(abs(outputs - targets).mean())}

job = fedveil.Job(rounds=2, model="logistic", clients={"number": 30})
noisy = job.with_(protection="dp_encrypt", training={"lr": 0.05}).under("signds")
run = fedveil.simulate({"rounds": 2}, "run", progress=lambda record: print(record["round"]))
again = fedveil.resume(run.folder, rounds=3)
epsilon: float = run.ledger.epsilon("run")
parties = train(VerticalJob(epochs=1, task={"name": "tabular"}), "split")
last: dict[str, Any] = parties.metrics[-1]
GaussianMechanism(eps=1.0, delta=1e-5, clip=1.0).privatize(np.ones(3), Secure())
settings = POSITIONS["dp_encrypt"].settings_type(dp_eps=3.0, dp_delta=1e-6)
rounds: str = job.rounds
fedveil.Job("job.yaml")
"""


def test_the_documented_lines_pass_a_strict_type_checker(tmp_path: Path) -> None:
    """The last two lines are wrong, and show that the checker sees fedveil's types."""
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--no-pretty", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    last = len(SCRIPT.splitlines())
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.split(": ")[0] for line in lines] == [
        f"script.py:{last - 1}", f"script.py:{last}",
    ], done.stdout + done.stderr  # fmt: skip
