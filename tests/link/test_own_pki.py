"""A party's own PKI: what is accepted from its folder, and what is refused with a sentence."""

from __future__ import annotations

import base64
import dataclasses
import re
import shutil
import ssl
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from doc_blocks import blocks
from fedveil.errors import CertificateError, FedveilError
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials, named_in
from folders import DOCS
from pki import KINDS, Authority, Leaf, pem

SECRET = "correct-horse-7"
PARTIES = ("lead", "bank", "shop")
NAMES = {"lead": "fl01.lead.example", "bank": "10.1.2.3"}


class Pki:
    def __init__(self) -> None:
        self.root = Authority("Example Root", "rsa2048")
        self.middle = Authority("Example Policy CA", "p384", self.root)
        self.issuing = Authority("Example Issuing CA", "rsa3072", self.middle)
        self.bank = self.issuing.leaf("fl.bank.example", "bank", "10.1.2.3", kind="rsa2048")


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def read(folder: Path, party: str = "bank") -> Credentials:
    return Credentials.read(folder, party, PARTIES)


def refusal(folder: Path, party: str = "bank") -> str:
    with pytest.raises(CertificateError) as error:
        read(folder, party)
    assert SECRET not in str(error.value)
    return str(error.value)


@cache
def key_of(kind: str) -> Any:
    return KINDS[kind]()


@cache
def authorities(kind: str) -> tuple[Authority, Authority]:
    root = Authority("root", kind)
    return root, Authority("issuing", kind, root)


@pytest.mark.parametrize("kind", ["rsa2048", "rsa3072", "p256", "p384"])
@pytest.mark.parametrize("authority", sorted(set(KINDS) - {"rsa1024"}))
def test_keys_and_authorities_of_every_usual_kind(
    tmp_path: Path, kind: str, authority: str
) -> None:
    root, issuing = authorities(authority)
    own = read(issuing.leaf("bank", key=key_of(kind)).write(tmp_path / "bank", root))
    assert own.certificate.count(b"BEGIN CERTIFICATE") == 2
    own.client_context()


@pytest.mark.parametrize("kind", ["p521", "ed25519"])
def test_keys_that_the_tls_of_the_link_cannot_use(pki: Pki, tmp_path: Path, kind: str) -> None:
    folder = pki.issuing.leaf("bank", kind=kind).write(tmp_path / "bank", pki.root)
    assert "is a key of a kind that gRPC's TLS does not use: take an RSA key" in refusal(folder)


def test_a_key_of_an_unknown_algorithm(pki: Pki, tmp_path: Path) -> None:
    folder = pki.issuing.leaf("bank").write(tmp_path / "bank", pki.root)
    der = bytes.fromhex("300f020100300506032a030404030a0b0c")  # of the algorithm 1.2.3.4
    text = base64.b64encode(der).decode()
    (folder / "key.pem").write_text(
        f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"
    )
    assert "is a key of a kind that gRPC's TLS does not use: take an RSA key" in refusal(folder)


def test_a_key_that_is_too_short(pki: Pki, tmp_path: Path) -> None:
    folder = pki.issuing.leaf("bank", kind="rsa1024").write(tmp_path / "bank", pki.root)
    assert refusal(folder).endswith("is weak: its RSA key has 1024 bits, and 2048 are the least")


def test_a_chain_with_two_intermediate_authorities(pki: Pki, tmp_path: Path) -> None:
    folder = pki.bank.write(tmp_path / "bank", pki.root)
    own = read(folder)
    assert own.certificate == pem(pki.bank.certificate, *pki.bank.chain)
    assert len(pki.bank.chain) == 2
    (folder / "certificate.pem").write_bytes(pem(pki.bank.certificate, pki.bank.chain[0]))
    assert "intermediate certificates, if there are any, follow the party's own" in refusal(folder)
    (folder / "certificate.pem").write_bytes(pem(*pki.bank.chain, pki.bank.certificate))
    assert "certificate.pem, in which the party's own certificate comes first" in refusal(folder)
    (folder / "certificate.pem").write_bytes(pem(pki.bank.certificate, *pki.bank.chain))
    bundle = (folder / "authority.pem").read_bytes()
    (folder / "authority.pem").write_bytes(pem(pki.middle.certificate))
    assert "authority.pem holds no root" in refusal(folder)
    # An authority's bundle often holds all of them.
    (folder / "certificate.pem").write_bytes(pem(pki.bank.certificate, pki.bank.chain[0]))
    (folder / "authority.pem").write_bytes(pem(pki.middle.certificate) + bundle)
    read(folder)


