"""Job files: reads strict YAML, applies `key=value` settings, and writes YAML.

A job file contains data, never objects. Duplicate keys and files with too many values are refused.
`1e-3` is a number, as in YAML 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedveil.base.untrusted import MOST_JOB_BYTES, read_text
from fedveil.errors import JobError, did_you_mean
from fedveil.record.run_folder import JOB
from fedveil.settings import allowed
from fedveil.settings.allowed import Path, block_of, blocks_of
from fedveil.settings.settings import Choice

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"
_INT = "tag:yaml.org,2002:int"
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_BOOL = "tag:yaml.org,2002:bool"
#: Keys, in letters of any case, that PyYAML reads as true or false without this. YAML 1.2 reads
#: them as text.
_WORDS = ("on", "off", "yes", "no")
#: The most values in a text, keys included. Errors for 5,000 unknown keys then take 2 seconds.
MOST_VALUES = 10_000
#: The most values that all aliases of a text may stand for together.
_MOST_ALIASED = 10_000
_LONGEST_NUMBER = 64
#: Exceptions that PyYAML raises if an explicit tag does not fit its value.
_WRONG_TAG = (ValueError, KeyError, AttributeError, TypeError)
_SURROGATE = re.compile("[\ud800-\udfff]")
_EXPONENT = re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str, most_values: int) -> None:
        super().__init__(stream)
        self._most_values = most_values
        self.problems: list[str] = []
        #: The number of values so far, the number that aliases repeat, and the number in each node.
        self._values = 0
        self._aliased = 0
        self._values_in: dict[yaml.Node, int] = {}

    # PyYAML checks all possible keys before every token, which takes seconds for thousands of open
    # brackets. The first key is always the oldest: a closing bracket removes the keys inside it.

    def next_possible_simple_key(self) -> int | None:
        for key in self.possible_simple_keys.values():
            return int(key.token_number)
        return None

    def stale_possible_simple_keys(self) -> None:
        for key in self.possible_simple_keys.values():
            if key.line != self.line or self.index - key.index > 1024:
                super().stale_possible_simple_keys()
            return

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        before = self._values
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        node: yaml.Node | None = super().compose_node(parent, index)
        if node is not None and isinstance(event, yaml.AliasEvent):
            self._add_aliased(event, self._values_in.get(node))
        elif node is not None:
            self._count(node)
            self._values_in[node] = self._values - before
        return node

    def _count(self, node: yaml.Node) -> None:
        self._values += 1
        problem = None
        if self._values - self._aliased > self._most_values:
            problem = f"there are more than {self._most_values:,} keys and values up to here"
        elif isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
            problem = "a text holds half of a character (\\uD800 to \\uDFFF)"
        if problem is not None:
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)

    def _add_aliased(self, alias: Any, stands_for: int | None) -> None:
        """Add the number of values that an alias repeats, `stands_for`, to the total.

        Raises an error if the total exceeds the limit, or if `stands_for` is None (a cycle).
        """
        self._values += stands_for or 1
        self._aliased += stands_for or 1
        if stands_for is not None and self._aliased <= _MOST_ALIASED:
            return
        problem = f"the aliases up to here stand for more than {_MOST_ALIASED} values"
        if stands_for is None:
            problem = f"the alias {allowed.plain(alias.anchor)} is inside the block that it names"
        raise yaml.composer.ComposerError(None, None, problem, alias.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == _MERGE or not isinstance(key, yaml.ScalarNode):
                continue
            if key.tag == _BOOL and key.value.lower() in _WORDS:
                key.tag = _TEXT
            place = f"line {key.start_mark.line + 1}: the key {allowed.plain(key.value)}"
            if key.value in seen:
                self.problems.append(f"{place} is given twice")
            if key.tag != _TEXT:
                self.problems.append(f"{place} is not text")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        """Read an integer of limited length: Python cannot print one with thousands of digits."""
        if len(node.value) > _LONGEST_NUMBER:
            problem = f"a whole number has at most {_LONGEST_NUMBER} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return int(super().construct_yaml_int(node))


_Loader.add_constructor(_INT, _Loader.construct_yaml_int)


#: PyYAML's emitter in C, where it is installed, is several times as fast as the one in Python.
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind in (_Loader, _Dumper):
    # The dumper must quote exactly the texts that the loader would read as something else.
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in _kind.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def read(
    path: str | FilePath, most_bytes: int = MOST_JOB_BYTES, most_values: int = MOST_VALUES
) -> dict[str, Any]:
    """Return the mapping in a YAML file of limited size, or raise JobError."""
    try:
        text = read_text(path, most_bytes)
    except IsADirectoryError:
        held = FilePath(path) / JOB
        named = f": its job is {held}" if held.is_file() else ""
        raise JobError([f"{path} is a folder, not a job file{named}"]) from None
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}{_near(FilePath(path))}"
        if "=" in str(path):
            problem += f"; --set {allowed.plain(str(path))} sets a key of the job"
        raise JobError([problem]) from None
    except UnicodeDecodeError:
        raise JobError([f"{path} is not UTF-8 text"]) from None
    return mapping(text, str(path), most_values)


def mapping(text: str, source: str, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """Return the mapping in a YAML text ({} if empty), or raise JobError that names `source`."""
    data = _parse(text, source, most_values)
    if data is None:
        return {}
    if not isinstance(data, dict):
        hint = allowed.line_hint(text) or (
            "; write a key and its value like this: `rounds: 20`" if "=" in text else ""
        )
        raise JobError([f"{source} holds {allowed.shown(data)}, not keys with values{hint}"])
    return data


def refuse_parted(path: FilePath | None, overrides: Sequence[str] | None) -> None:
    """Raise JobError if a user wrote `--set KEY VALUE` without `=`, so that VALUE became `path`."""
    if path is not None and not path.exists():
        refuse_unquoted([*(overrides or ()), str(path)])
    keys = [text for text in overrides or () if "=" not in text]
    if path is not None and len(keys) == 1 and not path.exists():
        key, value = allowed.plain(keys[0]), allowed.plain(str(path))
        raise JobError([f"--set {key} {value} must be written --set {key}={value}"])


def refuse_unquoted(words: Sequence[str]) -> None:
    """Raise JobError if `words` have an unquoted setting that the shell split at its spaces."""
    for place, word in enumerate(words):
        if "=" not in word or not _open(word):
            continue
        end = next((n for n in range(place + 1, len(words) + 1) if not _open(*words[place:n])), 0)
        if end:
            whole = allowed.plain(" ".join(words[place:end]))
            raise JobError([f'the shell splits a value at spaces. Quote it: --set "{whole}"'])


def _open(*words: str) -> bool:
    """Return True if the joined words have more "{" than "}", or more "[" than "]"."""
    text = "".join(words)
    return text.count("{") > text.count("}") or text.count("[") > text.count("]")


#: Keys of MindSpore Federated's vfl_data_join_config.yaml that no server file has.
_DATA_JOIN = {
    "bucket_num", "store_type", "data_schema_path", "primary_key", "main_table_files", "join_type",
    "shard_num", "output_dir", "remote_server_name", "remote_server_address", "http_server_address",
}  # fmt: skip


def refuse_their_vertical(path: str | FilePath | None) -> None:
    """Raise JobError for a MindSpore Federated file that configures a party of a split model."""
    held = {} if path is None else read(path)
    if len(_DATA_JOIN & held.keys()) > 1:
        raise JobError(
            [f"{path} configures MindSpore Federated's data join, which cannot be read: here, "
             "a vertical job finds the common examples itself, by the block alignment; "
             "docs/vertical-machines.md describes it"]
        )  # fmt: skip
    model = held.get("model")
    if isinstance(model, dict) and {"train_net", "eval_net"} & model.keys():
        raise JobError(
            [f"{path} is a vertical job of MindSpore Federated, which cannot be read: here, "
             "networks are written in Python; docs/own-split-models.md shows the counterparts"]
        )  # fmt: skip


def refuse_other_kind(
    path: str | FilePath | None, mine: type[BaseModel], other: Collection[str], sentence: str
) -> None:
    """Raise JobError with `sentence` if a file's keys are all in `other`, and not all in `mine`."""
    held = {} if path is None else read(path)
    fields = mine.model_fields
    blocks = [key for key in held if isinstance(held[key], dict)]
    strange = [
        str(key) for key in held
        if key not in fields or (key in blocks and fields[key].annotation is str)
    ]  # fmt: skip
    if strange and all(key in other for key in strange):
        raise JobError([f"{path} {sentence}"])


