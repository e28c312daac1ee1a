"""How many reports a client has given of a job, by its own count."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from fedveil.errors import ClientWithheld, DeploymentError
from fedveil.protections.base import Spending


class OwnCount:
    """A number in a file of the client's own, which no server and no restart sets back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def charge(self, spending: Sequence[Spending], limit: int) -> None:
        """One more report is about to leave; raises `ClientWithheld` beyond `limit` of them.

        A report that promises nothing by itself is not counted: it has no loss to limit.
        """
        if any(math.isinf(spent.loss.epsilon) for spent in spending):
            return
        given = self._read()
        if given >= limit:
            raise ClientWithheld(
                f"this client has given {given} reports of this job, rounds + "
                f"deployment.repeats = {limit} are all that it gives"
            )
        partial = self._path.with_suffix(".part")
        with partial.open("w") as file:
            file.write(str(given + 1))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)

    def _read(self) -> int:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return 0
        if not text.isdecimal():
            raise DeploymentError(f"{self._path} is damaged: it does not hold a number")
        return int(text)
