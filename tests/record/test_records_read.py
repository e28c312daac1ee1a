"""A record that is read back is the one that was written, whatever its figures are."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest

from fedveil.record import recorder
from fedveil.record.recorder import revived, strict


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, 1.5, 3, True, None, "text"])
@pytest.mark.parametrize(
    "where", [lambda f: f, lambda f: [1.0, f], lambda f: {"c": f}, lambda f: {"c": {"d": [f]}}]
)
def test_every_figure_survives_at_every_depth(figure: Any, where: Any) -> None:
    text = json.dumps(strict(where(figure)), allow_nan=False)
    assert repr(revived(json.loads(text))) == repr(where(figure))


def test_a_line_is_whole_though_the_system_takes_it_piece_by_piece() -> None:
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:5]))

    file = Slow()
    recorder._append(file, '{"round": 3, "loss": 0.25}\n')
    assert file.getvalue() == b'{"round": 3, "loss": 0.25}\n'