def test_an_intermediate_certificate_that_has_expired(pki: Pki, tmp_path: Path) -> None:
    issuing = Authority("Old CA", "p256", pki.root)
    key, old = issuing.key, pki.root.leaf("x", ends=-1)
    builder = x509.CertificateBuilder().subject_name(issuing.name).issuer_name(pki.root.name)
    ended = (
        builder.public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(old.certificate.not_valid_before_utc)
        .not_valid_after(old.certificate.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(pki.root.key, old.certificate.signature_hash_algorithm)  # type: ignore[arg-type]
    )
    leaf = dataclasses.replace(issuing.leaf("bank"), chain=(ended,))
    said = refusal(leaf.write(tmp_path / "bank", pki.root))
    assert said.startswith("the certificate of CN=Old CA in ")
    assert f"expired on {ended.not_valid_after_utc:%F}" in said


def test_a_party_that_signs_for_others_is_no_authority(pki: Pki, tmp_path: Path) -> None:
    shop = pki.issuing.leaf("shop")
    forger = Authority("fl01", above=pki.root)
    forger.key, forger.name = shop.key, shop.certificate.subject
    forged = dataclasses.replace(forger.leaf("bank"), chain=(shop.certificate, *shop.chain))
    folder = forged.write(tmp_path / "bank", pki.root)
    assert "is not of the authority in authority.pem" in refusal(folder)


# --- names


def test_several_names_and_a_common_name_beside_them(pki: Pki, tmp_path: Path) -> None:
    # The common name is another party's, and counts for nothing.
    leaf = pki.issuing.leaf("fl.bank.example", "10.1.2.3", "fl01.bank.example", common="shop")
    plain = leaf.write(tmp_path / "plain", pki.root)
    assert refusal(plain).endswith(
        "is fl.bank.example, fl01.bank.example, 10.1.2.3's, and the party here is bank"
    )
    assert "and the party here is shop" in refusal(plain, "shop")
    for number, spelled in enumerate(("fl01.bank.example", "FL01.Bank.Example", "10.1.2.3")):
        folder = leaf.write(tmp_path / str(number), pki.root, names={"bank": spelled})
        assert read(folder).party_of(leaf.certificate) == "bank"
        assert named_in(folder, PARTIES) == "bank"
    folder = leaf.write(tmp_path / "other", pki.root, names={"bank": "fl02.bank.example"})
    assert refusal(folder).endswith("and the party here is bank (fl02.bank.example)")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["fl01.bank.example", "fl01.shop.example"], "names several parties of the job"),
        (["fl01.shop.example"], "fl01.shop.example's, and the party here is bank"),
        (["*.bank.example"], r"\*.bank.example's, and the party here is bank"),
        (["bank"], "bank's, and the party here is bank (fl01.bank.example)"),
        ([], "nobody's, and the party here is bank: it needs a subject alternative name"),
    ],
)
def test_names_that_are_not_this_partys(
    pki: Pki, tmp_path: Path, names: list[str], why: str
) -> None:
    mapped = {"bank": "fl01.bank.example", "shop": "fl01.shop.example"}
    leaf = pki.issuing.leaf(*names, common="bank")
    folder = leaf.write(tmp_path / "bank", pki.root, names=mapped)
    assert why.replace("\\", "") in refusal(folder)


def test_an_address_is_not_a_dns_name_that_looks_like_it(pki: Pki, tmp_path: Path) -> None:
    leaf = pki.issuing.leaf("!10.1.2.3", "fl.bank.example")
    folder = leaf.write(tmp_path / "bank", pki.root, names={"bank": "10.1.2.3"})
    assert "is fl.bank.example's, and the party here is bank (10.1.2.3)" in refusal(folder)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"bnak": "x.example"}, r"names.bnak in .* is no party of the job, .*did you mean bank"),
        ({"bank": "a.example", "shop": "A.example"}, "bank and shop have the same name in certif"),
        ({"shop": "bank"}, "bank and shop have the same name in certificates, bank"),
        ({"bank": "*.example"}, "names.bank in .* is not one DNS name or IP address"),
        ({"bank": 5}, "names.bank in .* is not one DNS name or IP address"),
        (["bank"], "names in .* is not a block of `party: name` lines"),
    ],
)
def test_names_that_cannot_be_told_apart_or_are_none(
    pki: Pki, tmp_path: Path, names: Any, why: str
) -> None:
    folder = pki.bank.write(tmp_path / "bank", pki.root, names=names)
    with pytest.raises(CertificateError, match=why):
        read(folder)


