"""The tensors of a model that stay with each client: each once, and only those of the model."""

from __future__ import annotations

import copy

import pytest
from torch import nn

from fedveil.errors import ModelInvalid
from fedveil.learning.own_layers import keep_own, own_names, whole
from fedveil.learning.weight_layout import Layout


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


def test_a_clients_own_tensors_are_not_said_to_be_the_servers() -> None:
    model = keep_own(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), ["0.*", "*_mean"])
    assert Layout(model).explain() == [
        "buffers averaged with the parameters: 1.running_var",
        "tensors that stay with each client: 0.weight, 0.bias, 1.running_mean",
        "tensors kept at the server's value: 1.num_batches_tracked",
    ]
