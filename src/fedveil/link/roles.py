"""Rights of certificates, which a party lists as `roles` in its own `tls.yaml`.

    roles:
      lead: [train, predict]                   a party, by its name in the job
      scoring.bank.example: [predict]          any other certificate of the party's authority

With `roles`, a certificate that is not listed has no right. Without `roles`, the parties of the job
have all rights, and others have none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fedveil.errors import CertificateError, nearest

PREDICT, PROBABILITIES, METRICS = "predict", "probabilities", "metrics"
RIGHTS: Final = ("train", "evaluate", PREDICT, "generate", PROBABILITIES, METRICS)


def right_of(purpose: str) -> str:
    """Return the right that a session with this `purpose` needs.

    The purpose "score" needs the right "predict". Any other purpose needs the right of its own
    name, such as "train".
    """
    return PREDICT if purpose == "score" else purpose


def check_roles(path: Path, roles: object) -> None:
    """Raise CertificateError unless `roles`, read from `path`, maps names to lists of rights."""
    if not isinstance(roles, dict):
        raise CertificateError(f"roles in {path} is not a block of `name: [right, ...]` lines")
    for who, rights in roles.items():
        if not isinstance(who, str) or not isinstance(rights, list):
            raise CertificateError(f"roles.{who} in {path} is not a list of rights")
        for right in rights:
            if right not in RIGHTS:
                raise CertificateError(
                    f"roles.{who} in {path} has a right that is not known, {right}"
                    f"{nearest(str(right), RIGHTS)}: the rights are {', '.join(RIGHTS)}"
                )
