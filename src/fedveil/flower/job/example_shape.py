"""The shape of the job's examples, as sent by the server to clients that train."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from fedveil.base.example_arrays import Shape
from fedveil.base.message import Message, Value, take, take_array
from fedveil.errors import MessageInvalid

if TYPE_CHECKING:
    from fedveil.engine.assembly import ModelShape

_FIELD = "example_shape"
#: Sent to clients that read each record by itself: the form of a record.
FORM_FIELDS = _TARGETS, _WHOLE_TARGETS, _WHOLE = "target_shape", "whole_targets", "whole_examples"


def telling(shape: Shape) -> Value:
    """Encode the shape as a message field: numbers, or text if examples have several inputs."""
    return json.dumps(shape) if isinstance(shape, dict) else np.array(shape, np.int64)


def telling_form(shape: ModelShape) -> Message:
    targets = np.array(shape.target_shape, np.int64)
    return {_TARGETS: targets, _WHOLE_TARGETS: shape.whole_targets, _WHOLE: shape.whole_examples}


def told_form(common: Message) -> tuple[tuple[int, ...], bool, bool]:
    """Return a target's shape, and True if targets, and if examples, are whole numbers."""
    if _TARGETS not in common:
        return (), False, False
    shape = tuple(take_array(common, _TARGETS, np.int64, (None,)).tolist())
    return shape, take(common, _WHOLE_TARGETS, bool), take(common, _WHOLE, bool)


def told_shape(common: Message) -> Shape:
    """Return the shape in a server's message. Raises `MessageInvalid`."""
    if not isinstance(common.get(_FIELD), str):
        return tuple(take_array(common, _FIELD, np.int64, (None,)).tolist())
    try:
        inputs = json.loads(take(common, _FIELD, str))
        return {str(name): tuple(map(int, shape)) for name, shape in inputs.items()}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise MessageInvalid("field example_shape is none") from None
