"""The table of `fedveil job show`: what trains each layer of the model, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedveil.base.plain_text import console
from fedveil.cli.exits import EXTRA_OF
from fedveil.cli.job_arguments import remarks
from fedveil.errors import FedveilError

if TYPE_CHECKING:
    from fedveil.engine.trainer_choice import LayerTraining
    from fedveil.federated.job import Job

#: A longer table has one line for the layers that differ only in a number inside their names.
_MOST_LINES = 40
_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.)")


def remark_layers(job: Job) -> None:
    """Print the layers of a job's model on standard error, or a note if it cannot be built here."""
    try:
        from fedveil.engine.trainer_choice import layer_training

        found = layer_training(job)
    except FedveilError as error:
        remarks("note", [f"the layers are not listed: {error}"])
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        remarks("note", [f"the layers are not listed: {package} is not installed"])
    else:
        show_layers(found, stderr=True)


def show_layers(found: Sequence[LayerTraining], *, stderr: bool = False) -> None:
    """Print a table of the layers on standard output or, with `stderr`, on standard error."""
    from fedveil.pages.table import Table

    lines = found if len(found) <= _MOST_LINES else _folded(found)
    rows = [
        (line.layer, line.type, f"{line.parameters:,}", line.trained_by, line.reason)
        for line in lines
    ]
    table = Table(["layer", "type", "weights", "trained by", "why not native code"], rows)
    console(stderr=stderr).print(table)


def _folded(found: Sequence[LayerTraining]) -> list[LayerTraining]:
    """Merge the entries of layers that differ only in numbers in their names.

    For example, `blocks.0.norm` and `blocks.1.norm` become one entry, `blocks.*.norm (2x)`.
    """
    alike: dict[LayerTraining, list[LayerTraining]] = {}
    for line in found:
        alike.setdefault(replace(line, layer=_NUMBER.sub("*", line.layer)), []).append(line)
    return [
        lines[0] if len(lines) == 1 else replace(folded, layer=f"{folded.layer} ({len(lines)}x)")
        for folded, lines in alike.items()
    ]
