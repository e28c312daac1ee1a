"""Signatures of bundles: what parties sign, and what a party that lies or edits achieves."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedveil.errors import BundleInvalid, ExchangeError
from fedveil.link.channel import drive_together
from fedveil.link.own_authority import write_certificates
from fedveil.link.tls import Credentials
from fedveil.record.run_folder import RunFolder
from fedveil.vertical.bundle import Manifest
from fedveil.vertical.remote.bundle_agreement import agree
from fedveil.vertical.scoring.scorer import Scorer
from fedveil.vertical.signatures import Signatures, Signed, check_signed, sign
from lying_side import lying_side
from pki import Authority, pem
from scoring_parts import PARTIES, job_of, signed, trained

RUN = bytes(range(16))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Credentials]:
    folder, other = (tmp_path_factory.mktemp(name) for name in ("keys", "others"))
    write_certificates(folder, [*PARTIES, "shop"])
    write_certificates(other, ["bank"])
    found = {name: Credentials.read(folder, name, PARTIES) for name in PARTIES}
    found["shop"] = Credentials.read(folder, "shop")
    return found | {"stranger": Credentials.read(other, "bank")}


def opened(folder: Path, party: str, own: Credentials | None, said: list[str]) -> None:
    with ExitStack() as stack:
        path = folder / "run" / party / "bundle"
        Scorer(path, str(folder / f"new-{party}.csv"), stack, own, said.append)


def test_a_signed_bundle_is_accepted_and_an_unsigned_one_says_so(
    tmp_path: Path, keys: dict[str, Credentials]
) -> None:
    folder, said = trained(tmp_path), list[str]()
    opened(folder, "bank", None, said)
    assert "bank: the bundle has no signatures" in said[0]
    with pytest.raises(BundleInvalid, match="not signed by bank and lead"):
        opened(folder, "bank", keys["bank"], said)
    signed(folder, keys)
    said.clear()
    opened(folder, "bank", keys["bank"], said)
    assert not any("signatures" in sentence for sentence in said)
    opened(folder, "bank", None, said)
    assert any("checked against no authority" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("signer", "why"),
    [
        ("shop", "made with the certificate of shop"),
        ("stranger", "not of the authority in"),
        ("lead", "made with the certificate of lead"),
    ],
)
def test_anothers_signature_is_refused(
    tmp_path: Path, keys: dict[str, Credentials], signer: str, why: str
) -> None:
    folder = trained(tmp_path)
    signed(folder, keys, bank=signer)
    with pytest.raises(BundleInvalid, match=why):
        opened(folder, "lead", keys["lead"], [])


def test_an_editor_who_mends_every_digest_cannot_sign(
    tmp_path: Path, keys: dict[str, Credentials]
) -> None:
    import hashlib

    folder = trained(tmp_path)
    path = signed(folder, keys)["lead"]
    raw = (path / "calibrator.json").read_bytes()
    edited = raw.replace(b'"threshold": 0.', b'"threshold": 0.0')
    assert edited != raw
    contents = (path / "contents.json").read_bytes()
    fresh = contents.replace(*(hashlib.sha256(d).hexdigest().encode() for d in (raw, edited)))
    manifest = (path / "manifest.json").read_bytes()
    told = manifest.replace(*(hashlib.sha256(d).hexdigest().encode() for d in (contents, fresh)))
    for name, data in (("calibrator", edited), ("contents", fresh), ("manifest", told)):
        (path / f"{name}.json").write_bytes(data)
    for own in (None, keys["lead"]):
        with pytest.raises(BundleInvalid, match="signature of bank is not valid: it is of another"):
            opened(folder, "lead", own, [])


@pytest.mark.parametrize("of", ["2a8648ce3d0201", "2a8648ce3d030107"])
def test_a_signature_by_a_key_of_an_unknown_kind_is_refused(of: str) -> None:
    """The certificate names a kind of keys, or a curve, that no library knows."""
    known = bytes.fromhex(of)
    der = Authority("root").leaf("bank").certificate.public_bytes(Encoding.DER)
    assert der.count(known) == 1
    shown = b64encode(der.replace(known, known[:-1] + b"\x63"))
    chain = b"-----BEGIN CERTIFICATE-----\n" + shown + b"\n-----END CERTIFICATE-----\n"
    with pytest.raises(BundleInvalid, match=r"signature of bank is not valid: .*1\.2\.840"):
        check_signed("bank", Signed(chain, b"signature"), b"manifest", None)


def test_a_key_of_a_kind_that_signs_no_bundle_is_refused() -> None:
    """Its signature is not checked, so anyone could have made it."""
    leaf = Authority("root").leaf("bank", kind="ed25519")
    with pytest.raises(BundleInvalid, match="of bank is not valid: its key is of a kind that sig"):
        check_signed("bank", Signed(pem(leaf.certificate), b"anything"), b"manifest", None)


# --- the agreement at the end of training


def run_of(folder: Path, name: str) -> Any:
    split = SimpleNamespace(leader="lead", followers=("bank",), parties=PARTIES)
    root = RunFolder(folder / name, None)  # type: ignore[arg-type]
    root.path.mkdir()
    setting = SimpleNamespace(split=split, job=job_of(Path("tables")), folder=root)
    events: list[str] = []
    log = SimpleNamespace(event=events.append, events=events)
    digest = bytes([len(name)]) * 32
    return SimpleNamespace(
        name=name, setting=setting, contents=digest, done=12, stopped=None, log=log
    )


def agreed(
    folder: Path,
    keys: dict[str, Credentials] | None,
    change: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] | None = None,
    liar: str = "lead",
) -> None:
    sides = {
        name: agree(run_of(folder, name), RUN, None if keys is None else keys[name])
        for name in PARTIES
    }
    sides[liar] = lying_side(sides[liar], change or {})
    drive_together(sides, encoded=True)


@pytest.mark.parametrize("tls", [True, False])
def test_parties_agree_on_one_manifest(
    tmp_path: Path, keys: dict[str, Credentials], tls: bool
) -> None:
    agreed(tmp_path, keys if tls else None)
    files = [tmp_path / name / "bundle" for name in PARTIES]
    for file in ("manifest.json", "signatures.json"):
        assert (files[0] / file).read_bytes() == (files[1] / file).read_bytes()
    manifest = json.loads((files[0] / "manifest.json").read_bytes())
    assert manifest["contents"] == {"bank": "04" * 32, "lead": "04" * 32}
    assert (manifest["run"], manifest["step"]) == (RUN.hex(), 12)
    names = json.loads((files[1] / "signatures.json").read_bytes())
    assert set(names) == (set(PARTIES) if tls else set())


def test_parties_sign_one_manifest_whatever_settings_are_their_own(
    tmp_path: Path, keys: dict[str, Credentials]
) -> None:
    sides = {name: run_of(tmp_path, name) for name in PARTIES}
    job = sides["bank"].setting.job
    sides["bank"].setting.job = job.with_(
        name="ours", threads=3, privacy={"max_epsilon": 2.5}, alignment={"most_ids": 999}
    )  # fmt: skip
    drive_together({name: agree(side, RUN, keys[name]) for name, side in sides.items()})
    said = ["the model bundle is complete, signed by all parties"]
    assert [side.log.events for side in sides.values()] == [said, said]
    manifests = {(tmp_path / name / "bundle/manifest.json").read_bytes() for name in PARTIES}
    assert len(manifests) == 1


def test_parties_sign_one_manifest_whatever_the_order_in_their_job_files(
    tmp_path: Path, keys: dict[str, Credentials]
) -> None:
    sides = {name: run_of(tmp_path, name) for name in PARTIES}
    parts: dict[str, Any] = {"bank_wide": {"frozen": True}, "bank_deep": {"dtype": "float32"}}
    for side, order in (("lead", parts), ("bank", dict(reversed(parts.items())))):
        setting = sides[side].setting
        setting.job = setting.job.with_(parts=order)
        assert list(setting.job.agreed()["parts"]) == list(order)
    drive_together({name: agree(side, RUN, keys[name]) for name, side in sides.items()})
    (made,) = {(tmp_path / name / "bundle/manifest.json").read_bytes() for name in PARTIES}
    manifest = Manifest.model_validate_json(made)
    other = dict(reversed(manifest.contents.items()))
    assert manifest.model_copy(update={"contents": other}).written() == made


def edited(old: bytes, new: bytes):  # type: ignore[no-untyped-def]
    return lambda message: {**message, "manifest": message["manifest"].replace(old, new)}


def with_anothers(message: dict[str, Any]) -> dict[str, Any]:
    """Put the bank's signature in place of the leader's."""
    found = json.loads(message["signatures"])
    return {**message, "signatures": json.dumps(found | {"lead": found["bank"]}).encode()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"signatures": with_anothers}, "signature of lead is made with the certificate of bank"),
        ({"manifest": edited(b'"step": 12', b'"step": 11')}, "another job, run or step"),
        ({"manifest": edited(b"000102", b"ff0102")}, "another job, run or step"),
        ({"manifest": edited(b'"bank": "0', b'"bank": "f')}, "another bundle of bank"),
        ({"manifest": edited(b'"bank"', b'"bonk"')}, "names bonk and lead as the parties"),
        (
            {"manifest": edited(b'"bank": "', b'"aunt": "' + b"04" * 32 + b'", "bank": "')},
            "names aunt and bank and lead as the parties",
        ),
        ({"manifest": lambda m: {**m, "manifest": bytes(1 << 21)}}, "manifest has 2,097,152 byt"),
        ({"manifest": edited(b"{", b"[")}, "manifest is none"),
        ({"signatures": lambda m: {**m, "signatures": b"{}"}}, "changed the signature of bank"),
        ({"signatures": lambda m: {**m, "signatures": b"[" * 9}}, "no signatures"),
        ({"signatures": lambda m: {**m, "signatures": bytes(1 << 21)}}, "bytes"),
        ({"manifest": lambda m: {**m, "kind": "farewell"}}, "sent 'farewell'"),
        ({"manifest": lambda m: {**m, "more": 1}}, "fields are missing or unknown"),
    ],
)
def test_a_lying_leader_gets_no_signature(
    tmp_path: Path, keys: dict[str, Credentials], change: Any, why: str
) -> None:
    with pytest.raises(ExchangeError, match=why):
        agreed(tmp_path, keys, change)
    assert not (tmp_path / "bank" / "bundle" / "manifest.json").exists()


def test_a_lying_follower_completes_no_bundle(tmp_path: Path, keys: dict[str, Credentials]) -> None:
    stolen = keys["shop"]

    def forged(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "chain": stolen.certificate}

    def short(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "sha256": bytes(31)}

    for at, (change, why) in enumerate(
        [({"signature": forged}, "signature of bank is not valid"), ({"contents": short}, "31 by")]
    ):
        folder = tmp_path / str(at)
        folder.mkdir()
        with pytest.raises(ExchangeError, match=why):
            agreed(folder, keys, change, liar="bank")
        assert not (folder / "lead" / "bundle" / "manifest.json").exists()


def test_a_comment_beside_a_certificate_may_be_in_any_encoding(
    tmp_path: Path, keys: dict[str, Credentials]
) -> None:
    """Such a file is accepted for the links, so it must also sign when hours of training end."""
    commented = b"O=M\xfcller & S\xc3\xb6hne\n" + keys["bank"].certificate
    agreed(tmp_path, keys | {"bank": replace(keys["bank"], certificate=commented)})
    raw = (tmp_path / "lead" / "bundle" / "signatures.json").read_bytes()
    assert Signatures.parsed(raw, "file").by_party["bank"].chain == commented


def test_a_signature_is_for_one_manifest(keys: dict[str, Credentials]) -> None:
    made = sign(keys["lead"], b"one")
    both = Signatures({"lead": made})
    assert both.check(b"one", ["lead"], keys["bank"]) is None
    assert Signatures.parsed(both.written(), "file") == both
    for wrong in (
        Signatures({"lead": replace(made, signature=made.signature[:-1])}),
        Signatures({"lead": Signed(b"-" * (1 << 17), made.signature)}),
        Signatures({"lead": Signed(b"no certificate", made.signature)}),
        Signatures({"lead": made, "shop": made}),
    ):
        with pytest.raises(BundleInvalid):
            wrong.check(b"one", ["lead"], keys["bank"])
    with pytest.raises(BundleInvalid):
        both.check(b"two", ["lead"], None)
    with pytest.raises(BundleInvalid, match="is not signed by bank: train with --tls, or score"):
        both.check(b"one", PARTIES, None)
    for long in (replace(made, signature=bytes((1 << 12) + 1)), Signed(b"-" * 65537, b"x")):
        with pytest.raises(BundleInvalid, match="of lead is not valid: it is too long"):
            Signatures({"lead": long}).check(b"one", ["lead"], None)


def test_a_signature_that_a_key_made_for_another_purpose_is_none_of_a_bundle(
    keys: dict[str, Credentials],
) -> None:
    """The signed bytes begin with their purpose. Bundles on disk depend on it."""
    key: Any = load_pem_private_key(keys["lead"].key, None)
    for data, is_valid in ((b"fedveil: model bundle\0one", True), (b"one", False)):
        made = Signed(keys["lead"].certificate, key.sign(data, ec.ECDSA(SHA256())))
        with nullcontext() if is_valid else pytest.raises(BundleInvalid, match="another manifest"):
            check_signed("lead", made, b"one", keys["bank"])


def test_a_signature_with_rsa_is_checked_and_a_revoked_signer_refused(tmp_path: Path) -> None:
    root = Authority("root")
    leaves = {"lead": root.leaf("lead"), "bank": root.leaf("bank", kind="rsa2048")}
    own = {}
    for name, leaf in leaves.items():
        folder = leaf.write(tmp_path / name, root, crl="crl.pem")
        (folder / "crl.pem").write_bytes(pem(root.crl()))
        own[name] = Credentials.read(folder, name, PARTIES)
    made = Signatures({name: sign(each, b"one") for name, each in own.items()})
    assert made.check(b"one", PARTIES, own["lead"]) is None
    with pytest.raises(BundleInvalid, match="signature of bank is not valid: it is of another"):
        Signatures({"bank": made.by_party["bank"]}).check(b"two", ["bank"], own["lead"])
    (own["lead"].folder / "crl.pem").write_bytes(pem(root.crl(leaves["bank"].certificate)))
    with pytest.raises(BundleInvalid, match=r"signature of bank is not valid: .* was revoked on"):
        made.check(b"one", PARTIES, own["lead"])


def test_a_signers_certificate_may_come_from_an_authority_below_the_trusted_one(
    tmp_path: Path,
) -> None:
    """An authority that is listed beside the trusted root, and is not below it, is no root."""
    root, other = Authority("root"), Authority("other")
    below, elsewhere = Authority("below", above=root), Authority("elsewhere", above=other)
    folder = root.leaf("lead").write(tmp_path / "lead", root, crl="crl.pem")
    (folder / "crl.pem").write_bytes(pem(root.crl(), below.crl(), elsewhere.crl(), other.crl()))
    own = Credentials.read(folder, "lead", PARTIES)
    made = {}
    for issuer in (below, elsewhere):
        bank = issuer.leaf("bank").write(tmp_path / issuer.certificate.subject.rfc4514_string(),
                                         root if issuer is below else other)  # fmt: skip
        made[issuer] = Signatures({"bank": sign(Credentials.read(bank, "bank"), b"one")})
    listed = replace(own, authority=own.authority + pem(elsewhere.certificate))
    assert made[below].check(b"one", ["bank"], listed) is None
    with pytest.raises(BundleInvalid, match="a certificate that is not of the authority in"):
        made[elsewhere].check(b"one", ["bank"], listed)
    revoked = root.crl(below.certificate)
    (folder / "crl.pem").write_bytes(pem(revoked, below.crl(), elsewhere.crl(), other.crl()))
    with pytest.raises(BundleInvalid, match=r"signature of bank is not valid: .*revoked"):
        made[below].check(b"one", ["bank"], own)


@pytest.mark.parametrize("text", [
    b"", b"\xff", b"[]", b"3", b"null", b"[[" * 5000, b'{"lead": 3}', b'{"lead": {"chain": "x"}}',
    b'{"lead": {"chain": 3, "signature": "00"}}', b'{"lead": {"chain": "x", "signature": "0g"}}',
    b'{"lead": {"chain": "x", "signature": null}}',
])  # fmt: skip
def test_a_damaged_file_of_signatures_is_one_sentence(text: bytes) -> None:
    with pytest.raises(BundleInvalid, match=r"^signed is damaged: it holds no signatures$"):
        Signatures.parsed(text, "signed")
