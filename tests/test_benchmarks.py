"""The benchmarks' command lines refuse a part that does not exist before they measure anything."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
#: A benchmark -> two of its parts.
PARTS = {
    "federated_statistics": ("sites", "opendp"),
    "attack_membership": ("overfitted", "references"),
    "attack_canaries": ("tightness", "accuracy"),
    "mnist": ("signds", "unary"),
}


@pytest.mark.parametrize("script", PARTS)
def test_a_part_that_does_not_exist_is_refused_and_every_part_is_named(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = __import__(script)
    # The first part exists: it must not run for hours before the second one is read.
    monkeypatch.setattr(sys, "argv", [f"{script}.py", PARTS[script][0], "nonsense"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    *_, sentence = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert "'nonsense'" in sentence
    assert all(f"'{part}'" in sentence for part in PARTS[script])


def test_no_benchmark_rounds_a_measured_epsilon_down() -> None:
    """RESULTS.md promises it. `g` is for an epsilon that the benchmark itself has chosen."""
    rounding = re.compile(r"\{(?:[^{}]*\.)?epsilon:[,]?[.]?\d*[fd%]\}")
    assert rounding.search('f"{found.epsilon:,.0f}"')
    assert rounding.search('f"{epsilon:.3f}"')
    wrong = [
        path.name
        for path in BENCHMARKS.glob("*.py")
        if rounding.search(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []
