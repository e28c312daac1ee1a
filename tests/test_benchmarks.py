"""The benchmarks' command lines refuse a part that does not exist before they measure anything."""

from __future__ import annotations

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
