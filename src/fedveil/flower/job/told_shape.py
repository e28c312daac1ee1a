"""The shape of the job's examples, as the server tells it to clients that train."""

from __future__ import annotations

import json

import numpy as np

from fedveil.errors import MessageInvalid
from fedveil.example_arrays import Shape
from fedveil.message import Message, Value, take, take_array

_FIELD = "example_shape"


def telling(shape: Shape) -> Value:
    """The field of the message: numbers, or text where examples have several inputs."""
    return json.dumps(shape) if isinstance(shape, dict) else np.array(shape, np.int64)


def told_shape(common: Message) -> Shape:
    """What it says."""
    if not isinstance(common.get(_FIELD), str):
        return tuple(take_array(common, _FIELD, np.int64, (None,)).tolist())
    try:
        inputs = json.loads(take(common, _FIELD, str))
        return {str(name): tuple(map(int, shape)) for name, shape in inputs.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise MessageInvalid("field example_shape is none") from None
