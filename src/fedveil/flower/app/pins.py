"""Pins: the settings on which a client insists, and which the server cannot override.

A client's demands come from three sources: the keyword arguments of its `ProtectMod`, the app's run
configuration, and the configuration of its SuperNode (`--node-config`). A pin has the demands of
one source. The server's offer must meet every pin. The run configuration comes from the server. So
it can only add demands, and never removes another source's. It cannot make the client import code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedveil.base.own_code import is_function
from fedveil.errors import InvalidValue, MessageInvalid
from fedveil.flower.app.offer import Offer, check
from fedveil.flower.app.options import OFFERED, PREFIX, Options, of_config, parse
from fedveil.flower.misspelt_keys import refuse_misspelt
from fedveil.flower.own_account import total_of
from fedveil.flower.sealed_state import STATE_FOLDER
from fedveil.privacy.guarantee_strength import Figure
from fedveil.protections.catalog import find
from fedveil.protections.directions import weakened

#: Metric by which Flower's strategies weigh their clients by default.
WEIGHT_KEY = "num-examples"

#: The source that the server can change.
_RUN = "the run configuration"


class Refused(MessageInvalid):
    """Raised if this client refuses what the server asks for. The server receives the text."""


@dataclass(frozen=True)
class Pin:
    """The settings that one source demands for a client. `source` names it in error messages."""

    source: str
    options: Options

    @property
    def is_own(self) -> bool:
        """True if the demands come from the client's own code or node, not from the server."""
        return self.source != _RUN


def pins_of(
    keywords: Mapping[str, Any], run_config: Mapping[str, Any], node_config: Mapping[str, Any]
) -> list[Pin]:
    """Return one `Pin` for each source that makes demands. Raises `JobError` for an invalid key.

    The sources are the `keywords` of the client's `ProtectMod`, the app's run configuration, and
    the configuration of the client's node. Raises `Refused` if the run configuration names a
    protection's code that neither of the other two names. Raises `DeploymentError` if the node
    configuration has a misspelt key, since a demand of the client would be missing.
    """
    # `parse` checks the keys that begin with the prefix, also those of a user's own protection.
    others = [key for key in node_config if not key.startswith(PREFIX)]
    refuse_misspelt(others, _node_keys())
    _refuse_code(of_config(run_config), keywords, of_config(node_config))
    sources = (
        ("ProtectMod", keywords, ""),
        (_RUN, of_config(run_config), PREFIX),
        ("the node configuration", of_config(node_config), PREFIX),
    )
    return [Pin(source, parse(keys, prefix)) for source, keys, prefix in sources if keys]


@cache
def _node_keys() -> list[str]:
    """Return the keys of a node configuration that this app's client reads."""
    names = {name: None for of in OFFERED for name in find(of).settings_type.model_fields}
    return [STATE_FOLDER, *(f"{PREFIX}{name}" for name in (*Options.model_fields, *names))]


def _refuse_code(run: Mapping[str, Any], *own: Mapping[str, Any]) -> None:
    """Raise `Refused` if the run configuration `run` names code that the client itself does not.

    This concerns the setting `protection`, if it names a user's own code. `own` are the settings of
    the client's code and node. Only texts are compared, because parsing the settings would import
    the named code.
    """
    name, named = run.get("protection"), [keys.get("protection") for keys in own]
    if isinstance(name, str) and is_function(name) and name not in named:
        raise Refused(
            f"{_RUN} names the code {PREFIX}protection = {name}, which this client does not name "
            f"itself, in its node configuration or in ProtectMod"
        )


def refuse_weaker(offer: Offer, pins: Sequence[Pin], run: int) -> None:
    """Raise `MessageInvalid` if the server's `offer` protects less than a pin in `pins` demands.

    A pin has the demands of one source, such as the client's own code. `run` is the number of the
    Flower run. There are three rules:

    - If a pin names a protection, the offer must name the same one, with parameters that are not
      weaker. A report must not cost more epsilon or delta than with the pin's parameters.
    - If a pin limits epsilon, the offer must not rely on noise that the server adds, unless the
      pins accept this (`_trusted`).
    - If the offer weights clients, the server learns the sum of their weights. The offer is refused
      if a pin demands equal weights, or if the weight is a metric that the pins do not allow.
    """
    try:
        check(offer.options)
    except InvalidValue as error:
        raise MessageInvalid(f"the offer is refused: {error}") from None
    pins = list(pins)
    limited = [pin for pin in pins if pin.options.max_epsilon is not None]
    if _on_its_word(offer.options) and limited and not _trusted(pins, limited):
        raise MessageInvalid(
            "max_epsilon of this client's own is held against the server, and the offer's epsilon "
            "rests on noise that the server adds: a client that trusts it names the same "
            "protection and its epsilon among its own demands"
        )
    for pin in pins:
        if pin.options.weighting == "equal" != offer.options.weighs:
            raise MessageInvalid(
                f"the offer has weighting = by_size, and {pin.source} demands equal: the sum of "
                f"the weights says how many examples clients have"
            )
        if pin.options.protection is not None:
            reason = _weaker(offer, pin.options, run)
            if reason:
                raise MessageInvalid(f"the offer is weaker than {pin.source} demands: {reason}")
    _refuse_weights(offer, pins)


