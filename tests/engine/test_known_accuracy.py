"""The table of what jobs have reached, against the page it is taken from and the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedveil.engine import known_accuracy
from fedveil.engine.job_protection import make_protection
from fedveil.engine.known_accuracy import Measured, measured, table
from fedveil.engine.target_epsilon import whole_run
from fedveil.federated.job import Job

RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"
LENET = 61_706
ROWS = list(table())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row.settings[-2:]))
def test_a_row_stands_in_the_page_of_measurements_beside_its_command(row: Measured) -> None:
    lines = RESULTS.read_text("utf-8").splitlines()
    name = Job.load(None, row.settings).protection.name
    fraction, percent = f"| {row.accuracy:.4f} |", f"| {100 * row.accuracy:.2f} |"
    rows = [line for line in lines if line.startswith(f"| {name}")]
    found = [line for line in rows if fraction in line or percent in line]
    assert any(f" {_shown(row.epsilon)} (" in line for line in found)
    script = row.command.split()[2]
    assert any(script in line for line in lines)
    assert (RESULTS.parents[1] / script).is_file()


def _shown(epsilon: float) -> str:
    return f"{epsilon:.3f}".rstrip("0").rstrip(".")


@pytest.mark.parametrize(
    "row", [row for row in ROWS if Job.load(None, row.settings).clients.fraction == 1.0]
)
def test_a_row_costs_what_the_ledger_says(row: Measured) -> None:
    """If every client is in every round, the cost of the whole run is known before it."""
    job = Job.load(None, row.settings)
    spent = whole_run(make_protection(job, LENET), job.rounds, job.privacy.delta)
    assert spent.epsilon == pytest.approx(row.epsilon, rel=1e-5)


def test_a_job_finds_its_rows_whatever_its_noise_and_seed_are() -> None:
    row = next(r for r in ROWS if "clients.fraction=0.3" in r.settings)
    alike = Job.load(None, (*row.settings, "protection.dp_encrypt.dp_eps=0.2", "seed=9"))
    assert measured(alike) == [row]
    assert str(row) == (
        "measured with this job at epsilon 476: accuracy 89.9% "
        "(FEDVEIL_DATA=FOLDER python benchmarks/mnist.py dp_encrypt)"
    )
    rr = Job.load(None, next(r for r in ROWS if "protection=rr" in r.settings).settings)
    found = measured(rr)
    assert [r.epsilon for r in found] == sorted(r.epsilon for r in found)
    assert len(found) == 5


@pytest.mark.parametrize(
    "other", ["rounds=21", "training.lr=0.2", "model=mlp", "data.split=shards",
              "protection.dp_encrypt.dp_norm_clip=2.0", "clients.fraction=0.2", "server.lr=0.5"],
)  # fmt: skip
def test_of_another_job_nothing_is_said(other: str) -> None:
    row = next(r for r in ROWS if "clients.fraction=0.3" in r.settings)
    assert measured(Job.load(None, (*row.settings, other))) == []
    assert measured(Job()) == []


def test_rows_come_in_the_order_of_their_epsilons(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order the table has them, and however the job states its noise."""
    sums = [row for row in ROWS if "protection.distributed_dp.clip=0.15" in row.settings]
    wanted = Job.load(None, sums[0].settings)
    sized = {
        "protection.distributed_dp.target_epsilon": None,
        "protection.distributed_dp.noise_multiplier": 0.75,
    }
    (row,) = measured(wanted)
    assert measured(wanted.with_(sized)) == [row]
    others = [row._replace(epsilon=epsilon) for epsilon in (3.0, 0.5, 9.0)]
    held = known_accuracy._deciding(wanted)
    monkeypatch.setattr(known_accuracy, "_rows", lambda: [(other, held) for other in others])
    assert [other.epsilon for other in measured(wanted)] == [0.5, 3.0, 9.0]
