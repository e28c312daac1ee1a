"""A folder is read without the network, without pickles and without its own code."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from fedveil.errors import ModelInvalid
from fedveil.learning.weight_layout import Layout
from fedveil.pretrained.language_model import Adapter, Trained, build
from fedveil.pretrained.model_folder import ModelFolder
from hostile_files import bounded, pipe

LORA = Trained(Adapter(3, 6.0))


def built(path: Path, part: Trained = LORA, *, length: int = 11, tokens: int = 9) -> Any:
    return build(ModelFolder.of(f"hf:{path}"), part, length, tokens, 7)


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "copied")


def mapped(name: str) -> list[tuple[int, int]]:
    """Return the addresses at which this process has the file in memory, which all share."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(f"/{name}")]
    return [(int(low, 16), int(high, 16)) for low, high in ranges]


def change_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_name_is_never_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelInvalid, match="gpt2 is not a folder on this machine"):
        ModelFolder.of("hf:gpt2")


def test_loading_opens_no_connection(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network is used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    built(model)


def test_a_pickle_in_place_of_the_weights_is_not_read(copied: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harmed",)

    (copied / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Harm()}, copied / "pytorch_model.bin")
    with pytest.raises(ModelInvalid, match=r"holds no \*.safetensors file"):
        built(copied)
    torch.save(Harm(), copied / "model.safetensors")
    with pytest.raises(ModelInvalid, match="cannot be loaded"):
        built(copied)
    assert not (tmp_path / "harmed").exists()


def test_the_folders_own_code_is_not_run(copied: Path, tmp_path: Path) -> None:
    harmed = tmp_path / "harmed"
    code = f"from pathlib import Path\nPath({str(harmed)!r}).touch()\n"
    (copied / "own.py").write_text(code)
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    change_config(copied, auto_map=names)
    built(copied)
    change_config(copied, model_type="stranger")
    with pytest.raises(ModelInvalid, match="model_type is 'stranger', which transformers does not"):
        built(copied)
    assert not harmed.exists()


def test_a_pipe_in_the_folder_is_not_waited_for(copied: Path) -> None:
    pipe(copied / "generation_config.json.d")
    with bounded(), pytest.raises(ModelInvalid, match="it is a named pipe"):
        built(copied)


@pytest.mark.parametrize("content", ["[]", "{", '{"model_type": ["gpt2"]}', "\udce4"])
def test_a_damaged_configuration_is_one_sentence(copied: Path, content: str) -> None:
    (copied / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelInvalid, match="cannot be loaded"):
        built(copied)


def test_missing_weights_are_told(copied: Path) -> None:
    change_config(copied, n_layer=3)
    with pytest.raises(ModelInvalid, match=r"its files lack the weights transformer.h.2"):
        built(copied)


def test_more_tokens_than_the_model_has_are_refused(model: Path) -> None:
    with pytest.raises(ModelInvalid, match="33 tokens, but the model takes 32"):
        built(model, length=33)
    with pytest.raises(ModelInvalid, match="the token 270, but the model knows 270"):
        built(model, tokens=271)


def test_a_folder_is_another_when_any_of_its_files_is_written_again(copied: Path) -> None:
    """Even with as many bytes, and in the same second."""
    file, folder = copied / "model.safetensors", ModelFolder.of(f"hf:{copied}")
    before, stat = folder.stamp, file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert folder.stamp != before
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert folder.stamp == before


def test_the_longest_examples_fit_and_scores_at_once_are_bounded(model: Path) -> None:
    made = built(model, length=32, tokens=270)
    assert made.scored_at_once == (1 << 23) // (32 * 270)
    assert built(model, Trained(LORA.adapter, classes=3)).scored_at_once == (1 << 23) // 3


def test_new_weights_follow_from_the_seed(model: Path) -> None:
    """New: adapters, a classifier's last layer, and all weights of a user's own configuration."""
    folder = ModelFolder.of(f"hf:{model}")
    own = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 30}
    for kind, part in (
        (folder, LORA), (folder, Trained(head=True, classes=3)),
        (ModelFolder.of(f"hf:{model}", own), Trained()),
    ):  # fmt: skip
        made = [Layout(build(kind, part, 11, 9, seed)).vector() for seed in (7, 8, 7)]
        assert (made[0] == made[2]).all(), part
        assert (made[0] != made[1]).any(), part


def test_the_base_is_in_memory_once_and_mapped_from_its_file(model: Path) -> None:
    one, two = built(model), built(model, Trained(Adapter(2, 1.0)))
    name = "net.base_model.model.transformer.h.1.attn.c_attn.base_layer.weight"
    first, second = (dict(m.named_parameters())[name] for m in (one, two))
    assert first.data_ptr() == second.data_ptr()
    assert any(low <= first.data_ptr() < high for low, high in mapped("model.safetensors"))
    trained = [{p.data_ptr() for p in m.parameters() if p.requires_grad} for m in (one, two)]
    assert trained[0].isdisjoint(trained[1])


def test_training_all_or_the_head_leaves_the_shared_base_as_it_was(model: Path) -> None:
    before = {n: p.clone() for n, p in built(model).named_parameters() if not p.requires_grad}
    for part in (Trained(), Trained(head=True)):
        changed = built(model, part)
        with torch.no_grad():
            for parameter in changed.parameters():
                if parameter.requires_grad:
                    parameter.add_(1.0)
    after = dict(built(model).named_parameters())
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_changed_file_is_loaded_again(copied: Path) -> None:
    built(copied)
    change_config(copied, n_positions=12)
    with pytest.raises(ModelInvalid, match="cannot be loaded"):
        built(copied, length=13)
