"""Recovers labels and tokens as a follower in split training: docs/attacks/split-learning.md.

    python benchmarks/attack_labels.py labels [--effort quick] [--data digits]
    python benchmarks/attack_labels.py tokens [--effort quick] [--text FILE]
    python benchmarks/attack_labels.py copies [--effort quick] [--text FILE] [--epochs 1]

`labels` attacks `task: tables` (the breast cancer table of scikit-learn as two CSV files), the
table of three classes and halves of images, without protection and under LabelDP. `--data mnist`
needs FEDVEIL_DATA. `tokens` attacks `task: pangu` (tiny) before the first step under EmbeddingDP
with several eps. `copies` attacks finished runs of `--epochs` epochs, in which the attacker may
have only the tables from before the run. Takes one core; at `quick` half a minute for labels, two
for tokens, four for copies.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets

from fedveil.attacks.effort import Effort, Watch
from fedveil.attacks.split import labels, tokens
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.privacy.finding import EFFORTS, Finding
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.blocks import PrivacySettings

LABEL_DP: dict[str, Mapping[str, Any]] = {
    "none": {},
    "label_dp, eps 3": {"label_dp": {"eps": 3.0}},
    "label_dp, eps 1": {"label_dp": {"eps": 1.0}},
    "label_dp, eps 0.3": {"label_dp": {"eps": 0.3}},
    "embedding_dp, eps 1": {"embedding_dp": {"eps": 1.0}},
}
EMBEDDING_DP: dict[str, Mapping[str, Any]] = {
    "none": {},
    "one bit, no noise": {"embedding_dp": {"eps": None}},
    **{f"eps {eps:g}": {"embedding_dp": {"eps": eps}} for eps in (5.0, 2.0, 1.0, 0.5, 0.0)},
}


def shown(name: str, findings: Iterable[tuple[str, Finding]]) -> None:
    """Print a table with a line for each protection and a column for each figure."""
    heads: list[str] = []
    for protection, finding in findings:
        if not heads:
            heads = [figure.name for figure in finding.figures]
            print(
                f"\n| {name} | {' | '.join(heads)} | guessing |\n" + "|---" * (len(heads) + 2) + "|"
            )
        cells = []
        for figure in finding.figures:
            span = "" if np.isnan(figure.low) else f" [{figure.low:.3f}, {figure.high:.3f}]"
            cells.append(f"{figure.value:.3f}{span}")
        cells += [""] * (len(heads) - len(cells))
        print(
            f"| {protection} | {' | '.join(cells)} | {finding.figures[0].guess:.3f} |", flush=True
        )


def two_files(folder: Path) -> dict[str, Any]:
    """Write the breast cancer table as two CSV files, and return the task `tables` for them.

    The leader has the labels and the first half of the columns.
    """
    bunch: Any = datasets.load_breast_cancer()
    ids = np.arange(len(bunch.data))
    halves = {"leader": bunch.data[:, :15], "bank": bunch.data[:, 15:]}
    files: dict[str, dict[str, str]] = {}
    for party, values in halves.items():
        columns = {"id": ids} | {f"x{i}": values[:, i] for i in range(values.shape[1])}
        columns |= {"label": bunch.target} if party == "leader" else {}
        lines = [
            ",".join(columns),
            *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
        ]
        path = folder / f"{party}.csv"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        files[party] = {"path": str(path)} | ({"label": "label"} if party == "leader" else {})
    return {"name": "tables", "tables": {"files": files}}


def of_labels(effort: Effort, data: str) -> None:
    """Attack the labels of three tasks, and print a table for each."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = {
            "tables, 2 classes": two_files(Path(folder)),
            "tabular (wine), 3 classes": {"name": "tabular", "tabular": {"table": "wine"}},
            f"mnist_halves ({data}), 10 classes": {
                "name": "mnist_halves",
                "mnist_halves": {"data": data},
            },
        }
        for name, task in tasks.items():
            target = SplitTarget.of(VerticalJob(task=task))
            shown(name, each(target, LABEL_DP, effort, labels))


def of_tokens(effort: Effort, text: str | None) -> None:
    """Attack the tokens of a model that is not trained yet, and print the table."""
    target = SplitTarget.of(VerticalJob(task=pangu(text)))
    shown("before the first step", each(target, EMBEDDING_DP, effort, tokens))


def of_copies(effort: Effort, text: str | None, epochs: int) -> None:
    """Train two runs, attack their tokens, and print a table for each.

    Some attackers have only the tables of vectors from before the run.
    """
    for eps in (None, 5.0):
        privacy = {} if eps is None else {"embedding_dp": {"eps": eps}}
        with tempfile.TemporaryDirectory() as folder:
            run = train(
                VerticalJob(task=pangu(text), epochs=epochs, privacy=privacy), Path(folder) / "run"
            )
            name = f"after epoch {epochs}" + ("" if eps is None else f" at eps {eps:g}")
            kept = {key: EMBEDDING_DP[key] for key in (("none",) if eps is None else ("eps 5",))}
            shown(name, each(SplitTarget.of_run(run.folder), kept, effort, tokens))


def pangu(text: str | None) -> dict[str, Any]:
    """Return the task `pangu` on the file `text`, or (None) on the texts of Python's own help."""
    return {"name": "pangu", "pangu": {"text": text}}


def each(
    target: SplitTarget, protections: Mapping[str, Mapping[str, Any]], effort: Effort, attack: Any
) -> Iterable[tuple[str, Finding]]:
    """Yield the attack's finding under each protection."""
    for protection, privacy in protections.items():
        found = attack.attack(target.under(PrivacySettings(**privacy)), effort, Watch())
        yield protection, found


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("labels", "tokens", "copies"))
    parser.add_argument("--effort", choices=EFFORTS, default="quick")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--text")
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.what == "labels":
        of_labels(given.effort, given.data)
    elif given.what == "tokens":
        of_tokens(given.effort, given.text)
    else:
        of_copies(given.effort, given.text, given.epochs)


if __name__ == "__main__":
    main()