def test_a_certificate_for_one_end_of_a_link_only(pki: Pki, tmp_path: Path) -> None:
    ends = {}
    for usage in (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH):
        leaf = pki.issuing.leaf("bank", extensions=[x509.ExtendedKeyUsage([usage])])
        ends[usage] = read(leaf.write(tmp_path / usage.dotted_string, pki.root))
    loopback, link = Address("127.0.0.1", 0), Link("lead")
    with pytest.raises(CertificateError, match=r"is not for a follower: .* lacks clientAuth"):
        Dialer(loopback, link, "bank", ends[ExtendedKeyUsageOID.SERVER_AUTH])
    with pytest.raises(CertificateError, match=r"is not for a leader: .* lacks serverAuth"):
        Listener(loopback, {"shop": link}, "bank", ends[ExtendedKeyUsageOID.CLIENT_AUTH], print)
    Dialer(loopback, link, "bank", ends[ExtendedKeyUsageOID.CLIENT_AUTH])
    any_use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])
    both = read(pki.issuing.leaf("bank", extensions=[any_use]).write(tmp_path / "any", pki.root))
    for listens in (True, False):
        both.check_usage(listens=listens)


def test_a_certificate_of_two_parties_names_neither(pki: Pki, tmp_path: Path) -> None:
    folder = pki.issuing.leaf("bank", "shop").write(tmp_path / "both", pki.root)
    assert named_in(folder, ["lead", "bank"]) == "bank"
    assert named_in(folder, PARTIES) is None


def test_both_ends_ask_for_a_certificate_and_a_client_checks_the_lists_of_its_whole_chain(
    pki: Pki, tmp_path: Path
) -> None:
    folder = pki.bank.write(tmp_path / "bank", pki.root, crl="crl.pem")
    (folder / "crl.pem").write_bytes(pem(pki.root.crl(), pki.middle.crl(), pki.issuing.crl()))
    own = read(folder)
    ends = own.server_context(), own.client_context()
    assert [context.verify_mode for context in ends] == [ssl.CERT_REQUIRED] * 2
    # A server reads the lists again for each connection, and a context keeps what it has loaded.
    checks = [ssl.VERIFY_CRL_CHECK_CHAIN in context.verify_flags for context in ends]
    assert checks == [False, True]
    assert ends[0].minimum_version == ssl.TLSVersion.TLSv1_2


# --- passwords


def password_file(folder: Path, text: str) -> None:
    (folder / "password").write_text(text)
    (folder / "password").chmod(0o600)


@pytest.mark.parametrize("traditional", [False, True])
def test_an_encrypted_key(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traditional: bool
) -> None:
    form = {"password": SECRET.encode(), "traditional": traditional}
    by_file = pki.bank.write(tmp_path / "file", pki.root, password_file="password", **form)
    by_variable = pki.bank.write(tmp_path / "variable", pki.root, password_env="BANK_KEY", **form)
    assert "ENCRYPTED" in (by_file / "key.pem").read_text()
    monkeypatch.setenv("BANK_KEY", SECRET)
    ways = [(by_variable, ""), *((by_file, ended) for ended in ("", "\n", "\r\n"))]
    for folder, ended in ways:
        password_file(by_file, SECRET + ended)
        own = read(folder)
        assert serialization.load_pem_private_key(own.key, None) is not None
        own.client_context()
        assert SECRET not in repr(own)
        assert "PRIVATE" not in repr(own)


