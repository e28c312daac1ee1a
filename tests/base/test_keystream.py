"""The keystream is that of AES-256-CTR, in whatever pieces it is read."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedveil.base.keystream import Keystream


def test_pieces_of_the_keystream_are_those_of_aes_256_ctr() -> None:
    key = bytes(range(32))
    stream, made = Keystream(key), b""
    for size in (16, 1 << 16, 7, 48, 1 << 15, 4_000, 1 << 18):
        piece = memoryview(bytearray(size + 15))
        stream.write(piece, size)
        made += bytes(piece[:size])
    plain = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    assert made == plain.update(bytes(len(made)))


def test_it_starts_at_any_block() -> None:
    key, first = bytes(range(32)), 257  # its number has two bytes
    plain = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    wanted = plain.update(bytes(16 * first + 100))[16 * first :]
    piece = memoryview(bytearray(115))
    Keystream(key, first).write(piece, 100)
    assert bytes(piece[:100]) == wanted
