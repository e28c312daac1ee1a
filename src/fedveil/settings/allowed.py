"""Describes a settings field's allowed values in words, and each wrong value in a sentence.

Error messages and the reference page both use these words, so they always agree.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedveil.errors import did_you_mean, nearest

_LONGEST_SHOWN = 60
#: Least similarity of a suggested word.
_NEAR = 0.65
#: A key directly followed by its value after the colon, which YAML reads as one text.
_UNSPACED = re.compile(r"[A-Za-z_][\w.]*:[^\s:/]")
#: A key followed by the colon that keyboards for Chinese type.
_FULL_WIDTH = re.compile(r"[A-Za-z_][\w.]*\s*：")
#: Other programs' names of keys.
_USUAL = {
    "learning_rate": ("lr",), "epsilon": ("target_epsilon", "dp_eps", "sign_eps", "eps"),
    "eps": ("target_epsilon", "dp_eps", "sign_eps"), "num_rounds": ("rounds",),
    "num_clients": ("number",), "batchsize": ("batch_size",), "clip": ("dp_norm_clip",),
    "rr": ("unary",), "oue": ("unary",),
}  # fmt: skip
#: Keys of another kind of job, and the key in their place: a vertical job has no rounds.
_OF_OTHER_JOBS = {"rounds": "epochs", "num_rounds": "epochs"}
#: Other words for a protection, a split, a unit, a device or a kind of question.
_USUAL_WORDS = {
    "none": "not_encrypt", "plain": "not_encrypt", "secagg": "pw_encrypt", "gpu": "cuda",
    "secure_aggregation": "pw_encrypt", "dp-sgd": "dp_encrypt", "dpsgd": "dp_encrypt",
    "non-iid": "dirichlet", "noniid": "dirichlet", "non_iid": "dirichlet", "record": "example",
    "sample": "example", "user": "client", "fedavg": "mean", "average": "mean",
    "ldp": "dp_encrypt", "cdp": "central_gaussian", "central": "central_gaussian",
    "median": "quantiles", "percentiles": "quantiles", "avg": "mean",
    "sum": "mean", "std": "variance", "top": "heavy_hitters",
}  # fmt: skip
#: The two notations for a union of types.
_EITHER = (Union, types.UnionType)

#: A key's path in a job: ("protection", "signds", "sign_k").
Path = tuple[str, ...]
NAME = "NAME"


@dataclass(frozen=True)
class TextRule:
    """A validator of text, used as `Annotated[str, AfterValidator(rule)]`.

    A text must be one of `words` or match `pattern`. Errors describe the pattern as `form`.
    """

    words: tuple[str, ...]
    form: str
    pattern: str

    def __call__(self, value: str) -> str:
        """Return `value`. Raises ValueError unless it is one of `words` or matches `pattern`."""
        if value not in self.words and re.fullmatch(self.pattern, value) is None:
            raise ValueError(f"is not {self.form}")
        return value


@dataclass(frozen=True)
class Allowed:
    """The allowed values of one field, in words, for error messages and the reference page.

    Each attribute that is set allows more values: `words` these words, `text` the texts that it
    describes, `number` numbers (only in `interval`, if that is set), `flag` true and false, and
    `null` null. If `several` is True, the field is a list of such values. If `each` is set, the
    field is a mapping to the values that `each` allows. Its keys are `words` or, without words, any
    names.
    """

    words: tuple[str, ...] = ()
    text: str = ""
    number: Literal["", "number", "whole number"] = ""
    interval: str = ""
    flag: bool = False
    null: bool = False
    each: Allowed | None = None
    several: bool = False

    def __str__(self) -> str:
        if self.each is not None:
            return f"a mapping of {', '.join(self.words) or 'names'} to {self.each}"
        if self.several:
            what = f"{self.number}s in {self.interval}" if self.interval else f"{self.number}s"
            what = " and ".join(self.words) or self.text or what
            return f"a list of {what}" + (" or null" if self.null else "")
        number = f"a {self.number}" if self.number else ""
        if self.interval:
            number += f" in {self.interval}"
        words = self.words[0] if len(self.words) == 1 else f"one of {', '.join(self.words)}"
        parts = [
            words if self.words else "",
            self.text,
            number,
            "true or false" if self.flag else "",
            "null" if self.null else "",
        ]
        return " or ".join(part for part in parts if part)

    def complaint(self, value: object) -> str:
        """Return the part of a sentence that says why `value` is wrong, like "is not a number"."""
        kinds = int if self.number == "whole number" else int | float
        if self.interval and isinstance(value, kinds) and not isinstance(value, bool):
            besides = f" and not {' or '.join(self.words)}" if self.words else ""
            return f"is outside {self.interval}{besides}"
        complaint = f"is not {self}"
        if isinstance(value, str):
            near = difflib.get_close_matches(value.lower(), self.words, 1, _NEAR)
            near = near or [word for word in self.words if word.startswith(f"{value.lower()}_")]
            if _USUAL_WORDS.get(value.lower()) in self.words:
                near = [_USUAL_WORDS[value.lower()]]
            return complaint + (did_you_mean(near) or self._own(value))
        if self.text and value is not None and not isinstance(value, list | Mapping):
            return f"{complaint}; write text that looks like something else in quotes"
        return complaint

    def _own(self, value: str) -> str:
        """Return a hint to write `file:name` if `value` looks like a function or file, else ""."""
        if not self.text.startswith("package.module:"):
            return ""
        if value.endswith(".py"):
            return f"; to use NAME from {value}, write {value.removesuffix('.py')}:NAME"
        if value.endswith(".csv"):
            return f"; `fedveil init` writes such a function: let it read {value}"
        own = f"; to use {value} from own.py, write own:{value}"
        return own if value.isidentifier() else ""


def allowed(field: FieldInfo) -> Allowed:
    return _allowed(field.annotation, field.metadata)


def block_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the settings class of `field` if it is a block of keys (or null), else None."""
    either = get_origin(field.annotation) in _EITHER
    members = get_args(field.annotation) if either else (field.annotation,)
    kind, *others = [member for member in members if member is not type(None)]
    return kind if not others and _is_block(kind) else None


