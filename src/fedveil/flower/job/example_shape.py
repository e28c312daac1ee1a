"""The shape of the job's examples, as sent by the server to clients that train."""

from __future__ import annotations

import json

import numpy as np

from fedveil.base.example_arrays import Shape
from fedveil.base.message import Message, Value, take, take_array
from fedveil.errors import MessageInvalid

_FIELD = "example_shape"
#: Sent to clients that read each record by itself.
TARGET_FIELDS = _TARGETS, _WHOLE = "target_shape", "whole_targets"


def telling(shape: Shape) -> Value:
    """Encode the shape as a message field: numbers, or text if examples have several inputs."""
    return json.dumps(shape) if isinstance(shape, dict) else np.array(shape, np.int64)


def telling_targets(shape: tuple[int, ...], *, whole: bool) -> Message:
    """Return the message fields that describe the targets."""
    return {_TARGETS: np.array(shape, np.int64), _WHOLE: whole}


def told_targets(common: Message) -> tuple[tuple[int, ...], bool]:
    """Return the shape of a target, and True if targets are whole numbers."""
    if _TARGETS not in common:
        return (), False
    shape = tuple(take_array(common, _TARGETS, np.int64, (None,)).tolist())
    return shape, take(common, _WHOLE, bool)


def told_shape(common: Message) -> Shape:
    """Return the shape in a server's message. Raises `MessageInvalid`."""
    if not isinstance(common.get(_FIELD), str):
        return tuple(take_array(common, _FIELD, np.int64, (None,)).tolist())
    try:
        inputs = json.loads(take(common, _FIELD, str))
        return {str(name): tuple(map(int, shape)) for name, shape in inputs.items()}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise MessageInvalid("field example_shape is none") from None
