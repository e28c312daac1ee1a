"""What a terminal shows of a run."""

from __future__ import annotations

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedveil import plain_text
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.ledger import Line
from fedveil.privacy.promise import Figure
from fedveil.run_display import RunDisplay, _promised, fitted

ROUNDS = 20
RECORD: dict[str, Any] = {
    "accuracy": 0.7131, "loss": 0.902, "auc": 0.95, "bytes_up_per_client": 1_234_567,
    "reports": 5, "rejected": {"wrong length": 3}, "withheld": {}, "failed": {}, "unusable": {},
    "void": None, "unit": "client",
    **{
        f"{kind}_{name}": value
        for kind, value in (("epsilon", 123456.7), ("delta", 1e-5))
        for name in ("per_bit", "per_parameter", "per_round", "run_every_round", "run_most_drawn")
    },
}  # fmt: skip


def shown(width: int, rounds: int = ROUNDS) -> list[str]:
    """The live line after each of the first rounds, on a terminal of that width."""
    out = io.StringIO()
    console = plain_text.console(file=out, width=width, force_terminal=True, color_system=None)
    lines = []
    with RunDisplay(console, rounds) as display:
        for number in range(1, 8):
            display.show({**RECORD, "round": number})
            display._bar.refresh()
            lines.append(out.getvalue().splitlines()[-1].split("\r")[-1])
    return [line.removeprefix("\x1b[2K") for line in lines]


@pytest.mark.parametrize("width", [60, 80, 100, 110, 120, 160])
@pytest.mark.parametrize("rounds", [20, 1000])
def test_every_width_shows_round_total_time_left_and_accuracy(width: int, rounds: int) -> None:
    for number, line in enumerate(shown(width, rounds), 1):
        assert len(line.rstrip()) <= width
        assert "…" not in line
        assert line.split()[0] == "round"
        assert f"{number}/{rounds} " in line
        assert "accuracy 0.7131" in line
        time_left = line[: line.index("accuracy")].split()[-1]
        assert len(time_left) == len("0:00:00"), time_left
        assert time_left.count(":") == 2
    assert ("━" in line) == (width >= 110 and rounds == ROUNDS)  # 7 of 1000 have no length yet


def job_of(name: str, *, trusted: bool = False, unit: str = "client") -> Any:
    """What the display reads of a job."""
    position = SimpleNamespace(rests_on_server=lambda settings: trusted)
    protection = SimpleNamespace(name=name, position=position, settings=None)
    return SimpleNamespace(protection=protection, rounds=1, privacy=SimpleNamespace(unit=unit))


def test_a_narrow_line_goes_without_what_can_be_read_up_later() -> None:
    line = "accuracy 0.71 · loss 0.90 · up 1.2 MB/client · epsilon 9 · 3 clients left out · void"
    assert fitted(line, 100) == line
    assert fitted(line, 70) == "accuracy 0.71 · loss 0.90 · epsilon 9 · 3 clients left out · void"
    assert fitted(line, 60) == "accuracy 0.71 · epsilon 9 · 3 clients left out · void"
    assert fitted(line, 50) == "accuracy 0.71 · 3 clients left out · void"
    assert fitted(line, 10) == "accuracy 0"


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    out = io.StringIO()
    display = RunDisplay(plain_text.console(file=out, width=120), 1)
    record = {**RECORD, "round": 1, "randomness": "[red]emo:train :smile:"}
    job = job_of("my:train:Own [bold]")
    run: Any = SimpleNamespace(
        metrics=[record],
        job=job,
        audit=None,
        stopped=":train: came",
        others=[Line(1.5, 1e-5, "whoever only gets the models")],
        folder=tmp_path / "[red]:train:",
    )
    display.summary(run)
    for text in (
        "my:train:Own [bold]",
        "[red]emo:train :smile:",
        ": :train: came",
        "1.5 (meaningful) for whoever only gets the models",
        "/[red]:train:",
    ):
        assert text in out.getvalue()


@pytest.mark.parametrize(
    ("bound", "verdict"), [(1.5, "not refuted"), (2.5, "NOT WHAT WAS PROMISED")]
)
def test_the_summary_holds_what_canaries_found_beside_what_was_promised(
    bound: float, verdict: str
) -> None:
    figures = [
        Measured("epsilon at least", bound, cases=40),
        Measured("epsilon at least, if canaries tell nothing of each other", 1.75, cases=40),
        Measured("the most that so many could show", 3.25, cases=40),
    ]
    audit = Finding("canaries", "standard", "dp_encrypt", figures, epsilon=2.0, delta=1e-5)
    job = job_of("dp_encrypt")
    run: Any = SimpleNamespace(
        job=job,
        metrics=[{**RECORD, "round": 1}],
        audit=audit,
        stopped=None,
        others=(),
        folder=Path("here"),
    )
    out = io.StringIO()
    RunDisplay(plain_text.console(file=out, width=160), 1).summary(run)
    assert (
        f"epsilon at least {bound} at confidence 0.95, of 3.25 that 40 canaries can show;"
        in out.getvalue()
    )
    assert (
        "1.75 if they tell nothing of each other; promised for the run, in every round: "
        f"2 (meaningful): {verdict}"
    ) in out.getvalue()


@pytest.mark.parametrize(
    ("epsilon", "trusted", "unit", "said"),
    [
        (math.inf, False, "client", "none: what is sent may tell everything about a client"),
        (
            1.0, False, "client",
            "strong: whoever knows all that the server sees and all but which of two data sets a "
            "client has guesses right at most 732 times in 1,000; a coin does 500 times",
        ),
        (
            1.0, True, "example",
            "strong: whoever knows all that everybody else sees and all but which of two examples "
            "a client has guesses right at most 732 times in 1,000; a coin does 500 times, and the "
            "server, which is trusted, needs no guess",
        ),
    ],
)  # fmt: skip
def test_what_is_promised_is_said_of_an_attacker(
    epsilon: float, trusted: bool, unit: str, said: str
) -> None:
    run: Any = SimpleNamespace(job=job_of("x", trusted=trusted, unit=unit))
    assert _promised(run, Figure(epsilon, 1e-5)) == said