def write(data: Mapping[str, Any]) -> str:
    """Format `data` as YAML, with keys in their order. `read` returns equal data."""
    text: str = yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000
    )
    return text


def apply(
    data: Mapping[str, Any], overrides: Sequence[str], model: type[BaseModel]
) -> tuple[dict[str, Any], list[str]]:
    """Copy a file's `data`, and apply `overrides` such as "training.lr=0.1".

    Returns the copy, and an error message for each override that is malformed or has an unknown
    key. `model` defines which keys exist. A whole block is set before single keys in it.
    """
    problems: list[str] = []
    settings: list[tuple[Path, Any]] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            problems.append(f"{override!r} is not of the form key=value")
            continue
        try:
            value = _parse(text, allowed.plain(f"{key.strip()}={text}"))
        except JobError as error:
            problems += error.problems
            continue
        settings.append((path, value))
    result, unknown = put(data, settings, model)
    return result, problems + unknown


def put(
    data: Mapping[str, Any], settings: Sequence[tuple[Path, Any]], model: type[BaseModel]
) -> tuple[dict[str, Any], list[str]]:
    """Copy a file's `data`, and set a value at each path in `settings`, such as ("training", "lr").

    `model` defines which keys exist. Returns the copy, and an error message for each unknown path.
    """
    result = dict(data)
    unknown = [_unknown(path, value, model) for path, value in settings]
    known = [setting for setting, problem in zip(settings, unknown, strict=True) if not problem]
    for path, value in sorted(known, key=lambda setting: len(setting[0])):
        result = _merged(result, path, value, model)
    return result, list(filter(None, unknown))


