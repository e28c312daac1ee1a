"""Failures of a party's part of the model: a saved traceback, and a line in the party's account.

Other parties learn that the part has failed. Whether it fails may depend on a single example, so
the line has an infinite epsilon.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fedveil.errors import ModelInvalid, PartFailed
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import FAILURE
from fedveil.record.run_folder import TRACEBACK, RunFolder
from fedveil.vertical.step_checkpoint import saved_steps


def keep_failure(folder: RunFolder, failure: PartFailed) -> None:
    """Save the traceback of `failure` in `folder`, and add a note to `failure` that says where.

    Call this before another party learns of the failure.
    """
    whole = "".join(traceback.format_exception(failure.__cause__))
    folder.write_atomically(TRACEBACK, whole.encode())
    failure.add_note(f"the traceback is in {folder.path / TRACEBACK}")


@contextmanager
def as_part_failure(folder: RunFolder, party: str) -> Iterator[None]:
    """A context that turns the error of an invalid model into the failure of a part.

    It catches `ModelInvalid`, saves its traceback in `folder`, and raises `PartFailed`. The other
    parties see this failure, because the run ends. If `folder` has no saved step, nothing was sent
    yet, and `ModelInvalid` is raised unchanged.
    """
    try:
        yield
    except ModelInvalid as error:
        if not saved_steps(folder):
            raise
        failure = PartFailed(str(error), told=f"a part of {party} failed")
        failure.__cause__ = error
        keep_failure(folder, failure)
        raise failure from error


def told_failure(folder: RunFolder) -> Iterator[Line]:
    """Yield the account line for a failed part, if a failure's traceback is saved in `folder`."""
    if (folder.path / TRACEBACK).exists():
        yield Line(math.inf, 0.0, FAILURE)
