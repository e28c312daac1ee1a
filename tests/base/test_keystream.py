"""The keystream is that of AES-256-CTR, whatever code makes it."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedveil.base import keystream
from fedveil.base.keystream import Keystream


@pytest.mark.parametrize("first", [1 << 16, 16, 3 << 15])
def test_it_is_aes_256_ctr_before_within_and_after_the_faster_code(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keystream, "_LAST_BYTES", 5 << 15)
    key = bytes(range(32))
    stream, made = Keystream(key), b""
    monkeypatch.setattr(stream, "_until", max(first, 32))
    for size in (16, 1 << 16, 48, 1 << 15, 1 << 16, 4_000, 7):
        piece = memoryview(bytearray(size + 15))
        stream.write(piece, size)
        made += bytes(piece[:size])
    plain = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    assert made == plain.update(bytes(len(made)))
