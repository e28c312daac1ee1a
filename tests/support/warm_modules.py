"""Imports everything, for the process that others are forked from, even lazy imports."""

from __future__ import annotations

import gc
from contextlib import suppress

gc.disable()  # imports make many objects, and free few

import scipy.linalg
import torch

import fedveil.cli.vertical.commands
import fedveil.engine.simulation
import fedveil.run_display
import fedveil.vertical.remote.sessions
import parts
import vertical_apart
import vertical_parts

with suppress(ImportError):
    import numba  # noqa: F401
_parameter = torch.zeros(1, requires_grad=True)
torch.optim.SGD([_parameter])
READY = (
    fedveil.engine.simulation, fedveil.run_display, fedveil.vertical.remote.sessions,
    fedveil.cli.vertical.commands, scipy.linalg, parts, vertical_apart, vertical_parts,
)  # fmt: skip
gc.freeze()  # the forked processes do not look through them either
gc.enable()
