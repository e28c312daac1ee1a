"""The trained parts of a language model. Stand-ins for transformers and peft make the model.

`test_model_folder.py` and `test_adapters.py` test the same code with the packages themselves.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedveil.engine.job_model import ModelShape, make_model
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job
from fedveil.pretrained import language_model, model_folder
from fedveil.pretrained.base_weights import base_names
from fedveil.pretrained.language_model import Adapter, Trained, build
from fedveil.pretrained.model_folder import ModelFolder

VOCABULARY, PLACES, WIDTH = 30, 12, 4
CONFIG = {"model_type": "tiny", "vocab_size": VOCABULARY, "max_position_embeddings": PLACES,
          "auto_map": {"AutoModel": "own.Model"}, "eos_token_id": 6,
          "use_cache": True}  # fmt: skip


class Config:
    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        return cls(values)


class Net(nn.Module):
    """A body, and a last layer that scores tokens or classes."""

    base_model_prefix = "body"

    def __init__(self, config: Config, kind: str) -> None:
        super().__init__()
        self.config, self.recomputed = config, None
        self.body = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.register_buffer("mask", torch.ones(2))
        if kind == "tokens":
            self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            if getattr(config, "is_tied", False):
                self.lm_head.weight = self.body[0].weight
        else:
            layer = nn.Linear(WIDTH, config.num_labels, bias=False)
            self.add_module(getattr(config, "last_layer", "score"), layer)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def gradient_checkpointing_enable(self, how: Any) -> None:
        self.recomputed = how


class Library:
    """Stands for transformers, and notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.missing: list[str] = []
        self.CONFIG_MAPPING = {"tiny": Config}
        self.AutoModelForCausalLM = self._maker("tokens")
        self.AutoModelForSequenceClassification = self._maker("classes")

    def _maker(self, kind: str) -> Any:
        def from_config(config: Config, attn_implementation: str) -> Net:
            self.asked.append((kind, "new", attn_implementation, vars(config)))
            return Net(config, kind)

        def from_pretrained(path: Path, config: Config, **how: Any) -> Any:
            self.asked.append((kind, path, how.pop("attn_implementation"), vars(config)))
            assert how == {
                "dtype": torch.float32, "local_files_only": True, "use_safetensors": True,
                "trust_remote_code": False, "output_loading_info": True,
            }  # fmt: skip
            return Net(config, kind), {"missing_keys": self.missing}

        return SimpleNamespace(from_config=from_config, from_pretrained=from_pretrained)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    monkeypatch.setattr(language_model, "transformers", lambda: made)
    language_model._base.cache_clear()
    yield made
    language_model._base.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return ModelFolder(tmp_path)


