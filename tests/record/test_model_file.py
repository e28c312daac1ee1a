"""A model's file: each tensor once, whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from fedveil.errors import RunFolderError
from fedveil.pretrained.base_weights import mark_base
from fedveil.record.model_file import read_model, write_model
from fedveil.record.run_folder import MODEL, RunFolder


def model() -> nn.Sequential:
    """Two layers that share a weight, and one that is in memory in another order."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    turned = nn.Linear(2, 3, bias=False)
    turned.weight = nn.Parameter(torch.randn(2, 3).t())
    return nn.Sequential(first, second, turned)


def test_it_is_read_back_as_it_was(tmp_path: Path) -> None:
    made, other, folder = model(), model(), RunFolder.create(tmp_path / "run")
    write_model(folder, made)
    folder.close()
    assert len(safetensors.torch.load_file(folder.path / MODEL)) == 4
    read_model(folder.path / MODEL, other)
    for name, tensor in made.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_a_base_weight_with_two_names_is_in_no_file(tmp_path: Path) -> None:
    made, other, folder = model(), model(), RunFolder.create(tmp_path / "run")
    for each in (made, other):
        each[:2].requires_grad_(False)
        mark_base(each)
    write_model(folder, made)
    folder.close()
    assert list(safetensors.torch.load_file(folder.path / MODEL)) == ["2.weight"]
    read_model(folder.path / MODEL, other)
    found, written = other.state_dict(), made.state_dict()
    assert torch.equal(found["2.weight"], written["2.weight"])
    assert not torch.equal(found["1.weight"], written["1.weight"])


def test_what_was_there_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path / "run")
    write_model(folder, model())
    before = (folder.path / MODEL).read_bytes()

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(RunFolderError, match=r"model\.safetensors cannot be written: I/O error: N"):
        write_model(folder, model())
    folder.close()
    assert (folder.path / MODEL).read_bytes() == before


def test_a_model_is_as_readable_as_every_other_file(tmp_path: Path) -> None:
    """A group that may read a run's records may load its model."""
    before = os.umask(0o027)
    try:
        folder = RunFolder.create(tmp_path / "run")
        folder.write_atomically("report.html", b"a page")
        write_model(folder, model())
        folder.close()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    assert modes[MODEL] == 0o640
    assert set(modes.values()) == {0o640}
