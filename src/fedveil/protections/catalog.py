"""The table of built-in protections, and the lookup of a user's own protections."""

from __future__ import annotations

from fedveil.base import own_code
from fedveil.errors import InvalidValue
from fedveil.protections.base import JobContext, Protection
from fedveil.protections.central_gaussian import CentralGaussian
from fedveil.protections.distributed_dp import DistributedDP
from fedveil.protections.dp_encrypt import DPEncrypt
from fedveil.protections.not_encrypt import NotEncrypt
from fedveil.protections.pw_encrypt import PWEncrypt
from fedveil.protections.rr_oue import OUE, RR
from fedveil.protections.signds import SignDSProtection
from fedveil.settings.settings import Settings

_BUILT_IN = (
    NotEncrypt,
    DPEncrypt,
    PWEncrypt,
    DistributedDP,
    CentralGaussian,
    SignDSProtection,
    RR,
    OUE,
)
#: Every built-in protection by its name.
POSITIONS: dict[str, type[Protection]] = {position.name: position for position in _BUILT_IN}


def find(name: str) -> type[Protection]:
    """Return the class of a protection, given a built-in `name` or `package.module:Name`.

    Raises `InvalidValue` if no protection has this name.
    """
    if name in POSITIONS:
        return POSITIONS[name]
    key = f"protection = {name!r}"
    found = own_code.load(name, key=key, error=InvalidValue, built_in=POSITIONS)
    if not (isinstance(found, type) and issubclass(found, Protection)):
        raise InvalidValue(f"{key} is not a class derived from fedveil.protections.base.Protection")
    return found


def build(name: str, settings: Settings, context: JobContext) -> Protection:
    return find(name)(settings, context)


def fault_phases(protection: type[Protection]) -> dict[str, str | None]:
    """Map the phase names of all protections to phases of `protection`.

    So a plan of simulated faults may name a phase of any protection:

    - A phase of `protection` is mapped to itself.
    - A phase of another protection, up to that protection's training phase, is mapped to the
      training phase of `protection`.
    - A later phase of another protection is mapped to None.
    """
    names: dict[str, str | None] = {}
    for other in (*POSITIONS.values(), protection):
        trained = other.phases.index(other.trains)
        for place, phase in enumerate(other.phases):
            names.setdefault(phase, protection.trains if place <= trained else None)
    return names | {phase: phase for phase in protection.phases}
