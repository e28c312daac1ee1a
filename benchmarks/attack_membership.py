"""Membership inference from a trained model and from single reports: docs/attacks/membership.md.

    FEDVEIL_DATA=FOLDER python benchmarks/attack_membership.py [PART ...] [--effort quick]
    FEDVEIL_DATA=FOLDER python benchmarks/attack_membership.py references --folder DIR

overfitted: Location-30 and purchase100-synthetic with the dense network of the literature, MNIST
with LeNet, 1,000 to 2,000 members each, without protection. positions: Location-30 under every
protection with two or three settings. mnist and purchase: the same for the other two datasets. At
quick the parts take 4, 6, 10 and 20 minutes of one core. The four reference runs of each job take
half of this time (standard has 32). references: what each attack on Location-30's overfitted model
gains from more reference models. Every model's answers are saved in `--folder`, so an interrupted
part resumes. 33 models take six minutes. clients: whether a client took part, for 4 and 20 clients
with examples of the digits and of Location-30, under every protection with a few settings.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from fedveil.attacks.effort import Effort, Watch
from fedveil.attacks.membership import client_membership
from fedveil.attacks.membership.membership import METHODS, attack, on_examples
from fedveil.attacks.membership.model_answers import Answers, answers
from fedveil.attacks.membership.references import References, halves, threshold
from fedveil.attacks.membership.shadow_runs import Pool, rehearse, split
from fedveil.attacks.roc import figures
from fedveil.attacks.target import Target
from fedveil.base.array_types import Bools
from fedveil.data.datasets import load
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.privacy import epsilon_text
from fedveil.privacy.finding import Finding
from row_choice import chosen

FOUR = ("clients={number: 4, fraction: 1.0}",)
TWENTY = ("clients={number: 20, fraction: 1.0}",)
ADAM = "training={epochs: 10, batch_size: 50, optimizer: adam, lr: 0.001}"
OVERFITTED = {
    "Location-30, dense net": (
        "data.name=attack_membership:location", "model=purchase_dnn", *FOUR, "rounds=4", ADAM,
    ),
    "purchase100-synthetic, dense net": (
        "data.name=attack_membership:purchase", "model=purchase_dnn", *FOUR, "rounds=4",
        "training={epochs: 5, batch_size: 50, optimizer: adam, lr: 0.001}",
    ),
    "MNIST, LeNet": (
        "data.name=attack_membership:mnist", "model=lenet", *FOUR, "rounds=10",
        "training={epochs: 10, batch_size: 20, lr: 0.1}",
    ),
}  # fmt: skip
MANY = (
    "data.name=attack_membership:location", "model=mlp", *TWENTY, "rounds=10",
    "training={epochs: 10, batch_size: 10, lr: 0.2}",
)  # fmt: skip
POSITIONS = {
    "not_encrypt": (),
    "pw_encrypt": (),
    **{
        f"pw_encrypt, central_eps {e}": (f"protection.pw_encrypt.central_eps={e}",)
        for e in (500, 50)
    },
    **{
        f"{name}, target_epsilon {e}": (f"protection.{name}.target_epsilon={e}",)
        for name in ("distributed_dp", "central_gaussian")
        for e in (500, 50, 8)
    },
    **{f"dp_encrypt, dp_eps {e}": (f"protection.dp_encrypt.dp_eps={e}",) for e in (5000, 500, 50)},
    **{
        f"signds, sign_eps {e}, sign_k 0.01": (
            f"protection.signds.sign_eps={e}",
            "protection.signds.sign_k=0.01",
        )
        for e in (100, 10, 1)
    },
    **{
        f"{name}, eps {e}": (f"protection.unary.eps={e}",)
        for name in ("rr", "oue")
        for e in (9.6, 4.8, 1)
    },
}
CLIENT_JOBS = {"digits": ("data.name=digits", "model=logistic", "rounds=10"), "Location-30": MANY}
#: The rows of `clients`, each with its dataset, number of clients and protection.
BY_CLIENT = {
    f"{data}, {count} clients, {name}": (data, count, name)
    for data, count in product(CLIENT_JOBS, (4, 20))
    for name in (
        "not_encrypt", "pw_encrypt", "pw_encrypt, central_eps 50",
        "distributed_dp, target_epsilon 500", "distributed_dp, target_epsilon 50",
        "distributed_dp, target_epsilon 8",
        "dp_encrypt, dp_eps 500", "dp_encrypt, dp_eps 50", "signds, sign_eps 100, sign_k 0.01",
        "rr, eps 9.6", "oue, eps 9.6",
    )
}  # fmt: skip
SHOWN = (
    "accuracy on members", "accuracy on others", "loss balanced accuracy",
    "calibrated loss balanced accuracy", "shadow models balanced accuracy", "LiRA AUC",
    "LiRA TPR at 1.0% FPR", "report's gradient balanced accuracy", "report's gradient AUC",
    "report's gradient TPR at 1.0% FPR", "report's loss AUC",
)  # fmt: skip


def location() -> tuple[object, ...]:
    """Return 2,000 training examples of Location-30. The attack makes half of them members."""
    return _cut("location30", 2000)


def purchase() -> tuple[object, ...]:
    """Return 4,000 training examples of synthetic shoppers.

    The attack makes half of them members.
    """
    return _cut("purchase100-synthetic", 4000)


def mnist() -> tuple[object, ...]:
    """Return 2,000 training examples of digits. The attack makes half of them members."""
    return _cut("mnist", 2000)


def _cut(name: str, examples: int) -> tuple[object, ...]:
    data = load(name)
    return data.train.x[:examples], data.train.y[:examples], data.test.x[:1000], data.test.y[:1000]


def found(name: str, overrides: Sequence[str], effort: Effort) -> Finding:
    """Return the finding of the membership attack on the job with the settings `overrides`."""
    watch = Watch(lambda done, total, what: print(f"  {what}", file=sys.stderr, flush=True))
    began = time.monotonic()
    finding = attack(Target.of(Job.load(None, overrides)), effort, watch)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return finding


def overfitted(effort: Effort, only: str) -> None:
    """Attack the overfitted models, which have no protection, and print every figure."""
    for name, job in OVERFITTED.items():
        if name.startswith(only):
            finding = found(name, job, effort)
            print(f"{name}, effort {effort}")
            for figure in finding.figures:
                print(f"    {figure}", flush=True)


def positions(effort: Effort, only: str) -> None:
    """Print a line for each protection and setting on Location-30."""
    table(f"Location-30, effort {effort}", MANY, effort, only)


def overfitted_positions(effort: Effort, only: str, data: str) -> None:
    """Print a line for each protection and setting, on the overfitted job named after `data`."""
    name = next(name for name in OVERFITTED if name.startswith(data))
    table(f"{name}, effort {effort}", OVERFITTED[name], effort, only)


def table(name: str, job: Sequence[str], effort: Effort, only: str) -> None:
    """Print a job's findings under every protection whose name starts with `only`.

    If the server sees only a sum, the columns about reports show the attacks on the sum.
    """
    print(f"\n| {name} | epsilon of a report | of the run | {' | '.join(SHOWN)} |")
    print("|---" * (3 + len(SHOWN)) + "|")
    for name, settings in POSITIONS.items():
        if not name.startswith(only):
            continue
        overrides = under(name, settings, job)
        began, target = time.monotonic(), Target.of(Job.load(None, overrides))
        report, run = target.promised(), target.promised(target.rounds)
        _, examples, _ = on_examples(target, effort, Watch())
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        figures = {figure.name.replace("sum's", "report's"): figure for figure in examples}
        cells = [
            f"{figures[shown].value:.3f} [{figures[shown].low:.3f}, {figures[shown].high:.3f}]"
            if shown in figures
            else "-"
            for shown in SHOWN
        ]
        spent = f"{epsilon_text(*report[:2])} | {epsilon_text(*run[:2])}"
        print(f"| {name} | {spent} | {' | '.join(cells)} |", flush=True)


def under(name: str, settings: Sequence[str], job: Sequence[str]) -> tuple[str, ...]:
    """Return a job's overrides with the protection that `name` begins with, and its settings."""
    clients = Job.load(None, job).clients_per_round
    threshold = f"reconstruct_secrets_threshold={clients // 2 + 1}"
    return (
        *job,
        f"protection.name={name.partition(',')[0]}",
        f"protection.pw_encrypt.{threshold}",
        f"protection.distributed_dp.{threshold}",
        "protection.distributed_dp.dropout_tolerance=0",
        *settings,
    )


