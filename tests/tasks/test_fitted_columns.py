"""One row moves the statistics of its column, and so the bits of all other rows."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.pages.vertical_summary import _uncovered
from fedveil.record.account_lines import influence, influenced_part
from fedveil.vertical import VerticalJob
from fedveil.vertical.account import figures
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
from scoring_parts import columns_of, job_of, write_table

RELEASES: Any = SimpleNamespace(train=np.array([2, 1]), looks=1)


def tables(folder: Path, first: float | None) -> VerticalJob:
    """Return a job whose follower's reports are protected. `first` is the bank's first number.

    None means the number that was drawn for the row.
    """
    folder.mkdir()
    lead, bank = columns_of(83, 0, 5)
    if first is not None:
        bank["z0"] = np.append(first, bank["z0"][1:])
    write_table(folder / "lead.csv", lead)
    write_table(folder / "bank.csv", bank)
    return job_of(folder, privacy={"embedding_dp": {"eps": 1.0}})


def test_one_row_of_a_table_moves_the_bits_of_all_others_and_the_account_says_so(
    tmp_path: Path,
) -> None:
    bits = []
    for number, first in enumerate((None, 1e7)):
        job = tables(tmp_path / str(number), first)
        task = make_task(job, None)
        split = make_split(job, task)
        for name in ("bank_wide", "bank_deep"):
            split = split.replace(name, frozen=True)
        (part,) = [part for part in split.parts if part.name == "bank_deep"]
        rows = task.owned("bank", "train")
        order = torch.from_numpy(np.argsort(rows.ids))
        assert part.module is not None
        with torch.no_grad():
            bits.append(part.module(*(rows.columns[name][order] for name in part.columns)) > 0)
    same = (bits[0] == bits[1]).all(dim=1)
    assert not same.all()
    assert int(same.sum()) < len(same) - 1, "more than one row's bits have moved"
    lines = figures(split, "bank", RELEASES, 1e-5, None)
    told = [line for line in lines if influenced_part(line.what, "columns")]
    assert [influenced_part(line.what) for line in told] == ["bank_wide", "bank_deep"]
    assert all(line.epsilon == math.inf for line in told)
    assert not any(influenced_part(line.what, "training") for line in lines), "they are frozen"
    assert math.isfinite(lines[-1].epsilon), "an example's own reports"
    assert _uncovered(lines) == (
        " No epsilon covers an example's influence on the reports of others, through statistics of "
        "the columns that are read by bank_wide and bank_deep."
    )


def test_every_task_that_fits_its_columns_declares_it() -> None:
    jobs: list[tuple[dict[str, Any], bool]] = [
        ({"task": "tabular"}, True),
        ({"task": "mnist_halves"}, False),
        ({"task": "vertical_parts:bottoms"}, False),
    ]
    for job, fitted in jobs:
        checked = VerticalJob.model_validate(job)
        split = make_split(checked, make_task(checked, None))
        own = [part for part in split.parts if part.columns]
        assert own
        assert {part.fitted for part in own} == {fitted}, job


def test_only_a_protected_part_that_reads_fitted_columns_has_the_line() -> None:
    def stated(party: str, *, fitted: bool, privacy: EmbeddingPrivacy | None) -> list[str]:
        inner = Part("inner", "bank", ("data.x",), (4,), nn.Linear(3, 4), frozen=True,
                     fitted=fitted)  # fmt: skip
        outer = Part("outer", "bank", ("inner",), (4,), nn.Linear(4, 4), frozen=True,
                     privacy=privacy, fitted=True)  # fmt: skip
        top = Part("top", "lead", ("outer", "data.y"), (2,), nn.Linear(4, 2), fitted=True)
        split = SplitModel([inner, outer, top], leader="lead")
        lines = figures(split, party, RELEASES, 1e-5, None)
        return [line.what for line in lines if influenced_part(line.what)]

    eps = EmbeddingPrivacy(0.5)
    assert stated("bank", fitted=True, privacy=eps) == [influence("inner", "columns")]
    assert stated("bank", fitted=False, privacy=eps) == []
    assert stated("bank", fitted=True, privacy=None) == [], "its own values are sent as they are"
    assert stated("lead", fitted=True, privacy=eps) == []
