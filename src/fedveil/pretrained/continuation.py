"""Continues a text with a language model, always by the most likely token."""

from __future__ import annotations

import torch
from torch import nn

from fedveil.pretrained.token_rows import TokenRows


@torch.no_grad()
def continued(model: nn.Module, rows: TokenRows, prompt: str, tokens: int) -> str:
    """Return the text that `model` appends to `prompt`: up to `tokens` tokens.

    Each token is the most likely one. The text ends early at an end token. `rows` has the model's
    tokeniser.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    ids = rows.encode(prompt) or [rows.ends[0]]
    begin = len(ids)
    for _ in range(tokens):
        seen = torch.tensor([ids[-rows.length :]], device=device)
        following = int(model(seen)[0, -1].argmax())
        if following in rows.ends:
            break
        ids.append(following)
    model.train(was_training)
    return rows.decode(ids[begin:])
