"""Base classes of the blocks of a job file, and validators of the texts in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from fedveil.base.own_code import FUNCTION
from fedveil.errors import JobError
from fedveil.settings.allowed import TextRule


def text(form: str, pattern: str, *words: str) -> AfterValidator:
    """Return a validator that accepts one of `words`, or a text that matches `pattern`.

    Error messages describe the pattern as `form`.
    """
    return AfterValidator(TextRule(words, form, pattern))


def function_text(form: str, *words: str) -> AfterValidator:
    """Return a validator that accepts one of `words`, or a function's name such as `file:name`.

    Error messages describe the name as `form`.
    """
    return text(form, FUNCTION, *words)


def or_function(*words: str) -> AfterValidator:
    return text("package.module:function", FUNCTION, *words)


_ONE_LINE = "text of at most 100 characters on one line, without slashes"
RunName = Annotated[str, text(_ONE_LINE, r"[^\x00-\x1f\x7f/\\]{1,100}")]
Device = Annotated[str, text("cuda:N", r"cuda:[0-9]+", "cpu", "cuda")]


class Under:
    """Marks a key of a block that has an effect only while another key has a certain value.

    The other key is `key` of the same block, and must have one of `values`.
    """

    def __init__(self, key: str, *values: str) -> None:
        self.key, self.values = key, values


class Settings(BaseModel):
    """The base of every block of a job. Unknown keys are errors, and blocks are immutable.

    Nothing is converted: text is not a number, true is not 1, NaN and infinity are refused.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, strict=True, allow_inf_nan=False
    )

    if TYPE_CHECKING:  # a `type[Settings]` is some subclass, with keys of its own

        def __init__(self, /, **keys: Any) -> None: ...

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise an error that explains how to change a setting, because settings are immutable."""
        if name in type(self).model_fields:
            raise JobError(
                [
                    f"{name} = {value!r} cannot be set in place: use job.with_(...), which "
                    "returns another job"
                ]
            )
        super().__setattr__(name, value)


class Block(Settings):
    """A section of a job file. Keys that it leaves out have default values. It may be empty."""

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Yield each key that is set but ignored, and the key that causes this (see `Under`)."""
        for name, field in type(self).model_fields.items():
            changed = getattr(self, name) != field.get_default(call_default_factory=True)
            for mark in (m for m in field.metadata if changed and isinstance(m, Under)):
                if getattr(self, mark.key) not in mark.values:
                    yield name, mark.key

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, data: Any) -> Any:
        return {} if data is None else data


class Choice(Block):
    """A block whose `name` selects one of the blocks in it. The other blocks are ignored.

    A plain text (`protection: signds`) means the choice of that name, with default settings.
    """

    #: Possible `name` -> its settings block, or None.
    BLOCKS: ClassVar[Mapping[str, str | None]]

    name: str

    @model_validator(mode="before")
    @classmethod
    def _opened(cls, data: Any) -> Any:
        if isinstance(data, str):
            return cls.shorthand({}, data)
        if isinstance(data, Mapping):
            blocks = set(cls.BLOCKS.values())
            return {k: {} if k in blocks and value is None else value for k, value in data.items()}
        return data

    @classmethod
    def shorthand(cls, held: Mapping[str, Any], word: str) -> dict[str, Any]:
        """Return a copy of `held`, the content of this block, whose `name` is `word`.

        If this changes the name, the copy leaves out the settings block of `word` (`block_of`). So
        its settings have default values. The settings blocks of all other names stay.
        """
        if held.get("name") == word:
            return dict(held)  # this choice is selected already, so its settings stay
        kept = {key: value for key, value in held.items() if key != cls.block_of(word)}
        return {**kept, "name": word}

    @classmethod
    def block_of(cls, word: str) -> str | None:
        return cls.BLOCKS.get(word)

    @property
    def settings(self) -> Settings | None:
        """The settings block that `name` selects, or None if this `name` has no settings."""
        block = self.block_of(self.name)
        return None if block is None else getattr(self, block)
