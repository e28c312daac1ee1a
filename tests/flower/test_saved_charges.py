"""A protected strategy whose process ends in the middle of a run, and its successor."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from fedveil.base.message import encode
from fedveil.errors import DeploymentError
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.app.saved_charges import KeptRounds
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.protections.base import TIMING, Spending
from flower_app_parts import Arrays, FakeGrid, Node, client_app, record_of

GAUSSIAN = {"protection": "central_gaussian", "clip": 0.1, "noise_multiplier": 2.0}
MOVING = {**GAUSSIAN, "clip_quantile": 0.4, "clip_bit_noise": 2.5}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


def train(arrays: Arrays, node: int) -> tuple[Arrays, dict[str, Any]]:
    return {"w": arrays["w"] + np.float32(100.0)}, {"num-examples": 5 * node}


def federation(refusing: int = 0) -> FakeGrid:
    """Make five clients. `refusing` of them enforce a limit and refuse guarantees that need
    trust."""
    app, limit = client_app(train, [ProtectMod()]), {"fedveil.max_epsilon": 9.0}
    return FakeGrid(Node(n, app, node_config=limit if n <= refusing else {}) for n in range(1, 6))


def start(strategy: ProtectedStrategy, grid: FakeGrid, rounds: int = 1) -> Any:
    return strategy.start(
        grid, record_of({"w": np.zeros(20, np.float32)}), num_rounds=rounds, timeout=5
    )


def spent(strategy: ProtectedStrategy) -> float:
    return strategy.ledger.epsilon("run", 1e-5)


class Killed(BaseException):
    """The end of a process, which no code catches."""


def killed_after(grid: FakeGrid, messages: int) -> FakeGrid:
    """Make the server of `grid` end after it has sent this number of training messages."""
    left = iter(range(messages))

    def tamper(message: Message) -> Message:
        if next(left, None) is None:
            raise Killed
        return message

    grid.tamper = tamper
    return grid


def reference(rounds: int, settings: Any = GAUSSIAN) -> float:
    strategy = ProtectedStrategy(FedAvg(), **settings)
    start(strategy, federation(), rounds)
    return spent(strategy)


def test_a_strategy_that_is_made_again_goes_on_with_what_was_charged(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    first = ProtectedStrategy(FedAvg(), **MOVING, ledger_file=file)
    start(first, federation(), 2)
    again = ProtectedStrategy(FedAvg(), **MOVING, ledger_file=file)
    assert spent(again) == spent(first) == reference(2, MOVING)
    assert again._state == first._state != {"clip": 0.1}
    start(again, federation(), 1)
    assert spent(again) == reference(3, MOVING)
    assert again._number == 4
    assert file.stat().st_mode & 0o077 == 0


def test_a_link_to_a_ledger_is_refused_before_a_round_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    for exists in (False, True):
        with pytest.raises(DeploymentError, match=f"{tmp_path / 'link'} cannot .*: it is a link"):
            ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=tmp_path / "link")
        strategy = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=tmp_path / "ledger")
        if not exists:
            start(strategy, federation())


def test_what_a_later_process_sends_in_the_clear_is_listed_too(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    first = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file, reveal="accuracy")
    start(first, federation())
    again = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file, reveal="loss")
    assert set(again.ledger.in_clear) == {
        "the metric accuracy (reveal)", "the metric loss (reveal)", TIMING,
    }  # fmt: skip


def test_a_round_that_is_cut_off_is_charged_in_full_to_all_that_were_asked(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    strategy = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file)
    with pytest.raises(Killed):
        start(strategy, killed_after(federation(), 7), 3)  # in the second round of five clients
    again = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file)
    assert spent(again) == reference(2)
    assert again.ledger.figures(1e-5)["run_most_drawn"].epsilon == spent(again)
    assert again._number == 3


def test_it_is_on_the_disk_before_a_client_hears_of_the_round(tmp_path: Path) -> None:
    file, seen, grid = tmp_path / "ledger", [], federation()
    strategy = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file)

    def tamper(message: Message) -> Message:
        kept = KeptRounds(file, strategy._terms).read()
        assert kept is not None
        seen.append((kept.rounds, kept.ledger.epsilon("run", 1e-5)))
        return message

    grid.tamper = tamper
    start(strategy, grid, 2)
    assert seen == [(1, reference(1))] * 5 + [(2, reference(2))] * 5


def test_what_is_known_not_to_have_left_is_taken_back(tmp_path: Path) -> None:
    """All five are charged during the round, and then three of them refuse the offer."""
    file, grid, during = tmp_path / "ledger", federation(refusing=3), []
    strategy = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file)

    def kept() -> bytes:
        found = KeptRounds(file, strategy._terms).read()
        assert found is not None
        return encode(found.ledger.to_state())

    def tamper(message: Message) -> Message:
        during.append(kept())
        return message

    grid.tamper = tamper
    start(strategy, grid)
    assert strategy.rounds[0].reports == 2
    assert kept() == encode(strategy.ledger.to_state()) != during[0]
    asked_all, charged = Ledger(), Ledger()
    for ledger, clients in ((asked_all, [1, 2, 3, 4, 5]), (charged, [4, 5])):
        ledger.note_in_clear([TIMING])
        ledger.record_many(
            [Spending(PrivacyLoss(epsilon_for(2.0, 1e-5), 1e-5, release=Gaussian(2.0)))],
            round=1, clients=clients,
        )  # fmt: skip
    assert during == [encode(asked_all.to_state())] * 5
    assert kept() == encode(charged.to_state())


def test_a_limit_holds_over_both(tmp_path: Path) -> None:
    file, limit = tmp_path / "ledger", reference(2) * 1.01
    first = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file, max_epsilon=limit)
    start(first, federation(), 1)
    again = ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file, max_epsilon=limit)
    start(again, federation(), 3)
    assert len(again.rounds) == 1
    assert "above max_epsilon" in (again.stopped or "")


def test_a_limit_without_a_file_is_said_to_begin_at_nothing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    said = "max_epsilon counts from nothing whenever this strategy is made again"
    with caplog.at_level(logging.WARNING, "flwr.fedveil"):
        ProtectedStrategy(
            FedAvg(), **GAUSSIAN, max_epsilon=9.0, ledger_file=tmp_path / "ledger"
        ).summary()
        assert said not in caplog.text
        ProtectedStrategy(FedAvg(), **GAUSSIAN, max_epsilon=9.0).summary()
    assert said in caplog.text


def test_another_protection_or_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    start(ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file), federation())
    other = {**GAUSSIAN, "noise_multiplier": 3.0}
    with pytest.raises(
        DeploymentError, match=r"has the ledger of central_gaussian \(.*noise_multiplier = 2\.0"
    ):
        ProtectedStrategy(FedAvg(), **other, ledger_file=file)
    sums = {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 3}
    start(ProtectedStrategy(FedAvg(), **sums, ledger_file=tmp_path / "sums"), federation())
    with pytest.raises(DeploymentError, match=r"clients count by_size.*clients count equal"):
        ProtectedStrategy(FedAvg(), **sums, weighting="equal", ledger_file=tmp_path / "sums")
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    with pytest.raises(DeploymentError, match="ledger is damaged: its digest does not match"):
        ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file)
    with pytest.raises(DeploymentError, match="none is no folder, and the ledger is kept there"):
        ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=tmp_path / "none" / "ledger")


def test_two_strategies_do_not_overwrite_each_others_file(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    one, other = (ProtectedStrategy(FedAvg(), **GAUSSIAN, ledger_file=file) for _ in range(2))
    start(one, federation())
    grid = federation()
    with pytest.raises(DeploymentError, match="was changed while this strategy ran: another one"):
        start(other, grid)
    assert not grid.sent
    kept = KeptRounds(file, one._terms).read()
    assert kept is not None
    assert isinstance(kept.ledger, Ledger)
    assert kept.rounds == 1
    file.unlink()
    with pytest.raises(DeploymentError, match="was changed while this strategy ran: another one"):
        start(one, grid)
    assert not grid.sent
