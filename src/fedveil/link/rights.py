"""The rights that a party's credentials give to others (`roles` says what they are)."""

from __future__ import annotations

from collections.abc import Iterable

from fedveil.errors import PeerRefused
from fedveil.link.tls import Credentials
from fedveil.link.tls_settings import FILE


def may(own: Credentials, names: Iterable[str], right: str) -> bool:
    """Return True if the holder of a certificate with these `names` has a right here.

    Without `roles` in the settings, the parties of the job have all rights, and nobody else.
    """
    roles = own.settings.roles
    if roles is None:
        return any(own.name_of(party) in names for party in own.parties)
    held = {own.name_of(who): rights for who, rights in roles.items()}
    return any(right in held.get(name, ()) for name in names)


def check_right(own: Credentials | None, party: str, right: str) -> None:
    """Raise PeerRefused if `own` settings do not give a right to `party`, one of the job's."""
    if own is None or own.settings.roles is None:
        return
    if not may(own, [own.name_of(party)], right):
        raise PeerRefused(
            f"{party} may not {right} with {own.party}: roles in {own.settings.path(FILE)} do not "
            f"give it that right"
        )
