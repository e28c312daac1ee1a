"""Secret bytes that cannot be printed by mistake."""

from __future__ import annotations

import hmac
from typing import Any

from fedveil.errors import InvalidValue

SECRET_BYTES = 32


class Secret:
    """Thirty-two secret bytes: a mask seed or a private key.

    Printing a secret shows none of its bytes. A secret cannot be pickled, copied or hashed. Secrets
    are compared in constant time.
    """

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: bytes) -> None:
        if len(value) != SECRET_BYTES:
            raise InvalidValue(f"a secret has {len(value)} bytes, not {SECRET_BYTES}")
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value, other._value)

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce__(self) -> Any:
        raise TypeError("a secret cannot be copied or stored")
