"""A party's fingerprint, seeds and statistics, and the parties that it tells of errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.errors import ExchangeError, JobError, PeerAborted
from fedveil.link.channel import Exchange
from fedveil.vertical import VerticalJob
from fedveil.vertical import party as party_module
from fedveil.vertical.party import Party, _Statistics
from fedveil.vertical.party_parts import _fingerprint, _set_aside
from fedveil.vertical.rows import Rows
from fedveil.vertical.step import Batch
from vertical_parts import Bottoms, UShape


def parties() -> dict[str, Party]:
    task = Bottoms()
    split = task.split_model()
    return {
        name: Party(name, split, loss=task.loss if name == "lead" else None, seed=5)
        for name in split.parties
    }


def test_a_fingerprint_is_of_all_that_a_resumed_run_needs_unchanged() -> None:
    def rows(count: int) -> Rows:
        return Rows(count, {}, None, np.arange(count))

    def found(agreed: int = 1, **changes: Any) -> str:
        held = {"train": rows(7), "test": rows(4)} | changes.pop("rows", {})
        base = {"party": "bank", "order_seed": 3, "split": Bottoms().split_model(), "rows": held}
        job = SimpleNamespace(agreed=lambda: {"epochs": agreed})
        return _fingerprint(SimpleNamespace(job=job, **base | changes))  # type: ignore[arg-type]

    wider = Bottoms()
    wider.width = 9
    others = [
        found(agreed=2), found(order_seed=4), found(party="shop"), found(split=wider.split_model()),
        found(rows={"train": rows(8)}), found(rows={"test": rows(5)}),
    ]  # fmt: skip
    assert found() == found()
    assert len({found(), *others}) == 1 + len(others)


def test_a_share_set_aside_leaves_some_on_both_sides() -> None:
    def aside(share: float | None) -> int:
        return _set_aside(VerticalJob(scoring={"calibration": share}), 21)

    assert [aside(None), aside(0.26), aside(0.95)] == [0, 5, 20]
    for share, count in ((0.02, 0), (0.98, 21)):
        with pytest.raises(JobError, match=f"sets {count} of 21 training examples aside"):
            aside(share)


def test_no_two_parties_drop_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def step(*given: object, seed: int, **more: object) -> None:
        seeds.append(seed)
        raise ExchangeError("the seed is known")

    monkeypatch.setattr(party_module, "Step", step)
    for number in (1, 2):
        for party in parties().values():
            with pytest.raises(ExchangeError, match="the seed is known"):
                next(party.step(number, Batch(np.arange(4), {})))
    assert len(set(seeds)) == len(seeds) == 6


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_part_is_at_rest_in_a_step_too(frozen: bool) -> None:
    party = Party("bank", UShape().split_model().replace("backbone", frozen=frozen))
    for training in (True, False):
        party._switch(training=training)
        assert party.modules["backbone"].training == (training and not frozen)


def test_who_ended_a_step_is_not_told_of_its_end() -> None:
    def failing(error: ExchangeError) -> Exchange[None]:
        raise error
        yield

    for error, told in (
        (ExchangeError("wrong"), ["bank", "shop"]), (PeerAborted("bank", "no"), ["shop"]),
    ):  # fmt: skip
        telling = parties()["lead"].announcing_failure(failing(error))
        seen: list[str] = []
        with pytest.raises(ExchangeError):
            seen.extend(request.peer for request in telling)
        assert seen == told


def test_a_statistic_that_moves_in_some_steps_is_put_back_after_each() -> None:
    module = nn.Module()
    for name in ("rare", "usual"):
        module.register_buffer(name, torch.zeros(2))
    statistics = _Statistics(module)
    for moves in (["rare", "usual"], ["usual"], ["usual"]):
        statistics.keep()
        for name in moves:
            module.get_buffer(name).add_(1)
    statistics.keep()
    for name in ("rare", "usual"):
        module.get_buffer(name).add_(7)
    statistics.put_back()
    assert (module.get_buffer("rare")[0], module.get_buffer("usual")[0]) == (1, 3)


def test_a_steps_seed_is_the_same_wherever_a_run_begins() -> None:
    whole = [parties()["bank"]._torch_seed(number) for number in range(1, 200)]
    one = parties()["bank"]
    assert [one._torch_seed(number) for number in range(1, 200)] == whole
    assert len(set(whole)) == 199
    assert not set(whole) & {parties()["shop"]._torch_seed(number) for number in range(1, 200)}
    resumed = parties()["bank"]
    assert [resumed._torch_seed(number) for number in (70, 71, 3, 130)] == [
        whole[number - 1] for number in (70, 71, 3, 130)
    ]
