"""The rules about class weights, precision and algorithms of a federated job's training."""

from __future__ import annotations

from fedveil.federated.blocks import JobFields
from fedveil.protections.catalog import POSITIONS
from fedveil.settings.allowed import shown
from fedveil.settings.rules import Rules


def add_training_rules(rules: Rules[JobFields]) -> None:
    """Add the rules about class weights, precision and `training.algorithm` to `rules`."""
    rules.rule("task", "training.class_weights")(_classes_weighed)
    rules.rule("clients.own_layers", "training", "privacy.unit")(_state_kept)
    rules.rule("training.algorithm", "clients.sampling", "protection.name")(_state_follows_report)
    rules.rule("training.precision", "privacy.unit")(_examples_exact)
    rules.rule("training", "server", "privacy.unit")(_algorithm_fits)
    rules.rule("protection.name", "training.algorithm")(_variates_protected)


def _classes_weighed(job: JobFields) -> str | None:
    """`training.class_weights` needs `task: classification` or `sequence_classification`.

    Returns an error message, or None if the job follows this rule.
    """
    classes = job.task in ("classification", "sequence_classification")
    if job.training.class_weights is None or classes:
        return None
    return f"training.class_weights needs task = classification; task = {job.task} has no classes"


def _state_kept(job: JobFields) -> str | None:
    """At most one of `clients.own_layers`, `training.algorithm: scaffold`, `feddyn` and `fedcm` may
    be set, and none together with `training.engine: vmap`, `training.train: head` or
    `privacy.unit: example`.

    Returns an error message, or None if the job follows this rule.
    """
    ways = ["clients.own_layers"] if job.clients.own_layers else []
    if job.training.corrects_steps:
        ways.append(f"training.algorithm = {job.training.algorithm}")
    refused = {
        "training.engine = vmap": job.training.engine == "vmap",
        "training.train = head": job.training.train == "head",
        "privacy.unit = example": job.privacy.unit == "example",
    }
    others = [*ways[1:], *(key for key, chosen in refused.items() if chosen)]
    return f"{ways[0]} is refused together with {' and '.join(others)}" if ways and others else None


def _state_follows_report(job: JobFields) -> str | None:
    """`training.algorithm: scaffold` and `feddyn` are refused under distributed_dp with
    `clients.sampling: poisson`, where a client decides in secret whether its report has an update.

    Returns an error message, or None if the job follows this rule.
    """
    why = "poisson with distributed_dp, in which a report may hold no update. Use fixed"
    refused = f"training.algorithm = {job.training.algorithm} is refused under clients.sampling ="
    return f"{refused} {why}" if job.training.keeps_mean and job.secret_turns else None


def _examples_exact(job: JobFields) -> str | None:
    """`privacy.unit: example` needs `training.precision: float32`.

    Returns an error message, or None if the job follows this rule.
    """
    if job.privacy.unit == "client" or job.training.precision == "float32":
        return None
    return (
        f"training.precision = {job.training.precision} is refused under privacy.unit = example, "
        "which computes the gradient of each example separately, in float32"
    )


def _algorithm_fits(job: JobFields) -> str | None:
    """`training.algorithm: scaffold`, `fednova` and `fedcm` need `optimizer: sgd`, `momentum` 0
    and no `gradient_norm`. fednova also needs `normal_steps`, `proximal` 0 and
    `privacy.unit: client`. `feddyn` needs `proximal` 0, `server.optimizer: none` and `server.lr` 1.
    scaffold and feddyn need `server.aggregation: mean`.

    Returns an error message, or None if the job follows this rule.
    """
    training, algorithm = job.training, job.training.algorithm
    if algorithm == "fedavg":
        return None
    needed: dict[str, object] = {}
    if algorithm in ("scaffold", "fednova", "fedcm"):
        needed = {"training.optimizer": "sgd", "training.momentum": 0}
        needed |= {"training.gradient_norm": None}
    if algorithm == "fednova":
        needed |= {"training.proximal": 0, "privacy.unit": "client"}
    if algorithm == "feddyn":
        needed = {"training.proximal": 0, "server.optimizer": "none", "server.lr": 1}
    if training.keeps_mean:
        needed |= {"server.aggregation": "mean"}
    held = {key: getattr(getattr(job, key.split(".")[0]), key.split(".")[1]) for key in needed}
    wrong = [
        f"{key} = {shown(held[key])} is not {shown(value)}"
        for key, value in needed.items()
        if held[key] != value
    ]
    if algorithm == "fednova" and training.normal_steps is None:
        wrong.append("training.normal_steps is missing")
    return f"{', '.join(wrong)}: training.algorithm = {algorithm} needs it" if wrong else None


def _variates_protected(job: JobFields) -> str | None:
    """`training.algorithm: scaffold` reports control variates beside the update, in one vector
    that is protected as a whole. It is refused under signds, rr and oue, which treat all entries
    alike.

    Returns an error message, or None if the job follows this rule.
    """
    position = job.protection.position
    if job.training.algorithm != "scaffold" or position.takes_variates:
        return None
    able = [name for name, p in POSITIONS.items() if p.takes_variates]
    return (
        f"training.algorithm = scaffold is refused under protection.name = {job.protection.name}, "
        f"which treats all entries of a report alike, but control variates differ from updates: "
        f"use {' or '.join(able)}, or feddyn or training.proximal, which report only updates"
    )
