"""Planted faults that the audit of a run finds, by protection and effort.

Every fault is a patch of the shipped code (tests/support/sabotage.py), which still states its usual
epsilon, the claim. A cell is the number of runs that the audit refutes, and the claim. The rows
without a fault must stay near 0: the audit is right with probability 95%, so 1 run in 20 may be
refuted. Clients train as usual, at a learning rate of 0.1, on a network of 2,080 parameters. There
are as many clients as canaries. Secure sums have no masks, which changes no sum.

    python benchmarks/audit_sabotage.py --effort quick

Takes a quarter of an hour of one busy core at quick. At full there are more runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import fedveil
from fedveil.errors import FedveilWarning
from fedveil.federated.job import Job
from fedveil.privacy import format_epsilon
from fedveil.privacy.finding import Finding
from row_choice import chosen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import sabotage as s

#: Numbers of canaries and rounds.
EFFORTS = ((20, 2), (100, 2), (100, 6))
_SUM = {"reconstruct_secrets_threshold": 2}
_AGAIN = (s.same_noise_each_round, s.same_noise_every_second_round)
#: Protections with their parameters, and the faults that apply to them.
ROWS: Sequence[tuple[str, str, dict[str, Any], Sequence[s.Sabotage]]] = (
    ("dp_encrypt", "the defaults", {},
     (*_AGAIN, s.same_noise_for_all_clients, s.half_the_noise, s.clip_twice_too_large)),
    ("central_gaussian", "the defaults", {},
     (*_AGAIN, s.half_the_noise, s.clip_twice_too_large)),
    ("distributed_dp", "the defaults", {"distributed_dp": _SUM},
     (*_AGAIN, s.half_the_noise, s.clip_twice_too_large,
      s.a_tenth_of_the_shares_missing)),
    ("signds", "the defaults", {}, (*_AGAIN, s.bit_in_clear)),
    ("signds", "sign_eps 1", {"signds": {"sign_eps": 1.0}},
     (*_AGAIN, s.bit_in_clear, s.selection_of_twice_the_epsilon)),
    ("rr", "the defaults", {},
     (*_AGAIN, s.epsilon_off_by_a_hundredth, s.lies_off_by_a_hundredth,
      s.half_the_lies)),
    ("rr", "report bits", {"unary": {"report": "bits"}},
     (*_AGAIN, s.epsilon_off_by_a_hundredth, s.lies_off_by_a_hundredth)),
    ("oue", "the defaults", {}, (*_AGAIN, s.half_the_lies)),
)  # fmt: skip


def job(position: str, own: dict[str, Any], canaries: int, rounds: int, seed: int) -> Job:
    """Return a job with this protection and as many clients as canaries."""
    return Job(
        name="sabotaged", seed=seed, rounds=rounds, model="attack_canaries:net",
        clients={"number": canaries, "fraction": 1.0},
        data={"name": "attack_canaries:data"},
        training={"epochs": 1, "batch_size": 20, "lr": 0.1},
        evaluation={"every": rounds}, checkpoint={"every": rounds},
        record={"page": False}, simulation={"workers": 0, "masks": False},
        audit={"canaries": canaries}, protection={"name": position, **own},
    )  # fmt: skip


def audited(job: Job) -> Finding:
    """Run `job`, and return the finding of its audit."""
    with tempfile.TemporaryDirectory() as folder:
        finding = fedveil.simulate(job, Path(folder) / "run").audit
    assert finding is not None
    return finding


def row(
    position: str,
    own: dict[str, Any],
    fault: s.Sabotage,
    efforts: Sequence[tuple[int, int]],
    runs: int,
) -> tuple[list[str], list[str]]:
    """Run the audit with a planted fault. Returns table cells, and the names of bounds.

    Each pair (canaries, rounds) in `efforts` has a cell: the number of refuted runs, and the claim.
    The bounds are those that refuted a run of the last effort.
    """
    cells, by = [], set()
    for canaries, rounds in efforts:
        refuted = 0
        for seed in range(runs):
            with fault():
                found = audited(job(position, own, canaries, rounds, seed))
            refuted += found.refutes
            if (canaries, rounds) == tuple(efforts[-1]):
                by |= {of.name.partition(", ")[2] or "whatever holds" for of in found.excesses}
        cells.append(f"{refuted} (claim {format_epsilon(found.epsilon)})")
    return cells, sorted(by)


def none() -> AbstractContextManager[None]:
    """Plant no fault."""
    return nullcontext()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", choices=["quick", "full"], default="quick")
    parser.add_argument("--only", default="", help="only protections whose name starts with this")
    parser.add_argument("--fault", default="", help="only faults whose name contains this")
    given = parser.parse_args()
    runs, sound = (5, 40) if given.effort == "quick" else (10, 100)
    positions = chosen(parser, (position for position, *_ in ROWS), given.only)
    rows = [
        (position, how, own, fault, fault.__name__.replace("_", " "))
        for position, how, own, faults in ROWS
        if position in positions
        for fault in (none, *faults)
    ]
    named = (name for *_, name in rows)
    names = chosen(parser, named, given.fault, anywhere=True, option="--fault")
    warnings.simplefilter("ignore", FedveilWarning)
    heads = [f"{canaries} canaries, {rounds} rounds" for canaries, rounds in EFFORTS]
    print(f"| protection | fault | runs | {' | '.join(heads)} | found at the last by |")
    print("|---|---|---|" + "---|" * (len(heads) + 1))
    began = time.perf_counter()
    for position, how, own, fault, name in rows:
        if name in names:
            count = sound if fault is none else runs
            cells, by = row(position, own, fault, EFFORTS, count)
            line = [f"{position}, {how}", name, str(count), *cells, "; ".join(by)]
            print(f"| {' | '.join(line)} |", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