def trained(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_the_whole_model_is_trained_on_a_copy(library: Library, folder: ModelFolder) -> None:
    models = [build(folder, Trained(), PLACES, VOCABULARY, 3) for _ in range(2)]
    assert trained(models[0]) == {n for n, _ in models[0].named_parameters()}
    assert not base_names(models[0])
    one, two = (model.net.body[1].weight for model in models)
    assert torch.equal(one, two)
    assert one.data_ptr() != two.data_ptr()
    assert (models[0].scored_at_once, models[0]._pad) == ((1 << 23) // (PLACES * VOCABULARY), None)
    ((kind, path, attention, config),) = library.asked  # loaded once
    assert (kind, path, attention) == ("tokens", folder.path, "sdpa")
    assert (config["use_cache"], "auto_map" in config, "num_labels" in config) == (False,) * 3


def test_a_model_is_loaded_again_after_its_weights_were_overwritten(
    library: Library, folder: ModelFolder
) -> None:
    """The folder itself does not change if the bytes of a file in it do."""
    weights = folder.path / "model.safetensors"
    weights.write_bytes(b"before")
    before = folder.path.stat().st_mtime_ns
    for content, loaded in ((b"before", 1), (b"other, longer", 2), (b"other, longer", 2)):
        if weights.read_bytes() != content:
            weights.write_bytes(content)
        build(folder, Trained(), 5, 9, 3)
        assert len(library.asked) == loaded
    assert folder.path.stat().st_mtime_ns == before


def test_a_model_is_built_again_for_other_classes_another_seed_or_configuration(
    library: Library, folder: ModelFolder
) -> None:
    for classes, seed, loaded in ((None, 3, 1), (4, 3, 2), (5, 3, 3), (5, 8, 4), (5, 8, 4)):
        build(folder, Trained(classes=classes), 5, 0, seed)
        assert len(library.asked) == loaded
    for size, loaded in ((20, 5), (25, 6), (25, 6)):
        build(ModelFolder(folder.path, {**CONFIG, "vocab_size": size}), Trained(), 5, 0, 8)
        assert len(library.asked) == loaded


def test_only_the_last_layer_is_trained_and_the_rest_is_shared(
    library: Library, folder: ModelFolder
) -> None:
    models = [build(folder, Trained(head=True), 5, 9, 3) for _ in range(2)]
    assert trained(models[0]) == {"net.lm_head.weight"}
    assert {"net.body.0.weight", "net.body.1.bias", "net.mask"} <= base_names(models[0])
    heads, bodies = zip(
        *((m.net.lm_head.weight, m.net.body[1].weight) for m in models), strict=True
    )
    assert torch.equal(*heads)
    assert heads[0].data_ptr() != heads[1].data_ptr()
    assert bodies[0].data_ptr() == bodies[1].data_ptr()


def test_a_classifier_is_told_its_classes_and_its_filling(
    library: Library, folder: ModelFolder
) -> None:
    model = build(folder, Trained(head=True, classes=3, recompute=True), 5, 0, 3)
    assert trained(model) == {"net.score.weight"}
    assert (model.scored_at_once, model._pad) == ((1 << 23) // 3, 6)
    ((kind, _, attention, config),) = library.asked
    assert (kind, attention) == ("classes", "eager")
    assert (config["num_labels"], config["pad_token_id"]) == (3, 6)
    assert model.net.recomputed == {"use_reentrant": False}
    assert build(folder, Trained(head=True, classes=3), 5, 0, 3).net.recomputed is None
    other = ModelFolder(folder.path, {**CONFIG, "last_layer": "classifier"})
    assert trained(build(other, Trained(head=True, classes=3), 5, 0, 3)) == {
        "net.classifier.weight"
    }


def test_more_than_the_model_takes_is_refused(library: Library, folder: ModelFolder) -> None:
    build(folder, Trained(), PLACES, VOCABULARY, 3)
    with pytest.raises(ModelInvalid, match="have 13 tokens, but the model takes 12"):
        build(folder, Trained(), PLACES + 1, VOCABULARY, 3)
    with pytest.raises(ModelInvalid, match="the token 30, but the model knows 30 tokens"):
        build(folder, Trained(), PLACES, VOCABULARY + 1, 3)


@pytest.mark.parametrize(
    ("missing", "classes", "named"),
    [
        (["lm_head.weight"], None, "lm_head.weight"), (["score.weight"], 3, None),
        (["score.weight", "body.1.bias", "body.0.weight"], 3, "body.0.weight"),
    ],
)  # fmt: skip
def test_a_file_lacks_no_weights_but_a_new_classifiers(
    missing: list[str], classes: int | None, named: str | None, library: Library,
    folder: ModelFolder,
) -> None:  # fmt: skip
    library.missing = missing
    if named is None:
        build(folder, Trained(classes=classes), 5, 0, 3)
        return
    with pytest.raises(ModelInvalid, match=f"its files lack the weights {named}"):
        build(folder, Trained(classes=classes), 5, 0, 3)


def test_new_weights_follow_from_the_seed_and_draw_nothing_elsewhere(
    library: Library, folder: ModelFolder
) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "eos_token_id"}
    own = ModelFolder(folder.path, {**config, "vocab_size": 20})
    before = torch.get_rng_state()
    first, other, again = (build(own, Trained(), 5, 20, s).net.body[1].weight for s in (3, 4, 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (library.asked[0][1], "use_cache" in library.asked[0][3]) == ("new", True)
    assert "eos_token_id" not in library.asked[0][3], "of the folder's configuration"
    with pytest.raises(ModelInvalid, match="its model_type is 'huge', which transformers does not"):
        build(ModelFolder(folder.path, {**CONFIG, "model_type": "huge"}), Trained(), 5, 20, 3)


@pytest.fixture
def peft(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the settings of adapters that were asked for. The layer `none` does not exist."""
    asked: list[Any] = []

    def get_peft_model(net: Net, settings: SimpleNamespace) -> nn.Module:
        asked.append(vars(settings))
        if settings.target_modules == ["none"]:
            raise ValueError("Target modules {'none'} not found. Please check")
        net.body[1].extra = nn.Parameter(torch.randn(WIDTH, settings.r))
        return net

    module: Any = SimpleNamespace(LoraConfig=SimpleNamespace, get_peft_model=get_peft_model)
    monkeypatch.setitem(sys.modules, "peft", module)
    return asked


def test_adapters_have_their_settings_and_the_jobs_seed(
    library: Library, folder: ModelFolder, peft: list[Any]
) -> None:
    part = Trained(Adapter(2, 7.0, ("1",)))
    before = torch.get_rng_state()
    models = [build(folder, part, 5, 9, seed) for seed in (3, 4, 3)]
    assert torch.equal(torch.get_rng_state(), before)
    assert trained(models[0]) == {"net.body.1.extra"}
    first, other, again = (model.net.body[1].extra for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert peft[0] == {"r": 2, "lora_alpha": 7.0, "target_modules": ["1"], "task_type": "CAUSAL_LM"}
    tied = ModelFolder(folder.path, {**CONFIG, "is_tied": True})
    moved, other = (build(tied, part, 5, 9, 3) for _ in range(2))
    moved.double()  # as to another device
    assert moved.net.lm_head.weight is moved.net.body[0].weight
    assert (moved.net.body[0].weight.dtype, other.net.body[0].weight.dtype) == (
        torch.float64, torch.float32,
    )  # fmt: skip
    build(folder, Trained(Adapter(3, 7.0), classes=3), 5, 9, 3)
    assert (peft[-1]["target_modules"], peft[-1]["task_type"]) == (None, "SEQ_CLS")
    sentence = r"adapter\.targets = \['none'\]: Target modules .* not found\. .* layers are 1, lm_h"
    with pytest.raises(ModelInvalid, match=sentence):
        build(folder, Trained(Adapter(2, 7.0, ("none",))), 5, 9, 3)


def test_transformers_is_told_to_stay_off_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    said: list[str] = []
    logging = SimpleNamespace(
        set_verbosity_error=lambda: said.append("errors"),
        disable_progress_bar=lambda: said.append("no bar"),
    )
    module: Any = SimpleNamespace(utils=SimpleNamespace(logging=logging))
    monkeypatch.setitem(sys.modules, "transformers", module)
    assert model_folder.transformers() is module
    assert (os.environ["HF_HUB_OFFLINE"], os.environ["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    assert said == ["errors", "no bar"]
    before = [*warnings.filters]
    with model_folder.quiet():
        warnings.warn("an option is old", FutureWarning, stacklevel=1)
    assert warnings.filters == before, "others' warnings are shown"


def test_a_jobs_keys_reach_the_model(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def noted(*given: Any) -> nn.Module:
        asked.append(given)
        return nn.Linear(2, 3)

    monkeypatch.setattr(language_model, "build", noted)
    (folder.path / "weights.safetensors").touch()

    def made(*keys: str, shape: Any = (7,)) -> Any:
        job = Job.load(None, [f"model=hf:{folder.path}", "data.name=parts:data", *keys])
        make_model(job, ModelShape(shape, 9))
        return asked[-1]

    lora = "adapter={kind: lora, rank: 3, alpha: 5.0, targets: [a, b]}"
    given, part, length, tokens, seed = made("task=next_token", lora, "language.recompute=true")
    assert given == ModelFolder(folder.path)
    assert part == Trained(Adapter(3, 5.0, ("a", "b")), recompute=True)
    assert (length, tokens) == (7, 9)
    assert made("task=next_token", lora)[4] == seed != made("task=next_token", lora, "seed=5")[4]
    head = made("task=sequence_classification", "training.train=head")
    assert head[1:4] == (Trained(head=True, classes=9), 7, 0)
    new = made("task=next_token", "language.config={model_type: tiny}")
    assert (new[0].own_config, new[1]) == ({"model_type": "tiny"}, Trained())
    for shape in ((7, 2), {"words": (7,)}):
        with pytest.raises(ModelInvalid, match="needs rows of tokens, not examples of "):
            made("task=next_token", shape=shape)
