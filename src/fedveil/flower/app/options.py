"""The settings of a protected Flower app, from keyword arguments and Flower's configurations.

The keys are the fields of `Options`, and the protection's parameters under their names in a job
(`sign_eps`, `dp_norm_clip`, ...). In a configuration, each key begins with "fedveil.":

    [tool.flwr.app.config.fedveil]
    protection = "signds"
    sign_eps = 10.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import Field, ValidationError, create_model

from fedveil.base.own_code import is_function
from fedveil.errors import JobError
from fedveil.protections.base import Protection, Weighting
from fedveil.protections.catalog import POSITIONS, find
from fedveil.settings.allowed import sentences, shown
from fedveil.settings.settings import Settings, function_text

#: The built-in protections available to apps.
OFFERED = tuple(name for name, position in POSITIONS.items() if position.for_apps)
PREFIX = "fedveil."


PositionName = Annotated[str, function_text("package.module:Name", *OFFERED)]


class Options(Settings):
    """The settings that every protection has. Commas separate several names in one setting."""

    protection: PositionName | None = Field(None, description="the protection")
    weighting: Weighting | None = Field(
        None,
        description="how clients count; left out: by_size under pw_encrypt without central_eps, "
        "which hides the sizes, and equal elsewhere, where nothing else is allowed",
    )
    keep: str = Field(
        "", description="names of arrays, with * for any text, that stay at the server's value"
    )
    reveal: str = Field("", description="names of metrics that leave a client in clear")
    weight_key: str | None = Field(
        None,
        description="on a client: the metric whose sum the server may learn as that of weights; "
        "left out: num-examples, or one that it reveals",
    )
    clients: int | None = Field(
        None,
        ge=1,
        description="on a client: of how many clients a round reconstruct_secrets_threshold is "
        "demanded; left out: of any number that it is more than half of",
    )
    answer_after_s: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="seconds after which a report leaves a client, whatever its training took; "
        "what is not ready in 7/8 of them counts as an update of zero; a client that sets it "
        "itself takes no less",
    )
    max_epsilon: float | None = Field(
        None,
        gt=0,
        description="on the server: no round is begun that would pass it; on a client: it sends "
        "no report that would",
    )
    delta: float = Field(
        1e-5, ge=0, lt=1, description="the delta at which max_epsilon and the run are stated"
    )

    @property
    def parameters(self) -> Settings:
        kind: type[Settings] = self.position.settings_type
        return kind(**{name: getattr(self, name) for name in kind.model_fields})

    @property
    def position(self) -> type[Protection]:
        """The protection's class. Raises an error if no protection is set."""
        assert self.protection is not None
        return find(self.protection)

    @property
    def noised(self) -> bool:
        """True if the protection adds noise to the aggregate."""
        return self.position.noised(self.parameters)

    @property
    def weighs(self) -> Weighting:
        return self.weighting or ("equal" if self.noised else "by_size")

    @property
    def kept(self) -> tuple[str, ...]:
        return names(self.keep)

    @property
    def revealed(self) -> frozenset[str]:
        return frozenset(names(self.reveal))


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the "fedveil." keys of a Flower configuration, without this prefix."""
    return {key.removeprefix(PREFIX): v for key, v in config.items() if key.startswith(PREFIX)}


def joined(config: Mapping[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the "fedveil." settings of the run configuration `config` with those in `keywords`.

    Raises `JobError` if a key has different values in the two mappings.
    """
    ours = of_config(config)
    problems = [
        f"{key} = {shown(keywords[key])} is written in the code and {PREFIX}{key} = "
        f"{shown(ours[key])} in the run configuration: only one of them is allowed"
        for key in sorted(ours.keys() & keywords.keys())
        if _text(keywords[key]) != ours[key]
    ]
    if problems:
        raise JobError(problems)
    return {**ours, **keywords}


def parse(keys: Mapping[str, Any], prefix: str = "") -> Options:
    """Validate the settings in `keys`, and return them.

    An error message puts `prefix` before each invalid key. Raises `JobError` for invalid settings.
    """
    position = keys.get("protection")
    parameters = None
    if isinstance(position, str) and (position in OFFERED or is_function(position)):
        parameters = _for_apps(position, prefix).settings_type
    model = Options if parameters is None else _options_of(parameters)
    if parameters is None and position is None and (strangers := set(keys) - set(_OWN)):
        raise JobError(
            [
                f"{prefix}{key} = {shown(keys[key])} needs {prefix}protection beside it: one of "
                f"{', '.join(OFFERED)}"
                for key in sorted(strangers)
            ]
        )
    try:
        return model(**{key: _text(value) for key, value in keys.items()})
    except ValidationError as error:
        found = sentences(error, model)
        if position is not None and parameters is None:  # the remaining keys need it
            found = {path: text for path, text in found.items() if path[0] in _OWN}
        raise JobError([f"{prefix}{text}" for text in found.values()]) from None


def _for_apps(name: str, prefix: str) -> type[Protection]:
    """Return the class of the protection `name`. Raises `JobError` if it is not for apps."""
    found = find(name)
    if not found.for_apps:
        raise JobError(
            [
                f"{prefix}protection = {shown(name)} is not available in an app: write one of "
                f"{', '.join(OFFERED)}, or a class of your own"
            ]
        )
    return found


_OWN = tuple(Options.model_fields)


@cache
def _options_of(parameters: type[Settings]) -> type[Options]:
    bases: tuple[Any, ...] = (Options, parameters)
    return create_model("Options", __base__=bases)


def _text(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return ", ".join(map(str, value))
    return value
