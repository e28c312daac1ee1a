"""The benchmarks' command lines refuse a part that does not exist before they measure anything."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
#: A benchmark -> two of its parts.
PARTS = {
    "federated_statistics": ("sites", "opendp"),
    "attack_membership": ("overfitted", "references"),
    "attack_canaries": ("tightness", "accuracy"),
    "mnist": ("signds", "unary"),
}
#: A benchmark -> arguments of which one matches nothing, and two or more of the possible values.
CHOICES = {
    "private_photos": ("test --only nonsense", "epsilon 3", "no noise"),
    "private_writers": ("choose --only nonsense", "filters_linear, epsilon 2"),
    "private_tables": ("organisations --only nonsense", "dp_encrypt", "distributed_dp"),
    "private_mnist": ("bits --only nonsense", "100 clients, epsilon 8, 16 bits"),
    "attack_distinguish": ("--only nonsense", "rr, bits", "embedding_dp"),
    "attack_membership": (
        "mnist clients --only nonsense", "rr, eps 9.6", "digits, 4 clients, oue, eps 9.6",
    ),
    "attack_classes": ("--only nonsense", "digits, rr eps 4.8, one step"),
    "attack_reports": ("--only rr nonsense", "signds", "oue"),
    "attack_steal": ("--only nonsense", "signds", "central_gaussian"),
    "audit_sabotage": ("--only signds --fault nonsense", "bit in clear", "none"),
    "party_memory": ("--preset nonsense", "tiny", "2.6B"),
    "vertical_batch": ("--preset nonsense", "small", "350M"),
}  # fmt: skip


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a benchmark, which must end with a usage error.

    It returns what the benchmark prints, and the sentence of the error.
    """
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(BENCHMARKS)

    def ending(script: str, *arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *arguments])
        module = __import__(script)
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        return out, err.splitlines()[-1]

    return ending


@pytest.mark.parametrize("script", PARTS)
def test_a_part_that_does_not_exist_is_refused_and_every_part_is_named(
    script: str, refused: Any
) -> None:
    # The first part exists: it must not run for hours before the second one is read.
    _, sentence = refused(script, PARTS[script][0], "nonsense")
    assert "'nonsense'" in sentence
    assert all(f"'{part}'" in sentence for part in PARTS[script])


@pytest.mark.parametrize("script", CHOICES)
def test_a_choice_that_matches_no_row_is_refused_and_every_row_is_named(
    script: str, refused: Any
) -> None:
    given, *names = CHOICES[script]
    out, sentence = refused(script, *given.split())
    assert "'nonsense'" in sentence
    assert all(f"'{name}'" in sentence for name in names)
    assert out == ""


def test_a_choice_by_the_start_of_a_name_or_by_any_part_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    chosen = __import__("row_choice").chosen
    parser, names = ArgumentParser(), ("rr", "rr, bits", "bits", "rr")
    assert chosen(parser, names, "rr") == ["rr", "rr, bits"]
    assert chosen(parser, names, "bits") == ["bits"]
    assert chosen(parser, names, "bits", anywhere=True) == ["rr, bits", "bits"]
    assert chosen(parser, names, "") == ["rr", "rr, bits", "bits"]
    with pytest.raises(SystemExit):
        chosen(parser, names, "its", option="--fault")
    said = (
        "--fault is 'its', but no row's name starts with it. The rows are 'rr', 'rr, bits', 'bits'"
    )
    assert said in capsys.readouterr().err


def test_an_intersection_of_no_ids_is_refused(refused: Any) -> None:
    pytest.importorskip("grpc")
    _, sentence = refused("alignment", "--ids", "100000", "--ids", "0")
    assert sentence.endswith("--ids is 0. Use a number of 1 or more")


def test_a_measurement_that_fails_in_its_process_ends_the_benchmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    with pytest.raises(SystemExit, match="abs failed in its process"):
        __import__("new_process").alone(abs)  # a pipe has no absolute value


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


def test_no_benchmark_has_the_name_of_a_test_module() -> None:
    """Both are imported by their names alone, so one would be taken for the other."""
    support = {path.stem for path in Path(__file__).parent.glob("support/*.py")}
    assert not support & {path.stem for path in BENCHMARKS.glob("*.py")}
