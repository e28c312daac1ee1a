"""Encodes and decodes the shape of the job's examples in the server's messages to clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedveil.base.example_arrays import Shape
from fedveil.base.message import Message, Value, take, take_array
from fedveil.errors import MessageInvalid

if TYPE_CHECKING:
    from fedveil.engine.assembly import ModelShape

_FIELD = "example_shape"
#: Limits that no real example reaches: its number of dimensions, and the number of characters of
#: its encoded shape.
_MOST_DIMENSIONS, _LONGEST = 32, 1 << 16
#: The fields with the form of a record, for clients that read each record separately.
FORM_FIELDS = _TARGETS, _WHOLE_TARGETS, _WHOLE = "target_shape", "whole_targets", "whole_examples"


def shape_field(shape: Shape) -> Value:
    """Encode a shape as a message field: an array, or text if examples have several inputs."""
    return json.dumps(shape) if isinstance(shape, dict) else np.array(shape, np.int64)


def form_fields(shape: ModelShape) -> Message:
    targets = np.array(shape.target_shape, np.int64)
    return {_TARGETS: targets, _WHOLE_TARGETS: shape.whole_targets, _WHOLE: shape.whole_examples}


def told_form(common: Message) -> tuple[tuple[int, ...], bool, bool]:
    """Return the form of examples that the server's message `common` states.

    The result is the shape of a target, True if targets are integers, and True if examples are
    integers. It is ((), False, False) if the message does not state the form.
    """
    if _TARGETS not in common:
        return (), False, False
    shape = _checked(take_array(common, _TARGETS, np.int64, (None,)), _TARGETS)
    return shape, take(common, _WHOLE_TARGETS, bool), take(common, _WHOLE, bool)


def told_shape(common: Message) -> Shape:
    """Decode an example's shape from the server's message. Raises `MessageInvalid` without one."""
    said = common.get(_FIELD)
    if not isinstance(said, str):
        return _checked(take_array(common, _FIELD, np.int64, (None,)))
    if len(said) > _LONGEST:
        raise MessageInvalid(f"field {_FIELD} has {len(said):,} characters")
    try:
        inputs = json.loads(said)
        return {str(name): _checked(list(map(int, sizes))) for name, sizes in inputs.items()}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise MessageInvalid("field example_shape is none") from None


def told_classes(common: Message) -> int:
    """Return the number of the model's outputs that the server's message states."""
    classes: int = take(common, "classes", int)
    if classes < 0:
        raise MessageInvalid(f"field classes is {classes}")
    return classes


def _checked(shape: Sequence[int] | np.ndarray, field: str = _FIELD) -> tuple[int, ...]:
    if len(shape) > _MOST_DIMENSIONS:
        raise MessageInvalid(f"field {field} has {len(shape):,} dimensions")
    sizes = tuple(map(int, shape))
    if min(sizes, default=0) < -1:  # -1 stands for examples of different lengths
        raise MessageInvalid(f"field {field} is none: it has a size of {min(sizes)}")
    return sizes
