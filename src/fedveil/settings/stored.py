"""Results that a run computes from its data and saves as JSON for later runs."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import ValidationError

from fedveil.errors import DataInvalid
from fedveil.settings.settings import Settings


class Stored(Settings):
    """A saved result. Error messages call it `what`, such as "a summary of a table"."""

    what: ClassVar[str]

    @classmethod
    def read(cls, data: bytes, source: str) -> Self:
        """Decode a result from JSON. Raises DataInvalid with a sentence that names `source`."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            raise DataInvalid(f"{source} is damaged: it is not {cls.what}") from None

    def written(self) -> bytes:
        """Encode this result as JSON, without loss of precision."""
        return self.model_dump_json(indent=1).encode() + b"\n"
