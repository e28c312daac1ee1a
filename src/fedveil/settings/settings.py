"""What the settings of every kind of job are made of: blocks of keys, and the words in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from fedveil.errors import JobError
from fedveil.own_code import FUNCTION
from fedveil.settings.allowed import TextRule


def text(form: str, pattern: str, *words: str) -> AfterValidator:
    """What makes a text one of the words, or of the form that `pattern` matches."""
    return AfterValidator(TextRule(words, form, pattern))


def function_text(form: str, *words: str) -> AfterValidator:
    """What makes a text one of the words, or the name of a thing in a module of the user's."""
    return text(form, FUNCTION, *words)


def or_function(*words: str) -> AfterValidator:
    """What makes a text one of the words, or the name of a function of the user's."""
    return text("package.module:function", FUNCTION, *words)


_ONE_LINE = "text of at most 100 characters on one line, without slashes"
RunName = Annotated[str, text(_ONE_LINE, r"[^\x00-\x1f\x7f/\\]{1,100}")]
Device = Annotated[str, text("cuda:N", r"cuda:[0-9]+", "cpu", "cuda")]


class Settings(BaseModel):
    """The base of every block of a job: unknown keys are errors, nothing changes afterwards.

    Nothing is converted either: text is not a number, true is not 1, NaN and infinity are refused.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, strict=True, allow_inf_nan=False
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Say how a setting is changed."""
        if name in type(self).model_fields:
            raise JobError(
                [f"{name} = {value!r} cannot be set in place: job.with_(...) gives another job"]
            )
        super().__setattr__(name, value)


class Block(Settings):
    """A block of a job; one that is written with nothing in it holds its defaults."""

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, data: Any) -> Any:
        return {} if data is None else data


class Choice(Block):
    """A block whose `name` picks one of the blocks in it; the others wait.

    The name alone (`protection: signds`) stands for a choice with its defaults.
    """

    #: What `name` may be -> the block with its settings; None where it has none.
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
        """What `word` stands for: that choice with its defaults, the other blocks as held."""
        kept = {key: value for key, value in held.items() if key != cls.block_of(word)}
        return {**kept, "name": word}

    @classmethod
    def block_of(cls, word: str) -> str | None:
        """The block with the settings of what `word` picks; None where it has none."""
        return cls.BLOCKS.get(word)

    @property
    def settings(self) -> Settings | None:
        """The block that is picked; None where the choice has no settings."""
        block = self.block_of(self.name)
        return None if block is None else getattr(self, block)
