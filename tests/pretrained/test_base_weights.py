"""Base weights are neither copied, sent nor saved, and continuations are the likeliest tokens."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import tiny_language
from fedveil.errors import ModelInvalid
from fedveil.learning.weight_layout import Layout
from fedveil.pretrained.base_weights import base_names, digest_of, fingerprint, mark_base
from fedveil.pretrained.continuation import continued
from fedveil.pretrained.language_model import LanguageModel
from fedveil.pretrained.model_folder import ModelFolder
from fedveil.pretrained.token_rows import TokenRows
from fedveil.record.model_file import read_model, write_model
from fedveil.record.run_folder import RunFolder


class Net(nn.Module):
    """A fixed layer with a buffer, and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.norm, self.own = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.fixed.requires_grad_(False)
        self.norm.requires_grad_(False)


def model() -> LanguageModel:
    made = LanguageModel(Net(), None, 7)
    mark_base(made)
    return made


def test_the_base_is_all_but_what_is_trained() -> None:
    made = model()
    assert not base_names(nn.Linear(2, 3))
    assert {"net.fixed.weight", "net.norm.bias", "net.norm.running_mean"} <= base_names(made)
    assert [e.name for e in Layout(made).entries] == ["net.own.weight", "net.own.bias"]
    assert (
        "base weights: 33 numbers, neither trained nor sent; trained: 10" in Layout(made).explain()
    )


def test_the_base_is_not_written_again() -> None:
    made = model()
    layout = Layout(made)
    layout.write(torch.arange(10.0))
    assert layout.vector().tolist() == list(range(10))
    assert set(layout._kept_values) == set()


def test_a_copy_shares_the_base_and_nothing_else() -> None:
    made = model()
    copied = copy.deepcopy(made)
    assert base_names(copied) == base_names(made)
    assert copied.net.fixed.weight is made.net.fixed.weight
    assert copied.net.own.weight is not made.net.own.weight
    assert copied.scored_at_once == 7


def test_a_model_that_moves_leaves_the_shared_base_where_it_is() -> None:
    made = model()
    made.net.tied = made.net.fixed
    copied = copy.deepcopy(made)
    copied.double()
    assert copied.net.fixed.weight.dtype == torch.float64
    assert copied.net.tied.weight is copied.net.fixed.weight
    assert made.net.fixed.weight.dtype == torch.float32
    place = made.net.fixed.weight.data_ptr()
    assert made.cpu().net.fixed.weight.data_ptr() == place


def test_a_model_file_holds_only_what_is_trained(tmp_path: Path) -> None:
    made, other = model(), model()
    folder = RunFolder.create(tmp_path / "run")
    write_model(folder, made)
    folder.close()
    file = tmp_path / "run" / "model.safetensors"
    assert set(load_file(file)) == {"net.own.weight", "net.own.bias"}
    fixed = other.net.fixed.weight.clone()
    read_model(file, other)
    assert np.array_equal(Layout(other).vector(), Layout(made).vector())
    assert torch.equal(other.net.fixed.weight, fixed)
    less = nn.Module()
    less.net = nn.Module()
    less.net.own = nn.Linear(4, 3)
    with pytest.raises(ModelInvalid, match="does not hold the tensors of this model"):
        read_model(file, less)


@pytest.mark.parametrize(
    ("config", "token"),
    [
        ({"pad_token_id": 3, "eos_token_id": 5}, 3),
        ({"pad_token_id": 0, "eos_token_id": 5}, 0),
        ({"pad_token_id": None, "eos_token_id": [7, 8]}, 7),
        ({}, 0),
    ],
)
def test_short_examples_are_filled_by_the_models_own_token(
    config: dict[str, object], token: int
) -> None:
    assert ModelFolder(Path(), {"model_type": "x", **config}).padding == token