def clients(effort: Effort, only: str) -> None:
    """Print how well an attacker tells which clients took part, for 4 and 20 clients."""
    shown = ("client AUC", "client balanced accuracy", "client TPR at 1.0% FPR")
    print(f"\n| clients, effort {effort} | rounds | epsilon | {' | '.join(shown)} | seconds |")
    print("|---" * (4 + len(shown)) + "|")
    for label, (data, count, name) in BY_CLIENT.items():
        if not label.startswith(only):
            continue
        job = (*CLIENT_JOBS[data], f"clients={{number: {count}, fraction: 1.0}}")
        began = time.monotonic()
        target = Target.of(Job.load(None, under(name, POSITIONS[name], job)))
        finding = client_membership.attack(target, effort, Watch())
        spent = epsilon_text(finding.epsilon, finding.delta)
        found = [str(finding.figure(figure)).partition(", g")[0] for figure in shown]
        cells = [text.removeprefix(figure) for text, figure in zip(found, shown, strict=True)]
        rounds = min(target.job.rounds, 5 if effort == "quick" else 20)
        taken = f"{time.monotonic() - began:.0f}"
        print(f"| {label} | {rounds} | {spent} |{' |'.join(cells)} | {taken} |", flush=True)


def references(effort: Effort, only: str, folder: Path) -> None:
    """Attack Location-30's model by 4, 16 and 32 reference models, and each of these by 31 others.

    Models and seeds are those of `overfitted --only Location --effort standard`. For one model, the
    true positive rate at 0.1% false positives depends on a single false positive. So its mean over
    the 32 models is printed too.
    """
    name = next(iter(OVERFITTED))
    target = Target.of(Job.load(None, OVERFITTED[name]))
    entropy = Seeded(target.job.seed, "attack", "membership")
    pool = Pool.training(target.dataset)
    members = halves(len(pool), 2, entropy.stream("members"))[0]
    attacked = _saved(folder / "attacked.npz", pool, members, target, target.job.seed)
    held = halves(len(pool), 32, entropy.stream("halves"))
    found = []
    for i, row in enumerate(held):
        seed = entropy.stream("seed", i).integer(1 << 31)
        found.append(_saved(folder / f"reference-{i}.npz", pool, row, target, seed))
    for count in (4, 16, 32):
        known = References(found[:count], held[:count], pool.y)
        print(f"{name}, {count} references")
        for method in ("LiRA", "online LiRA", "RMIA"):
            score = METHODS[method]
            scores, limit = score(attacked, known), threshold(score, known)
            for figure in figures(method, scores[members], scores[~members], limit):
                print(f"    {figure}", flush=True)
    whole = References(found, held, pool.y)
    for method in ("LiRA", "online LiRA", "RMIA"):
        each = []
        for which, row in enumerate(held):
            scores = METHODS[method](found[which], whole.without(which))
            each.append([f.value for f in figures(method, scores[row], scores[~row], 0.0)])
        _, area, _, low = zip(*each, strict=True)
        print(
            f"each reference by the 31 others, {method}: AUC {np.mean(area):.3f} "
            f"[{min(area):.3f}, {max(area):.3f}], TPR at 0.1% FPR {np.mean(low):.3f} "
            f"[{min(low):.3f}, {max(low):.3f}]",
            flush=True,
        )


