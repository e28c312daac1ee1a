"""Checks the rights that `roles` in a party's `tls.yaml` gives to others."""

from __future__ import annotations

from collections.abc import Iterable

from fedveil.errors import RightMissing
from fedveil.link.tls import Credentials
from fedveil.link.tls_settings import FILE


def may(own: Credentials, names: Iterable[str], right: str) -> bool:
    """Return True if `own` gives `right` to the holder of a certificate with these `names`.

    `own` are this party's credentials. Without `roles` in its `tls.yaml`, the parties of the job
    have all rights, and nobody else has any.
    """
    roles = own.settings.roles
    if roles is None:
        return any(own.name_of(party) in names for party in own.parties)
    held = {own.name_of(who): rights for who, rights in roles.items()}
    return any(right in held.get(name, ()) for name in names)


def check_right(own: Credentials | None, party: str, right: str) -> None:
    """Raise RightMissing if this party's `tls.yaml` does not give `right` to the job's `party`.

    `own` are this party's credentials. Without TLS, `own` is None and every party has all rights.
    """
    if own is None or own.settings.roles is None:
        return
    if not may(own, [own.name_of(party)], right):
        raise RightMissing(
            f"{party} may not {right} with {own.party}: roles in {own.settings.path(FILE)} do not "
            f"give it that right",
            told=f"its roles do not let {party} {right}",
        )