@pytest.mark.parametrize(
    ("files", "pad", "ends"),
    [
        ({"config": {"pad_token_id": 3, "eos_token_id": 5}}, 3, (5,)),
        ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": [9, 5]}}, 5, (5, 9)),
        ({"generation_config": {"pad_token_id": 4, "eos_token_id": 6}}, 4, (6,)),
        ({"tokenizer_config": {"pad_token": "<p>", "eos_token": {"content": "<e>"}}}, 11, (12,)),
        ({"config": {"pad_token_id": -1}, "tokenizer_config": {"eos_token": "<e>"}}, 12, (12,)),
        ({"config": {"pad_token_id": 2}}, 2, (2,)),
    ],
)
def test_padding_is_not_the_end_of_a_text(
    files: dict[str, object], pad: int, ends: tuple[int, ...], tmp_path: Path
) -> None:
    added = [{"id": 11, "content": "<p>"}, {"id": 12, "content": "<e>"}]
    for name, value in {"config": {}, "tokenizer": {"added_tokens": added}, **files}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    folder = ModelFolder(tmp_path)
    assert (folder.padding, folder.ends) == (pad, ends)


def with_ends(words: Path, length: int) -> TokenRows:
    """Return rows that are padded with 7 and end with 3 or, rarely, with 5."""
    config = {"pad_token_id": 7, "eos_token_id": [3, 5]}
    return TokenRows(ModelFolder(words, config), length)


def test_a_text_ends_with_the_end_token_and_is_padded_with_another(words: Path) -> None:
    rows = with_ends(words, 6)
    text = rows.encode("a bird")
    free = 6 - len(text)
    ((x, y),) = rows.pieces("a bird")
    assert x.tolist() == [*text, *[7] * free]
    assert y.tolist() == [*text[1:], 3, *[-100] * free]
    answer = rows.encode(" in")
    x, y = with_ends(words, 9).answer("a bird", " in")
    end = len(text + answer)
    assert x.tolist() == [*text, *answer, *[7] * (9 - end)]
    assert y.tolist() == [*[-100] * (len(text) - 1), *answer, 3, *[-100] * (9 - end)]


@pytest.mark.parametrize("end", [3, 5])
def test_a_continuation_ends_with_each_end_token_and_not_with_padding(
    end: int, words: Path
) -> None:
    rows = with_ends(words, 6)
    ids = [*rows.encode("a bird sings"), 7, *rows.encode(" in"), end]
    begin = len(rows.encode("a bird"))
    assert continued(Next(ids, 6), rows, "a bird", 50) == rows.decode(ids[begin:-1])


def test_a_fingerprint_is_of_the_base_and_of_what_is_trained() -> None:
    """The base's own part is the digest that all models of a folder share."""
    torch.manual_seed(1)
    made = LanguageModel(Net(), None, 7)
    mark_base(made, "base one")
    first = fingerprint(made)
    assert fingerprint(copy.deepcopy(made)) == first
    mark_base(made, "base two")
    assert fingerprint(made) != first
    mark_base(made, "base one")
    with torch.no_grad():
        made.net.fixed.weight[3, 2] += 1  # not read again
        assert fingerprint(made) == first
        made.net.own.weight[1, 3] += 1
    assert fingerprint(made) != first


def test_a_digest_is_of_names_types_shapes_and_every_number() -> None:
    numbers = torch.arange(40.0)
    found = [
        digest_of([("a", numbers)]), digest_of([("b", numbers)]), digest_of([("a", numbers)], "x"),
        digest_of([("a", numbers.view(5, 8))]), digest_of([("a", numbers.view(torch.int32))]),
        digest_of([("a", torch.cat([numbers[:-1], numbers[:1]]))]), digest_of([]),
    ]  # fmt: skip
    assert len(set(found)) == len(found)
    net = Net()
    plain = fingerprint(net)
    net.norm.running_mean[2] = 1
    assert fingerprint(net) != plain


def test_a_classifier_does_not_see_filling_and_a_model_of_next_tokens_needs_no_mask() -> None:
    seen: list[dict[str, torch.Tensor]] = []

    class Noted(nn.Module):
        def forward(self, **given: torch.Tensor) -> SimpleNamespace:
            seen.append(given)
            return SimpleNamespace(logits=given["input_ids"])

    x = torch.tensor([[5, 3, 3], [3, 4, 6]])
    LanguageModel(Noted(), 3, 1)(x)
    LanguageModel(Noted(), None, 1)(x)
    assert seen[0]["attention_mask"].tolist() == [[1, 0, 0], [0, 1, 1]]
    assert "attention_mask" not in seen[1]