def test_a_password_that_is_wrong_or_missing(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, right = f"{SECRET}x", SECRET.encode()
    folder = pki.bank.write(
        tmp_path / "file", pki.root, password_file="password", password=b"other"
    )
    for text in (SECRET, f" {SECRET}", f"{SECRET}\n\n"):
        password_file(folder, text)
        assert "key.pem cannot be decrypted: the password is wrong" in refusal(folder)
    password_file(folder, "\n")
    assert "is empty: put the key's password into it" in refusal(folder)
    (folder / "password").chmod(0o640)
    assert "has mode 0640, so that others can read the password" in refusal(folder)
    (folder / "password").unlink()
    assert "the file that password_file in " in refusal(folder)

    folder = pki.bank.write(tmp_path / "env", pki.root, password_env="BANK_KEY", password=right)
    assert "the environment variable that password_env in " in refusal(folder)
    monkeypatch.setenv("BANK_KEY", wrong)
    assert "key.pem cannot be decrypted: the password is wrong" in refusal(folder)

    folder = pki.bank.write(tmp_path / "none", pki.root, password=right)
    assert "key.pem is encrypted: name its password in" in refusal(folder)
    monkeypatch.setenv("BANK_KEY", SECRET)
    folder = pki.bank.write(tmp_path / "open", pki.root, password_env="BANK_KEY")
    assert "key.pem is not encrypted, and" in refusal(folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"password: {SECRET}", "has a key that is not known, password"),
        (f"password_env: {SECRET}", "is not the name of an environment variable"),
        ("password_env: correct_horse_7", "the environment variable that password_env in"),
        (f"password_file: {SECRET}", "the file that password_file in"),
        ("password_file: a\npassword_env: B", "has both password_file and password_env"),
        ("password_env: 77123", "password_env in .* is not text"),
        (f"{SECRET}", "cannot be read as YAML"),
        (f"password_env {SECRET}: [", "cannot be read as YAML"),
        (f"password_env:{SECRET}", "cannot be read as YAML"),
        ("crl: ''", "crl in .* is not text"),
        ("crl: missing.pem", r"missing\.pem cannot be read: No such file"),
        ("crl: certificate.pem", r"certificate\.pem is not a revocation list in PEM"),
    ],
)
def test_settings_that_are_wrong_show_no_secret(
    pki: Pki, tmp_path: Path, text: str, why: str
) -> None:
    folder = pki.bank.write(tmp_path / "bank", pki.root)
    (folder / "tls.yaml").write_text(text)
    with pytest.raises(FedveilError, match=why) as error:
        read(folder)
    assert isinstance(error.value, CertificateError)
    for secret in (SECRET, "correct_horse", "77123"):
        assert secret not in str(error.value)


def test_files_of_other_names(pki: Pki, tmp_path: Path) -> None:
    files = {"certificate": "fl01-chain.pem", "key": "private/fl01.key", "authority": "roots.pem"}
    folder = pki.bank.write(tmp_path / "bank", pki.root, **files)
    (folder / "private").mkdir()
    for file, path in files.items():
        shutil.move(folder / f"{file}.pem", folder / path)
    own = read(folder)
    own.client_context()
    assert named_in(folder, PARTIES) == "bank"
    (folder / "private/fl01.key").chmod(0o604)
    assert "private/fl01.key has mode 0604, so that others can read the key" in refusal(folder)


def test_a_key_of_another_certificate(pki: Pki, tmp_path: Path) -> None:
    keys = {"another": pki.issuing.leaf("bank", kind="rsa2048").key, "above": pki.issuing.key}
    for name, key in keys.items():
        other = Leaf(pki.bank.certificate, key, pki.bank.chain)
        folder = other.write(tmp_path / name, pki.root)
        assert "is not the key of certificate.pem" in refusal(folder)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_commands_of_the_docs_make_a_pki(tmp_path: Path) -> None:
    page = (DOCS / "vertical-machines.md").read_text("utf-8")
    section = page.partition("## Use your own PKI\n")[2].partition("\n## ")[0]
    held = list(blocks(section, "vertical-machines"))
    (config,) = (block.text for block in held if block.language == "text")
    (settings,) = (block.text for block in held if block.language == "yaml")
    # Shorter keys than on the page: the search for primes of 1536 bits takes seconds.
    *making, revoking = (
        re.sub(r"\b(rsa:|bits:)3072\b", r"\g<1>2048", block.text)
        for block in held
        if block.language == "bash"
    )
    (tmp_path / "ca.cnf").write_text(config)

    def typed(text: str) -> None:
        done = subprocess.run(["bash", "-ec", text], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    for text in making:
        typed(text)
    (tmp_path / "bank" / "tls.yaml").write_text(settings)
    own = Credentials.read(tmp_path / "bank", "bank", ["leader", "bank"])
    assert own.revocations() is not None
    assert own.name_of("leader") == "fl07.leader.example"
    own.client_context()
    own.check_usage(listens=True)
    own.check_usage(listens=False)
    typed(revoking)
    with pytest.raises(CertificateError) as error:
        Credentials.read(tmp_path / "bank", "bank", ["leader", "bank"])
    shown = next(block.text for block in held if block.language == "indented")
    assert re.sub(r"number \S+ was revoked on \S+", "", str(error.value)) == (
        re.sub(r"number \S+ was revoked on \S+", "", shown.strip())
    )