def _trusted(pins: Sequence[Pin], limited: Sequence[Pin]) -> bool:
    """Return True if the client accepts an epsilon that relies on noise added by the server.

    A pin has the demands of one source: the client's code or node (the client's own pins), or the
    run configuration, which the server can change. The client accepts such an epsilon if one of its
    `pins` names a protection whose guarantee relies on the server. `limited` are the pins with an
    epsilon limit. If one of those is the client's own, the acceptance must be in an own pin too.
    """
    lifts = [pin for pin in pins if pin.is_own or not any(other.is_own for other in limited)]
    return any(_on_its_word(pin.options) for pin in lifts)


def _refuse_weights(offer: Offer, pins: Sequence[Pin]) -> None:
    if offer.options.weighs == "equal":
        return
    # If the client itself sets `reveal`, the run configuration cannot name another metric.
    listed = any(pin.is_own and "reveal" in pin.options.model_fields_set for pin in pins)
    named = {p.options.weight_key for p in pins if p.is_own or not listed} - {None}
    allowed = named or {WEIGHT_KEY, *revealed_by(pins)}
    if len(named) > 1 or offer.weight_key not in allowed:
        raise MessageInvalid(
            f"the offer makes weights of the metric {offer.weight_key}, whose sum the server would "
            f"learn: weight_key on the client names the one that it may be made of, "
            f"{WEIGHT_KEY} without it"
        )


def revealed_by(pins: Sequence[Pin]) -> frozenset[str]:
    """Return the metrics that may be sent in clear: those that every `reveal` setting names.

    Each pin (the demands of one source) can have this setting. The result is empty if none has it.
    """
    said = [pin.options.revealed for pin in pins if "reveal" in pin.options.model_fields_set]
    return frozenset.intersection(*said) if said else frozenset()


def kept(pins: Sequence[Pin]) -> tuple[str, ...]:
    """Return the name patterns of the arrays that never leave the client, as its `pins` demand."""
    return tuple(name for pin in pins for name in pin.options.kept)


def may_reveal(offer: Offer, pins: Sequence[Pin]) -> frozenset[str]:
    """Return the metrics that `offer` asks for and that every `reveal` setting in `pins` names."""
    return offer.options.revealed & revealed_by(pins)


def answer_after_s(asked: Options, pins: Sequence[Pin]) -> float | None:
    """Return the fixed time from a request to its answer in seconds, or None for no fixed time.

    It is the largest `answer_after_s` in the server's settings `asked` and in the client's `pins`.
    """
    said = [options.answer_after_s for options in (asked, *(pin.options for pin in pins))]
    return max((seconds for seconds in said if seconds is not None), default=None)


def own_protections(pins: Sequence[Pin]) -> frozenset[str]:
    """Return the names of the protections that the client's own code or node demands."""
    return frozenset(p.options.protection for p in pins if p.is_own and p.options.protection)


def limits(pins: Sequence[Pin]) -> list[tuple[float, float]]:
    said = [pin.options for pin in pins]
    stated = [(of.max_epsilon, of.delta) for of in said if of.max_epsilon is not None]
    totals = [total_of(of.position, of.parameters) for of in said if of.protection is not None]
    return stated + [limit for total in totals for limit in total]


def _on_its_word(options: Options) -> bool:
    """Return True if the guarantee of the protection in `options` relies on the server."""
    return options.protection is not None and options.position.rests_on_server(options.parameters)


def _weaker(offer: Offer, demanded: Options, run: int) -> str | None:
    asked = offer.options
    if asked.protection != demanded.protection:
        return f"{asked.protection} in place of {demanded.protection}"
    parameters = asked.parameters, demanded.parameters
    reason = weakened(*parameters)
    reason = reason or asked.position.weaker(*parameters, offer.clients, demanded.clients)
    if reason is not None:
        return reason
    (epsilon, delta), (most, most_delta) = (
        o.protection(run).most_of_a_report() for o in (offer, replace(offer, options=demanded))
    )
    if epsilon > most or delta > most_delta:
        return f"a report costs {Figure(epsilon, delta)}, {Figure(most, most_delta)} is allowed"
    return None
