"""Certificates of parties: what is written, and what is refused when it is read."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedveil.cli.exits import Exit
from fedveil.errors import CertificateError, InvalidValue, SplitInvalid
from fedveil.link import own_authority
from fedveil.link.certificate_chain import names_in
from fedveil.link.own_authority import write_certificates
from fedveil.link.tls import Credentials, named_in
from pki import KINDS, Authority

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "certificates"
    assert write_certificates(folder, ["lead", "bank"]) == [folder / "lead", folder / "bank"]
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_each_party_gets_its_own_folder_and_only_the_key_files_are_secret(made: Path) -> None:
    modes = {
        str(path.relative_to(made)): stat.S_IMODE(path.stat().st_mode) & 0o077
        for path in made.rglob("*.*")
    }
    assert {name for name, others in modes.items() if not others} == {
        "authority.key", "lead/key.pem", "bank/key.pem",
    }  # fmt: skip
    assert set(modes) - {"authority.key", "authority.pem"} == {
        f"{party}/{file}.pem"
        for party in ("lead", "bank")
        for file in ("authority", "certificate", "key")
    }
    authority = x509.load_pem_x509_certificate((made / "authority.pem").read_bytes())
    above = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (above.ca, above.path_length) == (True, 0), "it makes certificates of parties alone"
    for party in ("lead", "bank"):
        assert (made / party / "authority.pem").read_bytes() == (
            made / "authority.pem"
        ).read_bytes()
        own = x509.load_pem_x509_certificate((made / party / "certificate.pem").read_bytes())
        own.verify_directly_issued_by(authority)
        assert names_in(own) == [party]
        assert named_in(made / party, ["lead", "bank"]) == party
        basics = own.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert not basics.ca, "a party must not be able to make certificates"


def test_credentials_are_read_from_the_partys_folder_or_the_one_above(made: Path) -> None:
    assert Credentials.read(made, "bank").certificate == (
        Credentials.read(made / "bank", "bank").certificate
    )
    assert named_in(made, ["lead", "bank"]) is None
    assert named_in(made / "bank", ["lead", "shop"]) is None


def test_a_party_can_be_added_under_the_same_authority(folder: Path) -> None:
    before = (folder / "authority.pem").read_bytes()
    write_certificates(folder, ["shop"], days=3)
    own = Credentials.read(folder, "shop")
    assert own.authority == before
    added = x509.load_pem_x509_certificate(own.certificate)
    assert abs(added.not_valid_after_utc - datetime.now(UTC) - timedelta(days=3)) < HOUR
    early = "a party whose clock is hours behind reads it"
    assert datetime.now(UTC) - added.not_valid_before_utc > 12 * HOUR, early


def test_the_key_of_an_authority_of_another_kind_is_refused(folder: Path) -> None:
    """Or an encrypted one: certificates of a PKI are made by its own program."""
    leaf = Authority("other").leaf("shop")
    other = replace(leaf, key=KINDS["ed25519"]())
    for data, why in (
        (leaf.key_pem(b"secret"), r"authority\.key is not an unencrypted private key in PEM"),
        (other.key_pem(), "is not the key that `fedveil vertical certificates` made"),
    ):
        (folder / "authority.key").write_bytes(data)
        with pytest.raises(CertificateError, match=why):
            write_certificates(folder, ["shop"])
        assert not (folder / "shop").exists()


def test_the_command_hands_on_how_long_certificates_are_valid(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    made = ("vertical", "certificates", "keys", "--party", "bank", "--days", 3)
    assert command(*made[:-1], 4000)[0] == Exit.WRONG
    assert command(*made)[0] == 0
    own = Credentials.read(tmp_path / "keys", "bank").certificate
    ends = x509.load_pem_x509_certificate(own).not_valid_after_utc
    assert abs(ends - datetime.now(UTC) - timedelta(days=3)) < HOUR


def test_what_is_there_is_never_written_over(folder: Path) -> None:
    before = (folder / "bank" / "key.pem").read_bytes()
    with pytest.raises(CertificateError, match="bank is there already: remove it first"):
        write_certificates(folder, ["shop", "bank"])
    assert (folder / "bank" / "key.pem").read_bytes() == before
    assert not (folder / "shop").exists()


def test_names_that_no_certificate_can_tell_apart(folder: Path) -> None:
    with pytest.raises(CertificateError, match="lead and Lead differ in case alone"):
        write_certificates(folder, ["Lead"])
    with pytest.raises(CertificateError, match="shop and Shop differ in case alone"):
        write_certificates(folder, ["shop", "Shop"])
    with pytest.raises(CertificateError, match="the party twice is named twice"):
        write_certificates(folder, ["twice", "twice"])
    with pytest.raises(SplitInvalid, match="the party 'a b' is not a name"):
        write_certificates(folder, ["a b"])
    with pytest.raises(InvalidValue, match=r"days = 0 is outside \[1, 3650\]"):
        write_certificates(folder, ["shop"], days=0)


@pytest.mark.parametrize("files", [0, 1])
def test_an_authority_that_was_cut_short_in_the_making_is_finished(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after it has written this number of files."""
    write, written = own_authority.write_whole, list[Path]()

    def until_killed(path: Path, data: bytes, mode: int) -> None:
        if len(written) == files:
            raise KeyboardInterrupt
        written.append(path)
        write(path, data, mode)

    monkeypatch.setattr(own_authority, "write_whole", until_killed)
    with pytest.raises(KeyboardInterrupt):
        write_certificates(tmp_path, ["bank"])
    monkeypatch.undo()
    write_certificates(tmp_path, ["lead", "bank"])
    Credentials.read(tmp_path, "bank")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_an_authority_whose_key_is_kept_elsewhere_is_never_replaced(folder: Path) -> None:
    key, away = folder / "authority.key", folder.parent / "offline.key"
    key.rename(away)
    before = contents(folder)
    with pytest.raises(CertificateError, match=r"\.pem is there without its key, .*\.key: put the"):
        write_certificates(folder, ["shop", "till"])
    assert contents(folder) == before
    assert not (folder / "shop").exists()
    key.symlink_to(folder.parent / "unmounted" / "offline.key")
    with pytest.raises(CertificateError, match=r"authority\.key cannot be read: No such file"):
        write_certificates(folder, ["shop"])
    assert contents(folder) == before
    key.unlink()
    away.rename(key)
    write_certificates(folder, ["shop"])
    assert Credentials.read(folder, "shop").authority == before["authority.pem"]


