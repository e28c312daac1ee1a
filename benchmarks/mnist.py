"""The accuracy of each protection on MNIST, and its cost: the curves of RESULTS.md.

    FEDVEIL_DATA=FOLDER python benchmarks/mnist.py [EXPERIMENT ...]

Every experiment prints its table. Without names all are run, which takes an hour on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fedveil
from fedveil.federated.job import Job
from fedveil.privacy import epsilon_text

BASE = ("data.name=mnist", "training={epochs: 1, batch_size: 20, lr: 0.1}", "evaluation.every=1")
#: 100 clients with 600 images each, all in every round.
HUNDRED = (*BASE, "clients={number: 100, fraction: 1.0}")
SIGNDS = ("protection=signds", "protection.signds.sign_k=0.2", "protection.signds.sign_eps=100")


def train(*overrides: str) -> list[dict[str, Any]]:
    """Run a job and return its records."""
    with tempfile.TemporaryDirectory() as folder:
        return fedveil.simulate(
            Job.load(None, overrides), Path(folder) / "run", progress=_show
        ).metrics


def _show(record: dict[str, Any]) -> None:
    if "accuracy" in record:
        print(f"  round {record['round']}: {record['accuracy']:.4f}", file=sys.stderr, flush=True)


def rounds_to(records: Sequence[dict[str, Any]], accuracy: float) -> str:
    """Return the number of the first round that reaches `accuracy`, or "never"."""
    reached = [r["round"] for r in records if r.get("accuracy", 0) >= accuracy]
    return str(reached[0]) if reached else "never"


def row(name: str, records: Sequence[dict[str, Any]]) -> str:
    """Return a line of a table."""
    last = records[-1]
    spent = epsilon_text(last["epsilon_run_most_drawn"], last["delta_run_most_drawn"])
    return (
        f"| {name} | {last['round']} | {last['accuracy']:.4f} | {rounds_to(records, 0.90)} | "
        f"{rounds_to(records, 0.95)} | {last['bytes_up_per_client']:,.0f} | {spent} |"
    )


HEAD = (
    "| run | rounds | accuracy | rounds to 0.90 | to 0.95 | bytes up per client and round "
    "| epsilon of the run |\n|---|---|---|---|---|---|---|"
)


def plain() -> None:
    """Run federated averaging, 30 rounds."""
    print(HEAD)
    print(row("not_encrypt, 100 clients", train(*HUNDRED, "rounds=30")), flush=True)


def signds() -> None:
    """Run SignDS with the settings of its paper, 30 rounds."""
    print(HEAD)
    print(row("signds, 100 clients", train(*HUNDRED, *SIGNDS, "rounds=30")), flush=True)


def dp_encrypt() -> None:
    """Run dp_encrypt at epsilon 50, delta 1e-3, clip 1, with more and more clients per round."""
    print(HEAD)
    for fraction in (0.1, 0.3, 1.0):
        records = train(
            *BASE,
            "rounds=20",
            f"clients={{number: 1000, fraction: {fraction}}}",
            "protection=dp_encrypt",
            "protection.dp_encrypt.dp_delta=0.001",
        )
        print(row(f"dp_encrypt, {round(1000 * fraction)} clients a round", records), flush=True)


def pw_encrypt() -> None:
    """Run secure aggregation, and plain averaging of the same clients.

    10% drop out in each round.
    """
    print(HEAD)
    base = (*HUNDRED, "rounds=20", "simulation.dropouts={masked: 0.1}")
    print(row("not_encrypt, 90 of 100 clients", train(*base)), flush=True)
    secure = ("protection=pw_encrypt", "protection.pw_encrypt.reconstruct_secrets_threshold=67")
    print(row("pw_encrypt, 90 of 100 clients", train(*base, *secure)), flush=True)


def unary() -> None:
    """Run RR and OUE by epsilon, clients, split and cells: 40 rounds, batch 10, 1,000 clients."""
    print(UNARY_HEAD)
    base = (*BASE, "rounds=40", "training.batch_size=10")
    many = "clients={number: 1000, fraction: 0.5}"
    few = "clients={number: 1000, fraction: 0.05}"
    shards = "data.split=shards"
    for name, more in (
        ("500 a round", (many,)),
        ("50 a round", (few,)),
        ("500 a round, shards", (many, shards)),
    ):
        print(unary_row(f"not_encrypt, {name}", train(*base, *more)), flush=True)
    runs: list[tuple[str, float, str, tuple[str, ...]]] = [
        *(("rr", eps, "500 a round", (many,)) for eps in (1.2, 2.4, 3.6, 4.8, 9.6)),
        *(("oue", eps, "500 a round", (many,)) for eps in (2.4, 4.8, 9.6)),
        ("rr", 4.8, "50 a round", (few,)),
        ("rr", 4.8, "500 a round, shards", (many, shards)),
        *(
            ("rr", 3.6, f"{cells} cells", (many, f"protection.unary.cells={cells}"))
            for cells in (5, 20, 120)
        ),
    ]
    for kind, eps, name, more in runs:
        records = train(*base, f"protection={kind}", f"protection.unary.eps={eps}", *more)
        print(unary_row(f"{kind}, eps {eps}, {name}", records), flush=True)


UNARY_HEAD = (
    "| run | accuracy, mean of the last 5 rounds | their spread | rounds to 0.80 | to 0.90 "
    "| bytes up per client and round | epsilon of the run |\n|---|---|---|---|---|---|---|"
)


def unary_row(name: str, records: Sequence[dict[str, Any]]) -> str:
    """Return a line of the table of noisy runs, with the mean over the last rounds."""
    ends = [record["accuracy"] for record in records[-5:]]
    last = records[-1]
    spent = epsilon_text(last["epsilon_run_most_drawn"], last["delta_run_most_drawn"])
    return (
        f"| {name} | {sum(ends) / len(ends):.4f} | {max(ends) - min(ends):.4f} | "
        f"{rounds_to(records, 0.80)} | {rounds_to(records, 0.90)} | "
        f"{last['bytes_up_per_client']:,.0f} | {spent} |"
    )


EXPERIMENTS: dict[str, Callable[[], None]] = {
    "plain": plain,
    "signds": signds,
    "dp_encrypt": dp_encrypt,
    "pw_encrypt": pw_encrypt,
    "unary": unary,
}


def main() -> None:
    """Run the named experiments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", nargs="*", choices=EXPERIMENTS)
    for name in parser.parse_args().experiment or EXPERIMENTS:
        print(f"\n### {name}: {EXPERIMENTS[name].__doc__}\n", flush=True)
        EXPERIMENTS[name]()


if __name__ == "__main__":
    main()
