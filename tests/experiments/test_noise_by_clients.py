"""DP_ENCRYPT's noise by the number of clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import noise_by_clients
from experiments.noise_by_clients import CLIENTS, CLIPS, NoiseByClients, Reached, judged
from fedveil.studies.reproduction import reproduce


def test_the_runs_have_what_the_source_advises() -> None:
    arms = NoiseByClients().arms("full")
    for (n, clip, seed), arm in arms.items():
        assert (arm.job.clients.number, arm.job.seed) == (n, seed)
        settings = arm.job.protection.dp_encrypt
        assert arm.job.protection.name == ("dp_encrypt" if clip else "not_encrypt")
        if clip:
            found = (settings.dp_eps, settings.dp_norm_clip, settings.dp_delta)
            assert found == (50, clip, 1 / n)
    assert {n for n, _, _ in arms} == {10, 30, 100, 300, 1000}
    assert {clip for n, clip, _ in arms if n == 1000} == {0, 0.5, 1, 2}
    assert len({arm.name for arm in arms.values()}) == len(arms) == 3 * 12


def reached(*noisy: float, plain: float = 0.9, wide: float = 0.9) -> Reached:
    found = {(n, 0.0): (plain, plain, plain) for n in CLIENTS}
    found |= {(n, 1.0): (a, a - 0.004, a + 0.004) for n, a in zip(CLIENTS, noisy, strict=True)}
    return found | {(CLIENTS[-1], clip): (wide,) * 3 for clip in CLIPS if clip != 1.0}


@pytest.mark.parametrize(
    ("figures", "answers"),
    [
        (reached(0.1, 0.3, 0.6, 0.8, 0.895), ["agrees"] * 4),
        (reached(0.1, 0.3, 0.6, 0.8, 0.88, wide=0.5), ["agrees", *["differs"] * 3]),
        (reached(0.5, 0.7, 0.6, 0.8, 0.895), ["differs", *["agrees"] * 3]),
        (reached(0.1, 0.1, 0.1, 0.1, 0.895, wide=0.1), ["says nothing", "agrees",
                                                        *["says nothing"] * 2]),
        (reached(0.1, 0.1, 0.1, 0.1, 0.1, plain=0.1, wide=0.1), ["says nothing"] * 4),
    ],
)  # fmt: skip
def test_the_verdicts_follow_the_figures(figures: Reached, answers: list[str]) -> None:
    found = [*judged(figures)]
    assert [verdict.answer for verdict in found] == answers
    assert found[1].ours.endswith("]")  # three seeds have an interval


def test_a_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_by_clients, "CLIENTS", (3, 8))
    monkeypatch.setattr(noise_by_clients, "CLIPS", (1.0,))
    monkeypatch.setattr(noise_by_clients, "SEEDS", 1)
    monkeypatch.setattr(noise_by_clients, "_ROUNDS", {"small": 1})
    page, outcome = reproduce("dp-encrypt-clients", "small", tmp_path / "n", lambda text: None)
    assert len(outcome.verdicts) == 2
    assert [len(curve.x) for curve in outcome.plots[0].curves] == [2, 2]
    assert "logistic on digits" in page.read_text()
