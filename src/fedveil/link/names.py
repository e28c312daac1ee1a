"""Valid names of parties: a name is also part of a file name and a certificate."""

from __future__ import annotations

import re

from fedveil.errors import SplitInvalid

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


def check_name(what: str, name: object) -> str:
    """Return `name` if it is a valid name of a party, otherwise raise `SplitInvalid`.

    The error begins with `what`, such as "the party".
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise SplitInvalid(
            f"{what} {name!r} is not a name: a letter or _, then letters, digits, _ and -, "
            f"at most 63 in all"
        )
    return name