def without(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Copy `data` without the value at `path`.

    If a key on this path has a single value instead of a mapping, the copy leaves out this key.
    """
    name, *rest = path
    inner = data.get(name)
    result = {key: value for key, value in data.items() if str(key) != name}
    if rest and isinstance(inner, Mapping):
        result[name] = without(inner, tuple(rest))
    return result


def _near(path: FilePath) -> str:
    """Return a suggestion of a job file in the same folder, if `path` does not exist, else ""."""
    try:
        files = [] if path.exists() else [*path.parent.glob("*.yaml"), *path.parent.glob("*.yml")]
    except OSError:
        return ""
    named = {file.stem: str(file) for file in files}
    return did_you_mean([named[stem] for stem in get_close_matches(path.stem, named, 1)])


def _parse(text: str, source: str, most_values: int = MOST_VALUES) -> Any:
    try:
        data, problems = deepcopy(_loaded(text, most_values))
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark or error.context_mark, error.problem or error.context
        if error.context == "while scanning a quoted scalar":
            mark, problem = error.context_mark or mark, "this quote is not closed"
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        if problem == "expected '<document start>', but found '<scalar>'":
            problem = "this is not YAML: a line such as `rounds: 3` is needed here"
        if problem == "but found another document":
            problem = "a second document begins here: write all keys in one, without ---"
        raise JobError([f"{source}{place}: {problem}{allowed.line_hint(text)}"]) from None
    except (yaml.YAMLError, RecursionError, *_WRONG_TAG) as error:
        reason = str(error).partition("\n")[0]
        raise JobError([f"{source} is not readable YAML: {reason}"]) from None
    if problems:
        raise JobError([f"{source}, {problem}" for problem in problems])
    return data


@lru_cache(maxsize=32)
def _loaded(text: str, most_values: int) -> tuple[Any, list[str]]:
    """Return the values in a YAML text, and its problems. Cached: a run reads its job often."""
    loader = _Loader(text, most_values)
    return loader.get_single_data(), loader.problems


def _unknown(path: Path, value: object, model: type[BaseModel]) -> str:
    end, block, field = allowed.followed(model, path)
    here, rest = path[: end + 1], path[end + 1 :]
    if field is None and end < len(path):
        for further in reversed(rest):
            value = {further: value}
        return allowed.unknown_key(here, value, block, model)
    if field is not None and rest and (allowed.allowed(field).each is None or len(rest) > 1):
        holder = allowed.dotted(here)
        return f"{allowed.dotted(path)} is not a known key: {holder} holds a single value"
    return ""


def _merged(held: Any, path: Path, value: Any, block: type[BaseModel]) -> Any:
    """Copy `held`, the content of the settings block `block`, and set `value` at `path` in it.

    If `path` is empty, `value` is for the whole block. A mapping then replaces only the keys that
    it has, and a text selects a choice (`Choice.shorthand`).
    """
    if isinstance(held, str):
        held = _opened(block, {}, held)
    if held is None and (path or value is not None):
        held = {}
    if not isinstance(held, dict):
        return held if path else value
    if not path and not isinstance(value, dict):
        return _opened(block, held, value) if isinstance(value, str) else value
    result = dict(held)
    for (name, *rest), part in [(path, value)] if path else [([k], v) for k, v in value.items()]:
        result[name] = _placed(held.get(name), rest, part, block.model_fields.get(name))
    return result


def _placed(held: Any, path: Sequence[str], value: Any, field: FieldInfo | None) -> Any:
    block, blocks = (block_of(field), blocks_of(field)) if field else (None, None)
    if block is not None:
        return _merged(held, tuple(path), value, block)
    if not path:
        return value
    if not isinstance(held, Mapping | None):
        return held
    name, *rest = path  # a user's name
    held = held or {}
    if blocks is not None:
        inner = held.get(name)
        value = _merged(inner if isinstance(inner, dict) else None, tuple(rest), value, blocks)
    return {**held, name: value}


def _opened(block: type[BaseModel], held: Mapping[str, Any], word: str) -> Any:
    return block.shorthand(held, word) if issubclass(block, Choice) else word
