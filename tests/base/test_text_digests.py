from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fedveil.base import text_digests


@pytest.mark.parametrize(("key", "prefix"), [(b"key" * 9, b"text "), (b"key", b""), (b"", b"")])
def test_native_digests_are_those_of_hashlib(
    key: bytes, prefix: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ["k" * length + str(length) for length in range(1, 121)]
    several = [[*short, "a\0b", ""], ["é", "k"], ["k" * 129, "k"], ["k" * 126, "k"]]
    several += [["\x80", "k"], ["k", "\x7f\x7f"]]  # the last letters of one byte and the next
    for texts in map(np.array, several):
        expected = b"".join(
            hashlib.blake2b(prefix + text.encode(), key=key, digest_size=16).digest()
            for text in texts.tolist()
        )
        for few in (len(texts), len(texts) + 1):
            monkeypatch.setattr(text_digests, "_FEW", few)
            made = text_digests.text_digests(texts, 16, key, prefix)
            assert (made.shape, made.tobytes()) == ((len(texts), 16), expected)
