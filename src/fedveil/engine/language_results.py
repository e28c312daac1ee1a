"""Compares a run's language model before and after its training."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedveil.base.array_types import Float32s
from fedveil.engine.job_model import text_form
from fedveil.engine.run_parts import Parts
from fedveil.learning.weight_layout import Layout
from fedveil.pretrained.continuation import continued
from fedveil.pretrained.token_rows import TokenRows
from fedveil.record.before_after import BeforeAfter
from fedveil.record.metric_names import deciding


def before_after(parts: Parts, first: Float32s | None, weights: Float32s) -> Iterator[BeforeAfter]:
    """Yield comparisons of a run's language model before and after training.

    They compare the metric that decides which model is best, and the texts with which the model
    continues the job's prompts. `first` are the weights before training (None: no comparisons).
    """
    form, job = text_form(parts.job), parts.job
    if form is None or first is None:
        return
    layout: Layout = parts.test.layout
    both = (first[: layout.dimension], weights[: layout.dimension])
    figures = [parts.test.quality(vector) for vector in both]
    name = deciding(figures[1])[0]
    yield BeforeAfter("figure", name, *(f"{figure[name]:.4g}" for figure in figures))
    prompts, found = job.language.prompts, list[list[str]]()
    if not prompts:
        return
    rows = TokenRows(form.model, form.length)
    for vector in both:
        layout.write(torch.from_numpy(vector))
        found.append(
            [continued(parts.model, rows, text, job.language.new_tokens) for text in prompts]
        )
    for prompt, before, after in zip(prompts, *found, strict=True):
        yield BeforeAfter("prompt", prompt, before, after)