def blocks_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the settings class of the blocks in `field`, if it maps a user's names to blocks.

    Returns None for any other field.
    """
    if get_origin(field.annotation) is not dict:
        return None
    _, kind = get_args(field.annotation)
    return kind if _is_block(kind) else None


@cache
def keys(model: type[BaseModel], prefix: Path = ()) -> tuple[Path, ...]:
    """Return the path of every value in `model`, in order. Each path begins with `prefix`."""
    paths = list[Path]()
    for name, field in model.model_fields.items():
        block, blocks = block_of(field), blocks_of(field)
        if block is not None:
            paths += keys(block, (*prefix, name))
        elif blocks is not None:
            paths += keys(blocks, (*prefix, name, NAME))
        else:
            paths.append((*prefix, name))
    return tuple(paths)


def sentences(error: ValidationError, model: type[BaseModel]) -> dict[Path, str]:
    """Convert pydantic's errors about `model` to a sentence per wrong key, by the key's path."""
    found: dict[Path, str] = {}
    for item in error.errors(include_url=False):
        path, sentence = _sentence(model, item["loc"], item["input"])
        if item["type"] == "invalid_key":
            sentence = f"{dotted(path)} is a key that is not text"
        found[path] = sentence  # pydantic reports a union once per member, with equal paths
    return found


def unknown_key(path: Path, value: object, block: type[BaseModel], root: type[BaseModel]) -> str:
    """Return the error sentence about the unknown key at `path`, which has the value `value`.

    `block` is the settings class that has no such key, and `root` the class of the whole job.
    """
    place, name = path[:-1], path[-1]
    if value is None and (hint := unspaced(name)):
        return f"{dotted(path)} is not a key with a value{hint}"
    near: Iterable[str] = difflib.get_close_matches(name, block.model_fields, 1)
    usual = _USUAL.get(name.lower(), ())
    if here := [key for key in usual if key in block.model_fields]:
        near = here[:1]
    elif "." in name and not place and followed(root, tuple(name.split(".")))[2] is not None:
        first, *_ = name.split(".")
        return (
            f"{dotted(path)} = {shown(value)} is a key of the block {first}: write it inside "
            "that block"
        )
    close = [".".join((*place, match)) for match in near]
    for known in ((name, *usual[:1]), (_OF_OTHER_JOBS.get(name),)):
        close = close or [".".join(key) for key in keys(root) if key[-1] in known]
    where = f"the keys of {dotted(place)}" if place else "the keys"
    given = "" if isinstance(value, Mapping) else f" = {shown(value)}"
    return (
        f"{dotted(path)}{given} is not a known key{did_you_mean(close)}; "
        f"{where} are {', '.join(block.model_fields)}"
    )


def dotted(path: Path) -> str:
    return ".".join(map(plain, path))


def plain(text: str) -> str:
    """Return a user's text, escaped if it contains line breaks or control characters."""
    return text if text.isprintable() else repr(text)


def unspaced(text: str) -> str:
    """Return a hint if `text` is a key, a colon and no space, or a full-width colon, else ""."""
    if _FULL_WIDTH.match(text):
        return "; write `: ` in place of the full-width colon"
    return "; a space is missing after the colon" if _UNSPACED.match(text) else ""


def line_hint(text: str) -> str:
    """Return a hint about the first line of a YAML text with a common mistake, else ""."""
    for number, line in enumerate(text.splitlines(), 1):
        if hint := unspaced(line.strip()):
            return f"{hint} in line {number}: {shown(line.strip())}"
        if line.startswith("\t"):
            return f"; line {number} is indented by a tab: use spaces"
    return ""


