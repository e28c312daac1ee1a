"""Checks of arguments: each end of a range, and what is no number."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from fedveil.base.validate import (
    finite_vector,
    functions,
    integer,
    number,
    path,
    positive,
    real_vector,
    within,
)
from fedveil.errors import InvalidValue


def test_each_end_of_a_range_is_in_it_or_not() -> None:
    for low in (False, True):
        for high in (False, True):
            refused = [0.5] * low + [2.5] * high
            shown = f"{'(' if low else '['}0.5, 2.5{')' if high else ']'}"
            for value in {0.5, 1.5, 2.5}.difference(refused):
                assert within("x", value, 0.5, 2.5, open_low=low, open_high=high) == value
            for value in (0.25, *refused, 2.75):
                with pytest.raises(
                    InvalidValue, match=re.escape(f"x = {value} is outside {shown}")
                ):
                    within("x", value, 0.5, 2.5, open_low=low, open_high=high)
    assert (integer("n", np.int8(3), 3, 3), integer("n", 1 << 70, 0)) == (3, 1 << 70)
    assert integer("n", 0, -3, 0) == 0
    for beyond in (1, -4):
        with pytest.raises(InvalidValue, match=rf"n = {beyond} is outside \[-3, 0\]"):
            integer("n", beyond, -3, 0)
    for kind in (np.uint8, np.int16):
        vector = real_vector("x", np.array([3, 200], kind))
        assert (vector.dtype, vector.tolist()) == (np.float64, [3.0, 200.0])


@pytest.mark.parametrize("wrong", [True, "1", None, math.nan, math.inf, 1j])
def test_what_is_no_number_is_refused(wrong: object) -> None:
    for check in (number, positive):
        with pytest.raises(InvalidValue, match="x = "):
            check("x", wrong)  # type: ignore[arg-type]
    for whole in (True, np.True_, 2.0, "2"):
        with pytest.raises(InvalidValue, match="is not a whole number"):
            integer("x", whole, 0)  # type: ignore[arg-type]
    for vector in ([[1.0]], [1.0, math.nan], [-math.inf, 1.0], ["a"], [True]):
        with pytest.raises(InvalidValue, match="x "):
            finite_vector("x", vector)


def test_a_path_is_text_or_a_path_and_not_a_number() -> None:
    assert path("out", "runs/a") == path("out", Path("runs/a")) == Path("runs/a")
    for wrong in (5, None, True, b"runs", ["runs"]):
        with pytest.raises(InvalidValue, match=r"^out = .* is not a path: use text or"):
            path("out", wrong)


def test_what_is_called_later_is_refused_before() -> None:
    functions(progress=None, warn=print, say=lambda text: None)
    for wrong in (True, 0, "print", [print]):
        with pytest.raises(InvalidValue, match=r"^warn = .* is not a function, such as warn=print"):
            functions(progress=print, warn=wrong)
