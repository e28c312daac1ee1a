"""Results that a run computes from its data and stores as JSON for a later run."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import ValidationError

from fedveil.errors import DataInvalid
from fedveil.settings.settings import Settings


class Stored(Settings):
    """A stored result. `what` names its kind in messages, with its article."""

    what: ClassVar[str]

    @classmethod
    def read(cls, data: bytes, source: str) -> Self:
        """Decode what `written` encoded. Raises DataInvalid that names `source`."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            raise DataInvalid(f"{source} is damaged: it is not {cls.what}") from None

    def written(self) -> bytes:
        """Encode as JSON, from which every number can be read back exactly."""
        return self.model_dump_json(indent=1).encode() + b"\n"
