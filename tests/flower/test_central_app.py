"""Central noise in a user's own Flower app, and a client that does not trust its epsilon."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from scipy import stats

from fedveil.errors import InvalidValue, ModelInvalid
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.privacy.gaussian_curve import analytic_sigma, epsilon_for
from flower_app_parts import Arrays, FakeGrid, Node, arrays_of, client_app, record_of

SIZE = 2000
CENTRAL = {
    "protection": "pw_encrypt",
    "reconstruct_secrets_threshold": 3,
    "central_eps": 2.0,
    "central_norm_clip": 0.1,
}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def train(arrays: Arrays, node: int) -> tuple[Arrays, dict[str, Any]]:
    """Move far beyond the norm, with every client in the same direction."""
    return {"w": arrays["w"] + np.float32(100.0)}, {"num-examples": 5 * node}


def federation(node_config: dict[str, Any] | None = None) -> FakeGrid:
    app = client_app(train, [ProtectMod()])
    return FakeGrid(Node(n, app, node_config=node_config) for n in range(1, 6))


def start(strategy: ProtectedStrategy, grid: FakeGrid, rounds: int = 1, **more: Any) -> Any:
    initial = record_of({"w": np.zeros(SIZE, np.float32), **more})
    return strategy.start(grid, initial, num_rounds=rounds, timeout=5)


def test_the_model_moves_by_the_clipped_mean_and_the_noise_and_the_ledger_says_what_it_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Flower's own server-side differential privacy around it would have allowed 4472."""
    strategy = ProtectedStrategy(FedAvg(), **CENTRAL)
    with caplog.at_level(logging.WARNING, "flwr.fedveil"):
        result = start(strategy, federation())
    moved = arrays_of(result.arrays)["w"].astype(float)
    noise = moved - 0.1 / np.sqrt(SIZE)
    sigma = analytic_sigma(2.0, 1e-5, 2 * 0.1) / 5
    assert 1e-9 < stats.chi2.cdf(float(np.sum((noise / sigma) ** 2)), SIZE) < 1 - 1e-9
    assert strategy.rounds[0].reports == 5
    assert strategy.ledger.epsilon("run", 1e-5) == pytest.approx(2.0, rel=1e-6)
    assert strategy.options.weighs == "equal"
    assert "against everyone except the server" in caplog.text


def test_a_limit_ends_the_rounds() -> None:
    strategy = ProtectedStrategy(FedAvg(), **CENTRAL, max_epsilon=2.5)
    start(strategy, federation(), rounds=3)
    assert len(strategy.rounds) == 1
    assert "above max_epsilon = 2.5" in (strategy.stopped or "")


def test_a_client_holds_its_limit_against_the_server_unless_it_trusts_it_itself() -> None:
    """The epsilon of the offer is the server's word, but the client's limit is its own."""
    limit = {"fedveil.max_epsilon": 2.5}
    strategy = ProtectedStrategy(FedAvg(), **CENTRAL)
    start(strategy, federation(limit))
    (reason,) = strategy.rounds[0].withheld
    assert "the offer's epsilon rests on noise that the server adds" in reason
    trusting = {f"fedveil.{name}": value for name, value in CENTRAL.items()}
    strategy = ProtectedStrategy(FedAvg(), **CENTRAL)
    start(strategy, federation({**limit, **trusting}), rounds=2)
    assert [r.reports for r in strategy.rounds] == [5, 0]  # its own count ends it
    (reason,) = strategy.rounds[-1].withheld
    assert "above its max_epsilon = 2.5" in reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"central_eps": 3.0}, "a report costs epsilon 3 at delta 1e-05 (weak)"),
        ({"central_delta": 1e-3}, "a report costs epsilon 2 at delta 0.001 (meaningful)"),
        ({"central_eps": None, "central_norm_clip": 1.0}, "a report costs epsilon inf"),
    ],
)
def test_a_client_that_demands_it_refuses_less(change: dict[str, Any], reason: str) -> None:
    demand = {f"fedveil.{name}": value for name, value in CENTRAL.items()}
    asked = {name: value for name, value in {**CENTRAL, **change}.items() if value is not None}
    strategy = ProtectedStrategy(FedAvg(), weighting="equal", **asked)
    start(strategy, federation(demand))
    (said,) = strategy.rounds[0].withheld
    assert reason in said


