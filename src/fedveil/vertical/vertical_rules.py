"""What must hold between the keys of a vertical job; each rule is a sentence of the reference."""

from __future__ import annotations

from collections.abc import Iterator

from fedveil.settings.rules import Rules
from fedveil.vertical.vertical_blocks import EmbeddingDPSettings, OptimizerSettings, VerticalFields

RULES = Rules[VerticalFields]()


@RULES.rule("optimizer", "parts")
def _momentum_is_sgds(job: VerticalFields) -> str | None:
    """`momentum` belongs to `name: sgd`; under adam and adamw it is 0."""
    for place, optimizer in _optimizers(job):
        if optimizer.name not in (None, "sgd") and optimizer.momentum:
            return (
                f"{place}.momentum = {optimizer.momentum!r} belongs to sgd; under "
                f"{place}.name = {optimizer.name} only 0 is allowed"
            )
    return None


@RULES.rule("in_flight", "batch_size")
def _micro_batches_fit(job: VerticalFields) -> str | None:
    """`in_flight` is at most `batch_size`: a micro-batch has at least one example."""
    if job.in_flight <= job.batch_size:
        return None
    return (
        f"in_flight = {job.in_flight} is outside [1, {job.batch_size}], the examples of a step "
        f"(batch_size)"
    )


@RULES.rule("privacy", "parts")
def _reports_are_drawn_once(job: VerticalFields) -> str | None:
    """`embedding_dp.reuse: true` needs `eps`: without noise nothing is drawn."""
    for place, settings in _embeddings(job):
        if settings.reuse and settings.eps is None:
            return f"{place}.reuse = true needs an eps; {place}.eps = null draws nothing"
    return None


def _optimizers(job: VerticalFields) -> Iterator[tuple[str, OptimizerSettings]]:
    yield "optimizer", job.optimizer
    for name, part in job.parts.items():
        yield f"parts.{name}.optimizer", part.optimizer


def _embeddings(job: VerticalFields) -> Iterator[tuple[str, EmbeddingDPSettings]]:
    if job.privacy.embedding_dp is not None:
        yield "privacy.embedding_dp", job.privacy.embedding_dp
    for name, part in job.parts.items():
        if part.privacy is not None and part.privacy.embedding_dp is not None:
            yield f"parts.{name}.privacy.embedding_dp", part.privacy.embedding_dp
