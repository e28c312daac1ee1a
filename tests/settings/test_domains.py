"""Every key's domain and default, as agreed in `tests/vectors/domains.txt`.

A bound that is moved by an edit, `gt=0` to `ge=0`, lets a value in that nothing after it expects.
Who moves one on purpose moves it in that file too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedveil.federated import job_reference as federated
from fedveil.vertical import job_reference as vertical

VECTORS = Path(__file__).parents[1] / "vectors" / "domains.txt"


def domains(reference: Callable[[], str]) -> Iterator[str]:
    """Yield a line for each key that has a row in the reference."""
    for line in reference().splitlines():
        if line.startswith("| `"):
            key, allowed, default, _ = line.strip("| ").split(" | ", 3)
            yield f"{key.strip('`')}: {allowed}; {default}"


def agreed() -> dict[str, list[str]]:
    """Return the lines of each kind of job."""
    found: dict[str, list[str]] = {}
    for line in VECTORS.read_text("utf-8").splitlines():
        if line.startswith("# "):
            lines = found.setdefault(line.removeprefix("# "), [])
        elif line:
            lines.append(line)
    return found


KINDS = {"federated": federated, "vertical": vertical}


@pytest.mark.parametrize("kind", KINDS)
def test_a_domain_is_the_one_that_was_agreed_on(kind: str) -> None:
    found = list(domains(KINDS[kind].reference))
    assert len(found) > 40
    assert found == agreed()[kind]


def test_a_questions_domain_is_the_one_that_was_agreed_on() -> None:
    question = pytest.importorskip(  # its tables are stored with torch
        "fedveil.statistics.question_reference", exc_type=ModuleNotFoundError
    )
    assert list(domains(question.reference)) == agreed()["question"]


def test_a_policys_domain_is_the_one_that_was_agreed_on() -> None:
    pytest.importorskip("flwr")
    policy = pytest.importorskip("fedveil.site.policy_reference", exc_type=ModuleNotFoundError)
    assert list(domains(policy.reference)) == agreed()["policy"]
