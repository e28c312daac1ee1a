"""The job's `protection` block: the choice of a protection, and the parameters of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, ValidationError, create_model

from fedveil.errors import JobError
from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS, find
from fedveil.settings.allowed import sentences
from fedveil.settings.settings import Choice, Settings, function_text

#: A parameter of a user's own protection. The protection's class checks it.
OwnValue: TypeAlias = bool | float | int | str | None


class Switch(Choice):
    """The chosen protection, and all protections' parameters. Only the chosen one's are used."""

    BLOCKS: ClassVar[Mapping[str, str | None]] = {
        name: position.block for name, position in POSITIONS.items()
    }

    name: Annotated[str, function_text("package.module:Name", *POSITIONS)] = Field(
        "not_encrypt",
        description="the protection: how clients' messages are protected (docs/which-switch.md). A "
        "name, or your own class",
    )

    @classmethod
    def block_of(cls, word: str) -> str | None:
        return cls.BLOCKS.get(word, Protection.block)

    @property
    def position(self) -> type[Protection]:
        """The Python class of the protection. Raises `InvalidValue` if it cannot be loaded."""
        return find(self.name)

    @property
    def settings(self) -> Settings:
        """The parameters of the chosen protection. Raises `JobError` if they are invalid."""
        kind, block = self.position.settings_type, self.position.block
        held = {} if block is None else getattr(self, block)
        if isinstance(held, Settings):
            return held
        try:
            return kind(**held)
        except ValidationError as error:
            found = sentences(error, kind).values()
            raise JobError([f"protection.{block}.{sentence}" for sentence in found]) from None

    def unread(self) -> Iterator[str]:
        """Yield a warning for each block of parameters that the job sets without any effect.

        If the job does not set `protection.name`, it uses the default protection, and the blocks of
        all other protections have no effect. Yields nothing if the job sets `protection.name`.
        """
        if "name" in self.model_fields_set:
            return
        for block in type(self).model_fields:
            if block in self.model_fields_set and block != self.position.block:
                yield (
                    f"protection.{block} has no effect, because protection.name is not set and "
                    f"its default is {self.name}"
                )

    @property
    def noised(self) -> bool:
        """True if clients or the server add noise under the chosen protection."""
        return self.position.noised(self.settings)


def _blocks() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for block in filter(None, (position.block for position in POSITIONS.values())):
        users = [position for position in POSITIONS.values() if position.block == block]
        kind = users[0].settings_type
        names = " and ".join(position.name for position in users)
        fields[block] = (kind, Field(default_factory=kind, description=f"parameters of {names}"))
    about = "parameters of your own protection, with the names in its class"
    fields["own"] = (dict[str, OwnValue], Field(default_factory=dict, description=about))
    return fields


if TYPE_CHECKING:
    ProtectionSettings = Switch
else:
    ProtectionSettings = create_model(
        "ProtectionSettings",
        __base__=Switch,
        __module__=__name__,
        __doc__=Switch.__doc__,
        **_blocks(),
    )
