"""A rule is skipped if a key that it reads is wrong, so it must name every key that it reads.

A rule that leaves one out is judged by the default in its place, and states a second, false error.
"""

from __future__ import annotations

from collections.abc import Collection
from types import FunctionType, MethodType
from typing import Any

import pytest
from pydantic import BaseModel

from fedveil.federated.blocks import JobFields
from fedveil.federated.rules import RULES
from fedveil.settings.allowed import Path
from fedveil.settings.rules import Rules
from job_checks import attempt, load, problems, vectors

#: Keys that a rule reads and need not name, because it is never broken by their defaults.
HARMLESS = {"_weighs_equally": ("protection.",), "_keys_of_language_models": ("task.",)}


class Noted:
    """Stands for a job or a block of it, and notes in `seen` which keys are read."""

    def __init__(self, block: BaseModel, seen: set[str], path: tuple[str, ...] = ()) -> None:
        self._block, self._seen, self._path = block, seen, path

    def __getattr__(self, name: str) -> Any:
        kind = type(self._block)
        if name in kind.model_fields:
            value, path = getattr(self._block, name), (*self._path, name)
            if isinstance(value, BaseModel) and not self._path:
                return Noted(value, self._seen, path)
            self._seen.add(".".join(path))
            return value
        found = getattr(kind, name, None)
        if isinstance(found, property):
            assert found.fget is not None
            return found.fget(self)
        is_method = isinstance(found, FunctionType)
        return MethodType(found, self) if is_method else getattr(self._block, name)


def jobs(monkeypatch: pytest.MonkeyPatch) -> list[JobFields]:
    """Return a job for every sentence of a rule, most of which break this rule."""
    found: list[JobFields] = []

    def broken(rules: Rules[Any], job: Any, wrong: Collection[Path]) -> list[str]:
        found.append(job)
        return []

    with monkeypatch.context() as patched:
        patched.setattr(Rules, "broken", broken)
        for text, _ in vectors("job_sentences.txt"):
            attempt(lambda text=text: load(text))  # type: ignore[misc]
    return found


def test_every_rule_names_the_keys_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set[str]()
    for job in jobs(monkeypatch):
        for rule, reads in RULES._reads.items():
            seen = set[str]()
            said = rule(Noted(job, seen))  # type: ignore[arg-type]
            assert said == rule(job)
            named = (*(f"{key}." for key in reads), *HARMLESS.get(rule.__name__, ()))
            unnamed = {key for key in seen if not f"{key}.".startswith(named)}
            assert not unnamed, f"{rule.__doc__} {reads}"
            used |= seen
    assert {"clients.fraction", "training.train", "audit.canaries", "protection.unary"} <= used


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{clients: {fraction: 2}, audit: {canaries: 80}}", "clients.fraction"),
        (
            "{protection: distribute_dp, clients: {sampling: poisson}, audit: {canaries: 80}}",
            "protection.name",
        ),
        (
            "{protection: {name: pw_encrypt, pw_encrypt: {reconstruct_secrets_threshold: 12}}, "
            "clients: {number: 10, fraction: 1.0}, audit: {canaries: -3}}",
            "audit.canaries",
        ),
    ],
)
def test_a_wrong_key_is_the_only_error_if_a_rule_needs_it(text: str, key: str) -> None:
    (sentence,) = problems(text)
    assert sentence.startswith(f"{key} = ")
