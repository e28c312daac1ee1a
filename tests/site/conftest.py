"""Fixtures of the tests of a site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a client's examples are read."""
    from fedveil.flower.job import client_training

    found: list[int] = []
    own_data = client_training.client_data
    monkeypatch.setattr(
        client_training, "client_data", lambda *a: (found.append(a[1]), own_data(*a))[1]
    )
    return found
