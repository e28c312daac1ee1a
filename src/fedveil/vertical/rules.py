"""Rules for combinations of a vertical job's keys. The reference lists their docstrings."""

from __future__ import annotations

from fedveil.settings.rules import Rules
from fedveil.vertical.blocks import VerticalFields

RULES = Rules[VerticalFields]()


@RULES.rule("optimizer", "parts")
def _momentum_is_sgds(job: VerticalFields) -> str | None:
    """`momentum` belongs to `name: sgd`. It must be 0 under adam and adamw.

    Returns an error message, or None if the job follows this rule.
    """
    own = {f"parts.{name}.optimizer": part.optimizer for name, part in job.parts.items()}
    for place, optimizer in {"optimizer": job.optimizer, **own}.items():
        if optimizer.name not in (None, "sgd") and optimizer.momentum:
            return (
                f"{place}.momentum = {optimizer.momentum!r} belongs to sgd; under "
                f"{place}.name = {optimizer.name} only 0 is allowed"
            )
    return None


@RULES.rule("in_flight", "batch_size")
def _micro_batches_fit(job: VerticalFields) -> str | None:
    """`in_flight` must be at most `batch_size`: a micro-batch has at least one example.

    Returns an error message, or None if the job follows this rule.
    """
    if job.in_flight <= job.batch_size:
        return None
    return (
        f"in_flight = {job.in_flight} is outside [1, {job.batch_size}], the examples of a step "
        f"(batch_size)"
    )


@RULES.rule("compression")
def _some_way_is_compressed(job: VerticalFields) -> str | None:
    """`compression` must set `forward` or `backward` to true.

    Returns an error message, or None if the job follows this rule.
    """
    held = job.compression
    if held is None or held.forward or held.backward:
        return None
    return "compression.forward and compression.backward are both false: set one to true"


@RULES.rule("privacy", "parts")
def _reports_are_drawn_once(job: VerticalFields) -> str | None:
    """`embedding_dp.reuse: true` needs `eps`, because without noise no report is random.

    Returns an error message, or None if the job follows this rule.
    """
    own = {f"parts.{name}.privacy": part.privacy for name, part in job.parts.items()}
    for place, privacy in {"privacy": job.privacy, **own}.items():
        settings = None if privacy is None else privacy.embedding_dp
        if settings is not None and settings.reuse and settings.eps is None:
            block = f"{place}.embedding_dp"
            return f"{block}.reuse = true needs an eps; {block}.eps = null draws nothing"
    return None
