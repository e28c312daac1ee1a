"""The table of all experiments over their pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments import EXPERIMENTS
from experiments.catalog import find
from experiments.experiment import Scale
from experiments.outcome_page import why_smaller
from experiments.page_index import index
from experiments.statement_list import Judged
from fedveil.studies.checkout import SCALE_RULES
from folders import DOCS

PAGES = DOCS / "reproductions"


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "ldp-cells.md").write_text(
        "# ldp-cells\n\n**1 of 3 results agree with the source; 2 say nothing.** Scale: small.\n"
    )
    lines = index(tmp_path).splitlines()
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("|")}
    assert "| 1 of 3 agree; 2 say nothing | small |" in rows["[ldp-cells](ldp-cells.md)"]
    assert "| not run |  |" in rows["ldp-epsilon"]
    assert sum(line.count("|") == 6 for line in lines) == 2 + len(EXPERIMENTS)
    assert rows["`rounds`"] == "| `rounds` | 500 | 30 |"
    assert "As in the source: `clients.fraction` 0.5, `training.optimizer` sgd, `" in "".join(lines)


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if (PAGES / f"{n}.md").is_file()])
def test_a_page_counts_its_own_verdicts_and_has_its_figures(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text("utf-8")
    agree, of = map(int, re.search(r"\*\*(\d+) of (\d+) results agree", text).groups())  # type: ignore[union-attr]
    silent = text.count("| says nothing |")
    assert text.count("| agrees |") == agree
    assert text.count("| differs |") == of - agree - silent
    said = re.search(r"; (\d+) says? nothing\.\*\*", text)
    assert silent == (int(said[1]) if said else 0)
    for figure in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text):
        assert (PAGES / figure).is_file()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_keeps_the_rule_of_its_scales(name: str) -> None:
    experiment = find(name)
    assert SCALE_RULES["small"] == "takes minutes"
    assert SCALE_RULES["medium"] == "takes up to five hours"
    assert experiment.estimate_s("small") < 3600
    if "medium" in experiment.scales:
        assert experiment.estimate_s("medium") <= 5 * 3600


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if (PAGES / f"{n}.md").is_file()])
def test_a_page_below_the_sources_size_says_why(name: str) -> None:
    """The two pages whose reason is `SHARED`, on the index, refer to it."""
    text, experiment = (PAGES / f"{name}.md").read_text("utf-8"), find(name)
    scale: Scale = Judged.of(PAGES / f"{name}.md").scale  # type: ignore[assignment]
    said = why_smaller(experiment, scale)
    assert said in text
    if name in ("ldp-epsilon", "ldp-adaptive") and scale == "medium":
        assert "Small dense nets at scale medium" in index(PAGES)
        assert "The index of these pages states all settings" in text
    else:
        assert bool(said) == (scale != "full")
    assert "-" not in said.split()  # a scale that is not there takes no time


def test_a_scale_that_an_experiment_does_not_have_is_no_reason() -> None:
    for name in EXPERIMENTS:
        experiment = find(name)
        for scale in experiment.scales:
            assert "takes about - on" not in why_smaller(experiment, scale)
