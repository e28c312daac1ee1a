"""Makes a model forget what it remembers of the examples of one call, before the next call.

A model of the user's own may store something of an example in its attributes, such as a running
mean. The example would then influence the results for later examples.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def forgotten(
    model: nn.Module, given: dict[str, torch.Tensor] | None = None, buffers: Collection[str] = ()
) -> Iterator[None]:
    """A context in which the model may change its attributes. Afterwards, they are as before.

    This includes the entries of lists, dictionaries and sets that are attributes. `given` has the
    tensors that replace the model's own in the context. Those named in `buffers` are copies there,
    and afterwards `given` has its own tensors again, with unchanged values.
    """
    given = {} if given is None else given
    held = [vars(module) for module in model.modules()]
    before = [(attributes, dict(attributes)) for attributes in (*held, given)]
    inside = [
        (value, copy.copy(value))
        for attributes in held
        for value in attributes.values()
        if isinstance(value, list | dict | set)
    ]
    given.update({name: given[name].clone() for name in buffers})
    try:
        yield
    finally:
        for attributes, old in before:
            attributes.clear()
            attributes.update(old)
        for value, entries in inside:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(entries)
