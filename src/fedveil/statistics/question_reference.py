"""The reference page of all keys of a question file, generated from the settings."""

from __future__ import annotations

from fedveil.settings.reference import page
from fedveil.statistics.question import LOCAL, SUMS, QuestionFile
from fedveil.statistics.question_rules import NEEDED, READ
from fedveil.statistics.question_settings import QuestionSettings

_INTRODUCTION = """\
# The question file

What [a question file](statistics.md) leaves out has the default below. NAME is the name of a
question, and of its answer.

## Keys
"""
_RULES = (
    f"`protection` is one of {', '.join((*SUMS, *LOCAL))}.",
    "`epsilon` is needed under all of them but not_encrypt, which adds no noise, and pw_encrypt.",
    "`rows` is 1 under rr and oue, where a client reports one row.",
    "`fidelity: aggregate` is for rr and oue.",
    "The settings of a protection that follow from `epsilon`, `delta` and the questions, such as "
    "`protection.distributed_dp.clip`, are left out.",
)


def reference() -> str:
    return page(_INTRODUCTION, QuestionFile, [*map(_read, READ), *_RULES])


def _read(kind: str) -> str:
    by_default = QuestionSettings()
    said = (
        f"`{key}`{' (needed)' if key in NEEDED and not getattr(by_default, key) else ''}"
        for key in READ[kind]
    )
    return f"`ask: {kind}` reads {', '.join(said)}, besides `where` and `weight`."
