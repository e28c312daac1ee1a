"""What a client insists on, whatever the server tells it.

A pin comes from one of the client's own sources, and every pin must hold: the keywords of its
`ProtectMod`, the app's run configuration, and the configuration of its SuperNode (`--node-config`),
which alone is out of reach of whoever starts the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedveil.errors import InvalidValue, MessageInvalid
from fedveil.flower.app.offer import Offer, check
from fedveil.flower.app.options import PREFIX, Options, of_config, parse
from fedveil.privacy.compose import plain_sum
from fedveil.protections.pw_encrypt import PWEncryptSettings
from fedveil.protections.rr_oue import UnarySettings
from fedveil.settings.base import Settings


@dataclass(frozen=True)
class Pin:
    """The demands of one source; `stated` are the keys that it has."""

    source: str
    options: Options
    stated: frozenset[str]


def pins_of(
    keywords: Mapping[str, Any], run_config: Mapping[str, Any], node_config: Mapping[str, Any]
) -> list[Pin]:
    """The demands of the three sources, those that have any; raises `JobError`."""
    sources = (
        ("ProtectMod", keywords, ""),
        ("the run configuration", of_config(run_config), PREFIX),
        ("the node configuration", of_config(node_config), PREFIX),
    )
    return [
        Pin(source, parse(keys, prefix), frozenset(keys))
        for source, keys, prefix in sources
        if keys
    ]


def refuse_weaker(offer: Offer, pins: Iterable[Pin], run: int) -> None:
    """Raise `MessageInvalid` where the offer protects less than a pin demands, or nothing at all.

    The same protection as the pin's is needed, with at most its loss a report: epsilon and delta
    of the whole update, each. Under pw_encrypt, which has no such loss, at least as many clients
    must be needed to reconstruct a secret, among at least as many neighbours.
    """
    try:
        check(offer.options)
    except InvalidValue as error:
        raise MessageInvalid(f"the offer is refused: {error}") from None
    for pin in pins:
        if pin.options.protection is not None:
            reason = _weaker(offer, pin.options, run)
            if reason:
                raise MessageInvalid(f"the offer is weaker than {pin.source} demands: {reason}")


def revealed_by(pins: Sequence[Pin]) -> frozenset[str]:
    """The metrics that every source with a word in it allows; none where no source has."""
    said = [pin.options.revealed for pin in pins if "reveal" in pin.stated]
    return frozenset.intersection(*said) if said else frozenset()


def may_reveal(offer: Offer, pins: Sequence[Pin]) -> frozenset[str]:
    """Those among them that the server asks for."""
    return offer.options.revealed & revealed_by(pins)


def limits(pins: Sequence[Pin]) -> list[tuple[float, float]]:
    """Every (epsilon, delta) that the run as a whole may not pass for this client."""
    return [
        (pin.options.max_epsilon, pin.options.delta)
        for pin in pins
        if pin.options.max_epsilon is not None
    ]


def _weaker(offer: Offer, demanded: Options, run: int) -> str | None:
    asked = offer.options
    if asked.protection != demanded.protection:
        return f"{asked.protection} in place of {demanded.protection}"
    one, other = asked.parameters, demanded.parameters
    if isinstance(one, PWEncryptSettings) and isinstance(other, PWEncryptSettings):
        return _easier_to_unmask(one, other, offer.clients)
    if isinstance(one, UnarySettings) and (one.report, _report(other)) == ("bits", "sum"):
        return "reports of bits in place of sums, which say less"
    (epsilon, delta), (most, most_delta) = (
        _loss(o, run) for o in (offer, replace(offer, options=demanded))
    )
    if epsilon > most or delta > most_delta:
        return (
            f"a report costs epsilon {epsilon:g} at delta {delta:g}, {most:g} at {most_delta:g} is "
            f"allowed"
        )
    return None


def _report(settings: Settings) -> str:
    assert isinstance(settings, UnarySettings)
    return settings.report


def _loss(offer: Offer, run: int) -> tuple[float, float]:
    """Bounds on epsilon and delta of one report, plainly added."""
    parameters = offer.options.parameters
    if isinstance(parameters, UnarySettings) and parameters.adaptive and parameters.total_eps:
        return parameters.total_eps, 0.0  # a later round's may be anything up to that
    protection = offer.protection(run)
    spendings = protection.spending(protection.initial_state())
    epsilon = plain_sum((spent.loss.epsilon, spent.count) for spent in spendings)
    return epsilon, plain_sum((spent.loss.delta, spent.count) for spent in spendings)


def _easier_to_unmask(
    asked: PWEncryptSettings, demanded: PWEncryptSettings, clients: int
) -> str | None:
    least = demanded.reconstruct_secrets_threshold
    if asked.reconstruct_secrets_threshold < least:
        return (
            f"{asked.reconstruct_secrets_threshold} clients reconstruct a secret, at least {least} "
            f"are demanded"
        )
    degrees = [s.graph_degree(s.sharing_clients(clients)) for s in (asked, demanded)]
    among, wanted = (clients - 1 if degree is None else degree for degree in degrees)
    if among < min(wanted, clients - 1):
        return f"a client has {among} neighbours, at least {wanted} are demanded"
    return None
