"""The rules between the keys of a job that has a language model."""

from __future__ import annotations

from fedveil.federated.blocks import JobFields
from fedveil.federated.language_blocks import LANGUAGE_TASKS, TEXT_FOLDER
from fedveil.settings.rules import Rules


def add_language_rules(rules: Rules[JobFields]) -> None:
    """Add the rules about language models, their adapters and texts to `rules`."""
    rules.rule("model", "task")(_task_fits)
    rules.rule("model", "adapter", "language", "training.train")(_keys_of_language_models)
    rules.rule("data.name", "data.folder", "model", "task")(_texts_read)
    rules.rule("language.recompute", "privacy.unit", "training.engine")(_recomputed)


def _task_fits(job: JobFields) -> str | None:
    """`model: hf:FOLDER` needs `task: next_token`, `sequence_classification`, `instruction` or a
    task of yours. `sequence_classification` and `instruction` need `model: hf:FOLDER`.

    Returns an error message, or None if the job follows this rule.
    """
    if job.has_language_model == (job.task in LANGUAGE_TASKS) or ":" in job.task:
        return None
    if job.has_language_model:
        return f"task = {job.task} is not one of {', '.join(LANGUAGE_TASKS)}, which a model hf: has"
    if job.task == "next_token":
        return None
    return f"task = {job.task} needs model = hf:FOLDER, a language model of transformers"


def _keys_of_language_models(job: JobFields) -> str | None:
    """`adapter.kind: lora`, `language.config` and `language.prompts` need `model: hf:FOLDER`. lora
    needs `training.train: all`, and prompts need a task that predicts tokens.

    Returns an error message, or None if the job follows this rule.
    """
    given = {
        "adapter.kind = lora": job.adapter.kind == "lora",
        "language.config": bool(job.language.config),
        "language.prompts": bool(job.language.prompts),
    }
    if not job.has_language_model:
        wrong = [key for key, used in given.items() if used]
        return f"{wrong[0]} needs model = hf:FOLDER, not {job.model}" if wrong else None
    if job.adapter.kind == "lora" and job.training.train == "head":
        return (
            "training.train = head is refused under adapter.kind = lora, which trains adapters: "
            "remove one of them"
        )
    if job.language.prompts and job.task == "sequence_classification":
        return "language.prompts needs a task that predicts tokens, not sequence_classification"
    return None


def _texts_read(job: JobFields) -> str | None:
    """`data.name: text_folder` needs `data.folder`, the folder of your texts, `model: hf:FOLDER`
    and a task of language models.

    Returns an error message, or None if the job follows this rule.
    """
    if job.data.name != TEXT_FOLDER:
        return None
    if job.data.folder is None:
        return (
            "data.name = text_folder needs data.folder: name the folder that holds train.jsonl "
            "and test.jsonl"
        )
    if not job.has_language_model or job.task not in LANGUAGE_TASKS:
        return (
            "data.name = text_folder needs model = hf:FOLDER, whose tokeniser reads the texts, and "
            f"a task of {', '.join(LANGUAGE_TASKS)}"
        )
    return None


def _recomputed(job: JobFields) -> str | None:
    """`language.recompute: true` is refused under `privacy.unit: example` and `training.engine:
    vmap`, which compute the gradients of several examples or clients at once.

    Returns an error message, or None if the job follows this rule.
    """
    batched = job.privacy.unit == "example" or job.training.engine == "vmap"
    if not (job.language.recompute and batched):
        return None
    return (
        "language.recompute = true is refused under privacy.unit = example and training.engine = "
        "vmap, which compute several gradients at once. Remove the key"
    )
