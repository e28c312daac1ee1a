"""A scripted keystream, for draws that hardly ever occur by chance."""

from __future__ import annotations

from typing import Any

from fedveil.entropy import Entropy


class Scripted(Entropy):
    """Returns scripted words, of 64 bits each or as they are. Reading past the end is an error."""

    description = "a script"

    def __init__(self, *words: int | bytes) -> None:
        super().__init__()
        self._script = b"".join(w if isinstance(w, bytes) else word(w, 8) for w in words)

    @classmethod
    def real(cls, scaled: int, words: int) -> Scripted:
        """Script the first `words` words of the uniform real `scaled` / 2^(64 words)."""
        return cls(*((scaled >> (64 * i)) & (2**64 - 1) for i in reversed(range(words))))

    def _fresh_key(self) -> bytes:
        return bytes(32)

    def stream(self, *path: int | str) -> Scripted:
        raise AssertionError("a script has no streams")

    def fill(self, out: Any) -> None:
        """Overwrite a contiguous buffer with the next bytes of the script."""
        target = memoryview(out).cast("B")
        assert len(target) <= len(self._script), "the script has ended"
        target[:] = self._script[: len(target)]
        self._script = self._script[len(target) :]

    @property
    def left(self) -> int:
        """Return the number of unread bytes."""
        return len(self._script)


def word(value: int, size: int = 4) -> bytes:
    """Return `value` as it comes out of a keystream."""
    return value.to_bytes(size, "little")