def test_a_partys_own_folder_keeps_the_authority_that_it_trusts(tmp_path: Path) -> None:
    root = Authority("Example Root")
    folder = root.leaf("bank").write(tmp_path / "bank", root)
    before = contents(folder)
    with pytest.raises(CertificateError, match="choose another folder for a new authority"):
        write_certificates(folder, ["shop"])
    assert contents(folder) == before


def test_no_certificate_is_made_with_the_key_of_another_authority(
    folder: Path, tmp_path: Path
) -> None:
    write_certificates(tmp_path / "other", [])
    shutil.copy(tmp_path / "other" / "authority.key", folder / "authority.key")
    with pytest.raises(CertificateError, match=r"is not the key of the authority in .*\.pem"):
        write_certificates(folder, ["shop"])
    assert not (folder / "shop").exists()


def test_a_certificate_of_another_party(folder: Path) -> None:
    for known in ((), ("lead", "bank", "shop")):
        with pytest.raises(CertificateError, match=r"is bank's, and the party here is lead$"):
            Credentials.read(folder / "bank", "lead", known)


def test_a_certificate_that_names_several_parties_is_nobodys(folder: Path) -> None:
    own = Credentials.read(folder, "lead", ["bank", "shop"])
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bank")])
    for names, who in (
        (["bank"], "bank"),
        (["BANK", "fl.bank.example"], "bank"),
        (["fl.bank.example", "bank", "shop"], None),
        (["fl.bank.example"], None),
        ([], None),
    ):
        builder = own_authority._builder(name, name, key.public_key(), 1)
        if names:
            named = x509.SubjectAlternativeName([x509.DNSName(one) for one in names])
            builder = builder.add_extension(named, critical=False)
        assert own.party_of(builder.sign(key, hashes.SHA256())) == who


def test_a_key_that_others_can_read(folder: Path) -> None:
    (folder / "bank" / "key.pem").chmod(0o640)
    with pytest.raises(CertificateError, match=r"key\.pem has mode 0640, .*chmod 600"):
        Credentials.read(folder, "bank")


def test_files_of_different_certificates(folder: Path, tmp_path: Path) -> None:
    write_certificates(tmp_path / "other", ["bank"])
    for file, why in (
        ("key.pem", r"key\.pem in .* is not the key of certificate\.pem"),
        ("authority.pem", r"is not of the authority in authority\.pem"),
    ):
        mixed = shutil.copytree(folder / "bank", tmp_path / file)
        shutil.copy(tmp_path / "other" / "bank" / file, mixed / file)
        with pytest.raises(CertificateError, match=why):
            Credentials.read(mixed, "bank")


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("certificate.pem", "is not a certificate in PEM"),
        ("authority.pem", "is not a certificate in PEM"),
        ("key.pem", "is not a private key in PEM"),
    ],
)
def test_files_that_are_damaged_or_missing(folder: Path, file: str, why: str) -> None:
    path = folder / "bank" / file
    path.write_bytes(b"-----BEGIN NOTHING-----\n")
    with pytest.raises(CertificateError, match=why):
        Credentials.read(folder, "bank")
    path.unlink()
    with pytest.raises(CertificateError, match=f"{file} cannot be read: No such file"):
        Credentials.read(folder, "bank")


@pytest.mark.parametrize(
    ("year", "why"),
    [
        (2001, "expired on 2001-02-04"),
        (2101, "is valid only from 2101-02-02 04:05 UTC on: check the clock"),
    ],
)
def test_a_certificate_that_has_expired_or_is_not_valid_yet(
    year: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(year, 2, 3, 4, 5, tzinfo=UTC)

    monkeypatch.setattr(own_authority, "datetime", Other)
    write_certificates(tmp_path, ["bank"], days=1)
    monkeypatch.undo()
    with pytest.raises(CertificateError, match=f"the certificate in .* {why}"):
        Credentials.read(tmp_path, "bank")
