"""`--json`: one JSON value on standard output, and everything else on standard error."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from fedveil.base import plain_text
from fedveil.record.recorder import strict

AsJson = Annotated[bool, typer.Option("--json", help="At the end, print the result as JSON.")]
#: `--json` of a command that runs until Ctrl-C, and has no result.
ServesAsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print messages to standard error. There is no result to print as JSON."
    ),
]


@contextmanager
def only_json(wanted: bool) -> Iterator[None]:
    """Context manager: if `wanted`, all output except the JSON value goes to standard error."""
    before = plain_text.to_stderr
    plain_text.to_stderr = wanted or before
    try:
        yield
    finally:
        plain_text.to_stderr = before


def answering(command: Callable[..., Any], option: Any = AsJson) -> Callable[..., None]:
    """Decorate a command with an option `--json`, which prints the function's result as JSON.

    `option` is the annotation that declares the option: `AsJson` or `ServesAsJson`.
    """

    @functools.wraps(command)
    def with_json(*arguments: Any, json: bool = False, **named: Any) -> None:
        with only_json(json):
            found = command(*arguments, **named)
        if json:
            answer(found)

    taken = inspect.signature(command, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    added = inspect.Parameter("json", kind, default=False, annotation=option)
    parameters = [*taken.parameters.values(), added]
    with_json.__annotations__ = {p.name: p.annotation for p in parameters}
    with_json.__signature__ = taken.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=None
    )
    return with_json


def answer(found: Any) -> None:
    """Print a value as JSON. NaN and infinities are printed as strings."""
    text = json.dumps(strict(_plain(found)), indent=2, allow_nan=False)
    plain_text.answer_stream().write(text + "\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