def shown(value: object) -> str:
    """Format a value as it looks in a job file. A long value is truncated."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def followed(root: type[BaseModel], path: Path) -> tuple[int, type[BaseModel], FieldInfo | None]:
    """Follow a key's `path` from the settings class `root` into its blocks, as far as they exist.

    Returns the number of keys followed, the block reached, and its field for the next key. The
    field is None if there is no next key, or if the block does not have it.
    """
    block, named = root, False
    for i, key in enumerate(path):
        if named:  # this key is a name that the user gave to the next block
            named = False
            continue
        field = block.model_fields.get(key)
        inner = None if field is None else block_of(field) or blocks_of(field)
        if field is None or inner is None:
            return i, block, field
        block, named = inner, block_of(field) is None
    return len(path), block, None


def _sentence(root: type[BaseModel], loc: Sequence[int | str], value: object) -> tuple[Path, str]:
    path = tuple(map(str, loc))
    end, block, field = followed(root, path)
    here, rest = path[: end + 1], path[end + 1 :]
    if field is not None:
        return _value_sentence(here, allowed(field), rest, value)
    if end == len(path):
        named = followed(root, (*path, NAME))[0] > end  # the user's name for a block is missing
        what = "a mapping of names to blocks of keys" if named else "a block of keys"
        hint = _block_hint(path, value, None if named else block)
        return path, f"{dotted(path)} = {shown(value)} is not {what}{hint}"
    if path[end] == "[key]":
        return path[:end], f"{dotted(path[:end])} is a name that is not text"
    return here, unknown_key(here, value, block, root)


def _block_hint(path: Path, value: object, block: type[BaseModel] | None) -> str:
    """Return a hint on what to write in place of `value`, which stands where a block is needed.

    `block` is the settings class, or None if names of the user's choice are needed.
    """
    fields = {} if block is None else block.model_fields
    text = value if isinstance(value, str) else ""
    first = text.partition(":")[0].partition(".")[0]
    if (hint := unspaced(text)) and (first in fields or "name" not in fields):
        return hint
    whole = isinstance(value, int) and not isinstance(value, bool)
    for key, fits in (("name", bool(text)), ("number", whole)):
        if fits and key in fields:
            return f"; its {key} is {dotted((*path, key))}: write `{path[-1]}: {{{key}: {value}}}`"
    return f"; the keys of {dotted(path)} are {', '.join(fields)}" if fields else ""


def _value_sentence(path: Path, field: Allowed, rest: Path, value: object) -> tuple[Path, str]:
    """Return the path of a wrong value, and a sentence about it.

    `path` leads to the `field`. If the field is a mapping, `rest` leads from there to the wrong
    value or key in the mapping, as pydantic reports it.
    """
    if field.each is not None and rest:
        path = (*path, rest[0])
        if rest[-1] == "[key]" and not field.words:
            return path, f"{dotted(path)} is a name that is not text"
        if rest[-1] == "[key]":
            hint = nearest(rest[0], field.words)
            known = ", ".join(field.words)
            return path, f"{dotted(path)} is not a known key{hint}; the keys are {known}"
        field = field.each
    return path, f"{dotted(path)} = {shown(value)} {field.complaint(value)}"


def _allowed(annotation: Any, metadata: Sequence[Any]) -> Allowed:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, *items = arguments
        more = [item.metadata if isinstance(item, FieldInfo) else [item] for item in items]
        return _allowed(inner, [*metadata, *chain(*more)])
    if origin in _EITHER:
        return _either([_allowed(member, metadata) for member in arguments])
    if origin is Literal:
        return Allowed(words=arguments)
    if origin is list:
        return replace(_allowed(arguments[0], ()), several=True)
    if origin is dict:
        key, value = arguments
        return Allowed(words=_allowed(key, ()).words, each=_allowed(value, ()))
    if annotation is str:
        rules = [item.func for item in metadata if isinstance(item, AfterValidator)]
        rule = next((rule for rule in rules if isinstance(rule, TextRule)), None)
        return Allowed(words=rule.words, text=rule.form) if rule else Allowed(text="text")
    if annotation is int or annotation is float:
        kind: Literal["whole number", "number"] = "whole number" if annotation is int else "number"
        return Allowed(number=kind, interval=_interval(metadata))
    if annotation is bool:
        return Allowed(flag=True)
    if annotation is type(None):
        return Allowed(null=True)
    raise TypeError(f"no words for {annotation!r}")


def _is_block(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _either(members: Sequence[Allowed]) -> Allowed:
    return Allowed(
        words=tuple(word for member in members for word in member.words),
        text="".join(member.text for member in members),
        number=next((member.number for member in members if member.number), ""),
        interval="".join(member.interval for member in members),
        flag=any(member.flag for member in members),
        null=any(member.null for member in members),
        each=next((member.each for member in members if member.each), None),
        several=any(member.several for member in members),
    )


def _interval(metadata: Iterable[Any]) -> str:
    low: Any = -math.inf
    high: Any = math.inf
    left, right = "(", ")"
    for bound in metadata:
        if isinstance(bound, Ge | Gt):
            low, left = (bound.ge, "[") if isinstance(bound, Ge) else (bound.gt, "(")
        elif isinstance(bound, Le | Lt):
            high, right = (bound.le, "]") if isinstance(bound, Le) else (bound.lt, ")")
    if math.isinf(low) and math.isinf(high):
        return ""
    return f"{left}{low:g}, {high:g}{right}"
