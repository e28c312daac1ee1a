"""Imported where processes are forked from: what torch only imports when it is first used."""

from __future__ import annotations

import torch

import fedveil.vertical.apart.sessions
import fedveil.vertical_cli
import vertical_apart

_parameter = torch.zeros(1, requires_grad=True)
torch.optim.SGD([_parameter])
READY = (fedveil.vertical_cli, fedveil.vertical.apart.sessions, vertical_apart)