def _saved(file: Path, pool: Pool, rows: Bools, target: Target, seed: int) -> Answers:
    """Return the answers of a model trained on `rows` of the pool, which `file` caches."""
    if not file.exists():
        model = rehearse(pool.target(target, split(rows)[0], seed)).model
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **vars(answers(model, pool.x, pool.y)))
        print(f"  {file.name}", file=sys.stderr, flush=True)
    with np.load(file, allow_pickle=False) as saved:
        return Answers(**saved)


PARTS = {
    "overfitted": overfitted,
    "positions": positions,
    "mnist": partial(overfitted_positions, data="MNIST"),
    "purchase": partial(overfitted_positions, data="purchase100"),
    "clients": clients,
}
#: The rows among which `--only` chooses, by part. `references` has the one row of its model.
ROWS: dict[str, Iterable[str]] = {
    "overfitted": OVERFITTED,
    **dict.fromkeys(("positions", "mnist", "purchase"), POSITIONS),
    "clients": BY_CLIENT,
    "references": [next(iter(OVERFITTED))],
}


def main() -> None:
    """Run the named parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "references"])
    parser.add_argument("--effort", default="quick", choices=("quick", "standard", "full"))
    parser.add_argument(
        "--only", default="", help="only this dataset or protection, by its first word"
    )
    parser.add_argument("--folder", type=Path, default="membership", help="of `references`")
    arguments = parser.parse_args()
    rows = [row for part in arguments.parts or PARTS for row in ROWS[part]]
    chosen(parser, rows, arguments.only)
    torch.set_num_threads(1)
    parts = {**PARTS, "references": partial(references, folder=arguments.folder)}
    for part in arguments.parts or PARTS:
        parts[part](arguments.effort, arguments.only)


if __name__ == "__main__":
    main()
