"""A keystream that a test writes itself, for the draws that chance never makes."""

from __future__ import annotations

from typing import Any

from fedveil.entropy import Seeded


class Scripted(Seeded):
    """Begins with given 64-bit words; asking for more is an error."""

    def __init__(self, *words: int) -> None:
        super().__init__(0)
        self._script = b"".join(word.to_bytes(8, "little") for word in words)

    @classmethod
    def real(cls, scaled: int, words: int) -> Scripted:
        """The first `words` words of the uniform real `scaled` / 2^(64 words)."""
        return cls(*((scaled >> (64 * i)) & (2**64 - 1) for i in reversed(range(words))))

    def fill(self, out: Any) -> None:
        """Overwrite a contiguous buffer with the next bytes of the script."""
        target = memoryview(out).cast("B")
        assert len(target) <= len(self._script), "the script has ended"
        target[:] = self._script[: len(target)]
        self._script = self._script[len(target) :]
