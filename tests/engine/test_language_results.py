"""A language model's first and last weights are compared on the same metric and prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.engine import language_results, run_state
from fedveil.engine.language_results import before_after
from fedveil.engine.run_state import RunState
from fedveil.engine.server_optimizer import ServerOptimizer
from fedveil.federated.job import Job
from fedveil.federated.training_blocks import ServerSettings
from fedveil.protections.base import Aggregate
from fedveil.record.before_after import BeforeAfter


class Layout:
    """Three weights, of which a server may send more."""

    dimension = 3
    written: Any = None

    def write(self, vector: Any) -> None:
        self.written = vector.tolist()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    layout = Layout()
    form = SimpleNamespace(model="a folder", length=11)
    monkeypatch.setattr(language_results, "text_form", lambda job: form)
    monkeypatch.setattr(language_results, "TokenRows", lambda folder, length: (folder, length))
    monkeypatch.setattr(
        language_results,
        "continued",
        lambda model, rows, prompt, tokens: f"{model} {rows} {prompt} {tokens} {layout.written}",
    )

    def quality(vector: Any) -> dict[str, Any]:
        figures = {"loss": 9.0, "perplexity": 1234.56 * float(vector.sum())}
        return {**figures, "measures": {"perplexity": "lower"}}

    language = {"prompts": ["one", "two"], "new_tokens": 5}
    return SimpleNamespace(
        job=Job(model="hf:m", task="next_token", language=language),
        model="model",
        test=SimpleNamespace(layout=layout, quality=quality),
    )


def test_the_metric_that_decides_and_every_prompt_are_compared(parts: Any) -> None:
    first, last = np.array([1, 2, 0, 50], np.float32), np.array([1, 0, 0, 70], np.float32)
    rows = ("a folder", 11)
    assert list(before_after(parts, first, last)) == [
        BeforeAfter("figure", "perplexity", "3704", "1235"),
        *(
            BeforeAfter(
                "prompt",
                prompt,
                f"model {rows} {prompt} 5 [1.0, 2.0, 0.0]",
                f"model {rows} {prompt} 5 [1.0, 0.0, 0.0]",
            )
            for prompt in ("one", "two")
        ),
    ]
    assert parts.test.layout.written == [1.0, 0.0, 0.0]  # the run saves the last model


def test_without_prompts_or_first_weights_there_is_less_to_compare(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.ones(3, np.float32)
    assert list(before_after(parts, None, weights)) == []
    parts.job = Job(model="hf:m", task="next_token")
    (line,) = before_after(parts, weights, weights)
    assert line.what == "perplexity"
    monkeypatch.setattr(language_results, "text_form", lambda job: None)
    assert list(before_after(parts, weights, weights)) == []


def test_a_run_keeps_its_first_weights_while_a_step_overwrites_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_state, "text_form", lambda job: "a form")
    begun: Any = SimpleNamespace(
        job=Job(model="hf:m", task="next_token", clients={"number": 8}),
        test=SimpleNamespace(layout=SimpleNamespace(vector=lambda: np.arange(3, dtype=np.float32))),
        protection=SimpleNamespace(initial_state=dict, adaptive=False),
        canaries=SimpleNamespace(clients=()),
        optimizer=ServerOptimizer(ServerSettings(), np.ones(3, np.bool_)),
    )
    state = RunState(begun)
    state.apply(Aggregate(np.array([0.5, 0.25, 1.0]), 4))
    assert state.first is not None
    assert state.first.tolist() == [0, 1, 2]
    assert state.weights.tolist() == [0.5, 1.25, 3]
