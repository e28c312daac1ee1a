"""The tensors of a model that stay with each client: each once, and only those of the model."""

from __future__ import annotations

import copy

import pytest
from torch import nn

from fedveil.errors import ModelInvalid
from fedveil.learning.own_layers import keep_own, own_names, whole


def test_a_tensor_that_two_patterns_name_is_kept_once() -> None:
    model = keep_own(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), ["*bias", "0.*", "*mean"])
    assert own_names(model) == ("0.bias", "1.bias", "0.weight", "1.running_mean")
    assert own_names(copy.deepcopy(model)) == own_names(model)
    assert own_names(whole(model)) == own_names(whole(nn.Linear(3, 2))) == ()


def test_a_pattern_without_a_tensor_is_refused() -> None:
    with pytest.raises(
        ModelInvalid, match=r"matches '2\.\*'\. Its tensors are 0\.weight, 0\.bias$"
    ):
        keep_own(nn.Sequential(nn.Linear(3, 2)), ["0.*", "2.*"])
