"""A record that is read back is the one that was written, whatever its figures are."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedveil.record.recorder import revived, strict


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, 1.5, 3, True, None, "text"])
@pytest.mark.parametrize(
    "where", [lambda f: f, lambda f: [1.0, f], lambda f: {"c": f}, lambda f: {"c": {"d": [f]}}]
)
def test_every_figure_survives_at_every_depth(figure: Any, where: Any) -> None:
    text = json.dumps(strict(where(figure)), allow_nan=False)
    assert repr(revived(json.loads(text))) == repr(where(figure))