def test_rows_are_filled_and_marked_as_the_models_folder_says(words: Path, tmp_path: Path) -> None:
    """A tokeniser that pads, truncates, and puts tokens around a text."""
    from tokenizers import Tokenizer, processors

    folder = Path(shutil.copytree(words, tmp_path / "words"))
    (folder / "config.json").write_text('{"model_type": "gpt2", "eos_token_id": 7}')
    changed = Tokenizer.from_file(str(folder / "tokenizer.json"))
    changed.add_special_tokens(["<begin>"])
    begin = changed.token_to_id("<begin>")
    changed.post_processor = processors.TemplateProcessing(
        single="<begin> $A", special_tokens=[("<begin>", begin)]
    )
    changed.enable_padding(length=30)
    changed.enable_truncation(2)
    changed.save(str(folder / "tokenizer.json"))
    rows, plain = tiny_language.rows(folder, 9), tiny_language.rows(words, 9)
    ids = plain.encode("a bird")
    assert 2 < len(ids) < 8
    assert (rows.size, rows.pad, begin) == (271, 7, 270)
    assert rows.encode("a bird") == ids
    filling = [7] * (8 - len(ids))
    assert rows.whole("a bird").tolist() == [begin, *ids, *filling]
    ((inputs, targets),) = rows.pieces("a bird")
    assert inputs.tolist() == [*ids, *filling, 7]
    assert targets.tolist() == [*ids[1:], 7, *[-100] * (9 - len(ids))]
    long = plain.encode("a bird sings in the old tree at dawn")
    assert rows.whole("a bird sings in the old tree at dawn").tolist() == [begin, *long[:8]]
    inputs, targets = rows.answer("a bird", " sings in the old tree at dawn")
    asked = [*ids, *plain.encode(" sings in the old tree at dawn")]
    assert inputs.tolist() == asked[:9]
    assert targets.tolist() == [*[-100] * (len(ids) - 1), *asked[len(ids) : 10]]


class Next(nn.Module):
    """Predicts the token that follows in a text, and sees at most `most` tokens."""

    def __init__(self, ids: list[int], most: int) -> None:
        super().__init__()
        self.ids, self.most, self.weight = ids, most, nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] <= self.most
        assert not self.training
        scores = torch.zeros(*x.shape, 270)
        place = next(
            i for i in range(len(self.ids)) if self.ids[i : i + x.shape[1]] == x[0].tolist()
        )
        scores[0, -1, self.ids[place + x.shape[1]]] = 1.0
        return scores


def test_a_continuation_is_the_likeliest_tokens_to_the_end_of_the_text(words: Path) -> None:
    rows = tiny_language.rows(words, 6)
    ids = [*rows.encode("a bird sings in the old tree"), 0]
    model = Next(ids, 6)
    assert continued(model, rows, "a bird", 50) == " sings in the old tree"
    assert continued(model, rows, "a bird", 3) == rows.decode(ids[len(rows.encode("a bird")) :][:3])
    assert model.training
    assert continued(Next([0, *ids], 6).eval(), rows, "", 50) == "a bird sings in the old tree"
    one_more = Next(ids, 6).eval()
    continued(one_more, rows, "a bird", 2)
    assert not one_more.training


def test_a_name_is_never_downloaded_and_pickles_are_never_read(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="gpt2 is not a folder on this machine"):
        ModelFolder.of("hf:gpt2")
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(ModelInvalid, match=r"holds no \*.safetensors file"):
        ModelFolder.of(f"hf:{tmp_path}")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "gpt2"}')
    with pytest.raises(ModelInvalid, match="holds an adapter, not a whole model"):
        ModelFolder.of(f"hf:{tmp_path}")
    (tmp_path / "adapter_config.json").unlink()
    assert ModelFolder.of(f"hf:{tmp_path}", {"model_type": "gpt2"}).config == {"model_type": "gpt2"}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_stamp_is_of_every_file_of_a_folder(name: str, tmp_path: Path) -> None:
    """A model is loaded again after its configuration or tokeniser alone has changed."""
    for each in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / each).write_text("{}")
    file, folder = tmp_path / name, ModelFolder(tmp_path)
    before, changed = folder.stamp, file.stat().st_mtime_ns
    os.utime(file, ns=(changed, changed + 1))
    assert folder.stamp != before
    os.utime(file, ns=(changed, changed))
    assert folder.stamp == before
    file.write_text("{  }")
    os.utime(file, ns=(changed, changed))
    assert folder.stamp != before
    file.unlink()
    assert folder.stamp != before