def test_clients_count_equally_and_statistics_are_refused() -> None:
    with pytest.raises(InvalidValue, match="weighting = 'by_size' breaks the sensitivity"):
        ProtectedStrategy(FedAvg(), weighting="by_size", **CENTRAL)
    strategy = ProtectedStrategy(FedAvg(), **CENTRAL)
    with pytest.raises(ModelInvalid, match="running_var is a statistic of BatchNorm"):
        start(strategy, federation(), **{"bn.running_var": np.ones(3, np.float32)})


GAUSSIAN = {"protection": "central_gaussian", "clip": 0.1, "noise_multiplier": 2.0}


def test_clear_updates_and_the_servers_noise_in_an_app(caplog: pytest.LogCaptureFixture) -> None:
    strategy = ProtectedStrategy(FedAvg(), **GAUSSIAN)
    with caplog.at_level(logging.WARNING, "flwr.fedveil"):
        result = start(strategy, federation())
    noise = arrays_of(result.arrays)["w"].astype(float) - 0.1 / np.sqrt(SIZE)
    square = float(np.sum((noise * 5 / (2 * 0.1 * 2.0)) ** 2))
    assert 1e-9 < stats.chi2.cdf(square, SIZE) < 1 - 1e-9
    assert strategy.ledger.epsilon("run", 1e-5) == pytest.approx(epsilon_for(2.0, 1e-5), rel=1e-6)
    assert strategy.options.weighs == "equal"
    assert "against everyone except the server" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {**GAUSSIAN, "noise_multiplier": 1e-3, "clip_bit_noise": 2e-3},
        {
            "protection": "distributed_dp", "reconstruct_secrets_threshold": 3, "clip": 0.1,
            "noise_multiplier": 1e-3, "clip_bit_noise": 2e-3,
        },
    ],
    ids=lambda settings: settings["protection"],
)  # fmt: skip
def test_a_clip_that_moves_goes_from_round_to_round(settings: dict[str, Any]) -> None:
    """Nobody is below it, so it grows by exp(0.5 * 0.4) after each round, and so does the model."""
    strategy = ProtectedStrategy(FedAvg(), **settings, clip_quantile=0.4, clip_rate=0.5)
    result = start(strategy, federation(), rounds=3)
    assert [r.reports for r in strategy.rounds] == [5, 5, 5]
    clips = [0.1 * np.exp(0.2 * number) for number in range(3)]
    moved = arrays_of(result.arrays)["w"].astype(float)
    assert np.mean(moved) == pytest.approx(sum(clips) / np.sqrt(SIZE), rel=2e-2)


def test_a_client_that_demands_more_noise_refuses_less() -> None:
    demand = {f"fedveil.{name}": value for name, value in GAUSSIAN.items()}
    strategy = ProtectedStrategy(FedAvg(), **{**GAUSSIAN, "noise_multiplier": 1.9})
    start(strategy, federation(demand))
    (said,) = strategy.rounds[0].withheld
    assert "a report costs epsilon 2.12" in said
    strategy = ProtectedStrategy(FedAvg(), **{**GAUSSIAN, "noise_multiplier": 2.1})
    start(strategy, federation({**demand, "fedveil.max_epsilon": 9.0}))
    assert strategy.rounds[0].reports == 5


def test_a_limit_is_held_against_a_server_that_is_not_trusted() -> None:
    strategy = ProtectedStrategy(FedAvg(), **GAUSSIAN)
    start(strategy, federation({"fedveil.max_epsilon": 9.0}))
    (reason,) = strategy.rounds[0].withheld
    assert "the offer's epsilon rests on noise that the server adds" in reason


def test_an_app_has_no_target_of_a_run() -> None:
    with pytest.raises(
        InvalidValue, match=r"target_epsilon = 2\.0 is for a whole run, and an app "
    ):
        ProtectedStrategy(FedAvg(), protection="central_gaussian", target_epsilon=2.0)
