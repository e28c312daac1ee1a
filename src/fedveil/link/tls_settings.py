"""`tls.yaml` in a party's folder: its TLS files, its key's password, names and rights of parties.

All keys are optional, and paths are relative to the folder. Errors never show the values of
`password_file` and `password_env`, because a user may have written the password itself there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from fedveil.base.untrusted import MOST_KEY_BYTES, read_bytes
from fedveil.errors import CertificateError, JobError, nearest
from fedveil.link.certificate_chain import normal_name
from fedveil.link.roles import check_roles
from fedveil.settings import yaml_file

FILE = "tls.yaml"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class TlsSettings:
    """The settings in a party's `tls.yaml`. Paths are relative to `folder`.

    - `certificate`, `key`, `authority` and `crl` are files: the party's certificate and private
      key, the trusted authority, and revocation lists.
    - `password_file` is a file with the key's password. `password_env` names an environment
      variable with this password.
    - `names` maps a party to the name in its certificate, if that is not the party's own name.
    - `roles` maps a name to the rights of its holder (see `roles`). None: the parties of the job
      have all rights.
    """

    folder: Path
    certificate: str = "certificate.pem"
    key: str = "key.pem"
    authority: str = "authority.pem"
    password_file: str | None = field(default=None, repr=False)
    password_env: str | None = field(default=None, repr=False)
    crl: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, Sequence[str]] | None = None

    @classmethod
    def read(cls, folder: Path) -> TlsSettings:
        """Read `tls.yaml` in `folder`. Returns the defaults if there is no such file."""
        path = folder / FILE
        if not path.exists():
            return cls(folder)
        try:
            found = yaml_file.read(path)
        except JobError:
            raise CertificateError(
                f"{path} cannot be read as YAML: write one `key: value` a line"
            ) from None
        _check(path, found)
        return cls(folder, **found)

    def path(self, file: str) -> Path:
        return self.folder / file

    @property
    def crl_path(self) -> Path | None:
        return None if self.crl is None else self.path(self.crl)

    def name_of(self, party: str) -> str:
        """Return the DNS name or IP address in a party's certificate, in normal form."""
        return normal_name(self.names.get(party, party))

    def check_names(self, parties: Iterable[str]) -> None:
        """Raise CertificateError if `names` in `tls.yaml` lists a party that is not in `parties`.

        Also raises it if two parties have the same name in their certificates.
        """
        known = list(dict.fromkeys(parties))
        where = self.path(FILE)
        for party in self.names:
            if party not in known:
                raise CertificateError(
                    f"names.{party} in {where} is no party of the job, which are "
                    f"{', '.join(known)}{nearest(party, known)}"
                )
        owners: dict[str, str] = {}
        for party in known:
            other = owners.setdefault(self.name_of(party), party)
            if other != party:
                raise CertificateError(
                    f"the parties {other} and {party} have the same name in certificates, "
                    f"{self.name_of(party)}: give them different ones under names in {where}"
                )

    def password(self) -> bytes | None:
        where = self.path(FILE)
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if not value:
                raise CertificateError(
                    f"the environment variable that password_env in {where} names is not set, or "
                    f"empty: put the key's password into it"
                )
            return os.fsencode(value)
        if self.password_file is None:
            return None
        file = f"the file that password_file in {where} names"
        password = read_secret(self.path(self.password_file), file, "the password")
        # Editors and `echo` end the line.
        password = password.removesuffix(b"\n").removesuffix(b"\r")
        if not password:
            raise CertificateError(f"{file} is empty: put the key's password into it")
        return password


def read_secret(path: Path, file: str, what: str) -> bytes:
    """Return the content of the file at `path`.

    Raises CertificateError if the file cannot be read, or if its mode lets other users access it.
    The error calls the file `file` and its content `what`, such as "the password".
    """
    try:
        data, mode = read_bytes(path, MOST_KEY_BYTES), path.stat().st_mode & 0o777
    except OSError as error:
        raise CertificateError(f"{file} cannot be read: {error.strerror or error}") from None
    if mode & 0o077:
        raise CertificateError(
            f"{file} has mode {mode:04o}, so that others can read {what}: chmod 600 it"
        )
    return data


def _check(path: Path, found: Mapping[str, object]) -> None:
    keys = [one.name for one in fields(TlsSettings) if one.name != "folder"]
    for key, value in found.items():
        if key not in keys:
            raise CertificateError(
                f"{path} has a key that is not known, {key}{nearest(str(key), keys)}: its keys are "
                f"{', '.join(keys)}"
            )
        if key not in ("names", "roles") and (not isinstance(value, str) or not value):
            raise CertificateError(f"{key} in {path} is not text: write it in quotes")
    if "password_file" in found and "password_env" in found:
        raise CertificateError(
            f"{path} has both password_file and password_env: remove the one that is not used"
        )
    variable = found.get("password_env")
    if isinstance(variable, str) and not _VARIABLE.fullmatch(variable):
        raise CertificateError(
            f"password_env in {path} is not the name of an environment variable: letters, digits "
            f"and _, and never the password itself"
        )
    check_roles(path, found.get("roles", {}))
    names = found.get("names", {})
    if not isinstance(names, dict):
        raise CertificateError(f"names in {path} is not a block of `party: name` lines")
    for party, name in names.items():
        if not isinstance(name, str) or not name or "*" in name:
            raise CertificateError(
                f"names.{party} in {path} is not one DNS name or IP address, written in full"
            )
