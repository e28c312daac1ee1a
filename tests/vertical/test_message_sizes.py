"""A batch whose tensor is too long for one message is refused before training, and no other is."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.base import message
from fedveil.errors import MessageTooLong
from fedveil.vertical.compression import Compression
from fedveil.vertical.crossing import check_sizes
from fedveil.vertical.split import EmbeddingPrivacy
from vertical_parts import Bottoms

ROWS = 21
BITS = EmbeddingPrivacy(1.0)
SILENT = EmbeddingPrivacy(1.0, gradient="none")


@pytest.mark.parametrize(
    ("changes", "bits", "longest"),
    [
        ({}, 12 * 32, "output of part left"),
        ({"dtype": "bfloat16"}, 12 * 16, "output of part left"),
        ({"compression": Compression(6)}, 12 * 6, "output of part left"),
        ({"compression": Compression(6, backward=False)}, 12 * 32, "gradient of part left"),
        ({"compression": Compression(6, forward=False)}, 12 * 32, "output of part left"),
        (
            {"compression": Compression(6, backward=False), "frozen": True}, 12 * 6,
            "output of part left",
        ),
        ({"privacy": BITS}, 12 * 32, "gradient of part left"),
        ({"privacy": BITS, "compression": Compression(7)}, 12 * 7, "gradient of part left"),
        ({"privacy": SILENT, "compression": Compression(5)}, 12, "output of part left"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("last", [False, True])
def test_the_longest_tensor_decides(
    changes: dict[str, Any], bits: int, longest: str, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other part outputs one value, so its tensors are shorter. Its output may be sent last."""
    one, other = ("right", "left") if last else ("left", "right")
    tiny = {"output": (1,), "frozen": True, "compression": Compression(1)}
    split = Bottoms().split_model().replace(one, output=(3, 4), **changes).replace(other, **tiny)
    monkeypatch.setattr(message, "MOST_CARRIED", -(-ROWS * bits // 8))
    check_sizes(split, ROWS)
    what = longest.replace("left", one)
    with pytest.raises(MessageTooLong, match=f"the {what} for {ROWS + 1} examples"):
        check_sizes(split, ROWS + 1)
