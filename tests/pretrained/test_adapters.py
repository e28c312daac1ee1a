"""Adapters go through the whole of a run: only they are trained, protected, sent and saved."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedveil
import tiny_language
from fedveil.attacks import extraction
from fedveil.attacks.effort import Watch
from fedveil.attacks.membership import membership
from fedveil.attacks.target import Target
from fedveil.engine.assembly import load_data
from fedveil.errors import DataInvalid
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.pretrained.base_weights import base_names
from tiny_language import SENTENCES

CLIENT_LEVEL: dict[str, dict[str, Any]] = {
    "not_encrypt": {},
    "dp_encrypt": {},
    "pw_encrypt": {"protection.pw_encrypt.reconstruct_secrets_threshold": 3},
    "distributed_dp": {"protection.distributed_dp.noise_multiplier": 0.7,
                       "protection.distributed_dp.reconstruct_secrets_threshold": 3},
    "central_gaussian": {"protection.central_gaussian.noise_multiplier": 0.7},
    "signds": {},
    "rr": {"protection.unary.eps": 3.0},
    "oue": {"protection.unary.eps": 3.0},
}  # fmt: skip
EXAMPLE = {"privacy.unit": "example", "training.sampling_rate": 0.6, "training.epochs": 1}


def job(model: Path, texts: Path, **more: Any) -> Job:
    return Job.load(None, tiny_language.settings(model, texts, **more))


def frozen(model: torch.nn.Module) -> dict[str, bytes]:
    names, values = base_names(model), dict(model.named_parameters())
    return {name: values[name].detach().numpy().tobytes() for name in names}


@pytest.mark.parametrize("name", CLIENT_LEVEL)
def test_every_protection_carries_only_adapters(
    name: str, model: Path, texts: Path, tmp_path: Path
) -> None:
    more = {"protection.name": name, **CLIENT_LEVEL[name], "clients.fraction": 1.0}
    run = fedveil.simulate(job(model, texts, rounds=1, **more), tmp_path / "run")
    whole = sum(p.numel() for p in run.model.parameters())
    assert Layout(run.model).dimension == 384
    assert whole > 11_000
    assert run.metrics[-1]["reports"] == 5
    assert run.metrics[-1]["bytes_up_per_client"] < 4 * 11_000 / 5
    assert np.isfinite(run.metrics[-1]["perplexity"])
    stated = run.metrics[-1]["epsilon_run_every_round"]
    assert (stated < np.inf) == (name not in ("not_encrypt", "pw_encrypt"))
    saved = load_file(run.folder / "model.safetensors")
    assert set(saved) == {e.name for e in Layout(run.model).entries}


def test_training_changes_the_adapters_and_nothing_else(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    before = tiny_language.built(model)
    run = fedveil.simulate(job(model, texts, rounds=3), tmp_path / "run")
    assert frozen(run.model) == frozen(before)
    assert len(frozen(before)) > 20
    assert not np.array_equal(Layout(run.model).vector(), Layout(before).vector())
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


def test_a_client_that_trains_after_another_starts_from_the_same_model(
    model: Path, texts: Path
) -> None:
    target = Target.of(job(model, texts))
    alone, first = target.updates([2])[0], target.updates([0, 1, 2])[2]
    assert alone.tobytes() == first.tobytes()
    assert alone.any()


def test_a_resumed_run_ends_with_the_same_bytes(model: Path, texts: Path, tmp_path: Path) -> None:
    whole = fedveil.simulate(job(model, texts, rounds=2), tmp_path / "whole")
    fedveil.simulate(job(model, texts, rounds=1), tmp_path / "part")
    resumed = fedveil.resume(tmp_path / "part", rounds=2)
    assert Layout(resumed.model).vector().tobytes() == Layout(whole.model).vector().tobytes()


@pytest.mark.parametrize("protection", ["not_encrypt", "distributed_dp"])
def test_an_invalid_line_changes_nothing_for_other_examples(
    protection: str, model: Path, tmp_path: Path
) -> None:
    def trained(name: str, last: dict[str, Any]) -> Any:
        lines = [
            {"text": text, "client": f"c{i % 3}"} for i, text in enumerate(["abc", "def", "ghi"])
        ]
        lines = [{**line, "text": line["text"] * 3} for line in lines] * 2
        texts = tiny_language.text_folder(tmp_path / name, [*lines, last], [{"text": "the cat"}])
        made = job(model, texts, rounds=1, **EXAMPLE, **{
            "protection.name": protection, "clients.fraction": 1.0,
            "protection.distributed_dp.noise_multiplier": 0.7,
            "protection.distributed_dp.reconstruct_secrets_threshold": 2,
        })  # fmt: skip
        run = fedveil.simulate(made, tmp_path / f"run-{name}")
        return Layout(run.model).vector().tobytes()

    bad = trained("bad", {"text": 7, "client": "c2"})
    assert bad == trained("worse", {"client": "c2"})
    assert bad != trained("good", {"text": "rain rain", "client": "c2"})


def test_a_classifier_trains_its_adapters_and_its_last_layer(model: Path, tmp_path: Path) -> None:
    lines = [
        {"text": text, "label": label, "client": f"c{i % 3}"}
        for i in range(7)
        for text, label in (("good nice fine", "yes"), ("rain fire", "no"), ("dog", "so"))
    ]
    texts = tiny_language.text_folder(tmp_path / "x", lines, lines[:6])
    more = {"task": "sequence_classification", "language.prompts": [], "rounds": 4}
    run = fedveil.simulate(job(model, texts, **more), tmp_path / "run")
    names = [entry.name for entry in Layout(run.model).entries]
    assert sum("lora" in name for name in names) == 4
    assert [name for name in names if "lora" not in name] == [
        "net.base_model.model.score.modules_to_save.default.weight"
    ]
    assert Layout(run.model).dimension == 384 + 3 * 16
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    (texts / "train.jsonl").write_text('{"text": "a", "label": "else"}')
    with pytest.raises(DataInvalid, match=r"line 1: its label 'else' is in no line of test.jsonl"):
        load_data(job(model, texts, **more))


def test_an_instruction_is_learnt(model: Path, tmp_path: Path) -> None:
    lines = [{"prompt": "the cat", "answer": " sat"}, {"prompt": "rain", "answer": " falls down"}]
    texts = tiny_language.text_folder(tmp_path / "x", lines, lines[:1])
    settings = {"task": "instruction", "data.split": "iid", "clients.number": 2}
    run = fedveil.simulate(job(model, texts, **settings), tmp_path / "run")
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


def test_the_page_shows_the_model_before_and_after(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    more = {"record.page": True, "protection.name": "dp_encrypt", "language.prompts": ["a <b>"]}
    run = fedveil.simulate(job(model, texts, **more), tmp_path / "run")
    lines = [json.loads(t) for t in (run.folder / "before-after.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == ["perplexity", "a <b>"]
    assert float(lines[0]["after"]) == pytest.approx(run.metrics[-1]["perplexity"], 1e-3)
    assert lines[0]["before"] != lines[0]["after"]
    html = (run.folder / "report.html").read_text("utf-8")
    assert "Before and after" in html
    assert "a &lt;b&gt;" in html
    assert "under dp_encrypt: epsilon" in html
    assert "lora, rank 3, alpha 6" in html


def test_a_deployed_job_ends_with_the_simulators_bytes(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    pytest.importorskip("flwr")
    from flower_parts import LocalGrid, app_of, serve

    settings = job(model, texts, rounds=1, **{"clients.number": 5, "clients.fraction": 1.0})
    app, _ = app_of(tmp_path / "app", settings, seeded=True)
    assert "language" in (app / "pyproject.toml").read_text()
    deployed = serve(app, LocalGrid(app, tmp_path / "state", range(5)), tmp_path / "run")
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    assert Layout(deployed.model).vector().tobytes() == Layout(simulated.model).vector().tobytes()


@pytest.mark.slow
def test_workers_end_with_the_same_bytes(model: Path, texts: Path, tmp_path: Path) -> None:
    runs = [
        fedveil.simulate(job(model, texts, **{"simulation.workers": n}), tmp_path / str(n))
        for n in (0, 2)
    ]
    assert len({Layout(run.model).vector().tobytes() for run in runs}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["membership.membership", "membership.client_membership", "repetition", "distinguishing"],
)
def test_attacks_take_adapters_as_any_update(name: str, model: Path, tmp_path: Path) -> None:
    lines = [
        {"text": f"{text} {i}", "label": label, "client": f"c{i % 6}"}
        for i in range(12)
        for text, label in (("good nice", "yes"), ("rain fire", "no"))
    ]
    texts = tiny_language.text_folder(tmp_path / "x", lines, lines[:9])
    more = {"task": "sequence_classification", "language.prompts": [], "clients.fraction": 1.0}
    target = Target.of(job(model, texts, **more, **{"protection.name": "dp_encrypt"}))
    found = import_module(f"fedveil.attacks.{name}").attack(target, "quick", Watch())
    assert found.protection == "dp_encrypt"
    assert len(found.figures) > 2


def random_texts(folder: Path) -> Path:
    """Write 61 texts of 3 to 8 random words, of seven clients, and five test texts."""
    draw, words = np.random.default_rng(7), " ".join(SENTENCES).split()
    lines = [
        {"text": " ".join(draw.choice(words, draw.integers(3, 9))), "client": f"c{i % 7}"}
        for i in range(66)
    ]
    return tiny_language.text_folder(folder, lines[:61], lines[61:])


#: Seven clients with eight or nine texts each. Half of the texts are used in a run.
ATTACKED = {"language.prompts": [], "language.length": 14, "clients.fraction": 1.0, "rounds": 1}


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_texts_that_adapters_learnt_are_found(recompute: bool, model: Path, tmp_path: Path) -> None:
    more = {"training.epochs": 5, "training.lr": 1.0, "language.recompute": recompute}
    target = Target.of(job(model, random_texts(tmp_path / "x"), **ATTACKED, **more))
    found = membership.attack(target, "quick", Watch())
    assert found.figure("report's gradient AUC").low > 0.5
    assert found.figure("report's loss AUC").value > 0.5
    assert found.figure("loss AUC").cases == len(target.dataset.train)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CLIENT_LEVEL, "example"])
def test_texts_are_attacked_under_every_protection(name: str, model: Path, tmp_path: Path) -> None:
    """All of the attacks on the model, and those on a report or a sum."""
    protected = {"protection.name": name, **CLIENT_LEVEL.get(name, {})}
    more = EXAMPLE if name == "example" else protected
    texts = random_texts(tmp_path / "x")
    target = Target.of(job(model, texts, **ATTACKED, **{"training.epochs": 1, **more}))
    found = membership.attack(target, "quick", Watch())
    names = {figure.name for figure in found.figures}
    what = "sum" if name in ("pw_encrypt", "distributed_dp") else "report"
    assert f"{what}'s gradient AUC" in names
    assert {f"{method} AUC" for method in membership.METHODS} <= names
    assert found.epsilon == target.promised().epsilon


@pytest.mark.slow
def test_phrases_are_planted_in_texts(model: Path, tmp_path: Path) -> None:
    lines = [
        {"text": SENTENCES[(i + j) % 4] * 2, "client": f"c{i}"} for i in range(17) for j in range(4)
    ]
    texts = tiny_language.text_folder(tmp_path / "x", lines, lines[:9])
    target = Target.of(job(model, texts, **{"clients.fraction": 1.0, "rounds": 3}))
    found = extraction.attack(target, "quick", Watch())
    assert found.figures[0].name == "exposure of phrases that nobody had"
