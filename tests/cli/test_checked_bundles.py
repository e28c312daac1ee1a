"""`fedveil vertical check` on model bundles: what it vouches for, and what a forger achieves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.link.own_authority import write_certificates
from fedveil.link.tls import Credentials
from fedveil.vertical.bundle import Bundle
from fedveil.vertical.signatures import Signatures, sign
from scoring_parts import PARTIES, signed, trained

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Credentials]:
    write_certificates(tmp_path / "tls", PARTIES)
    return {name: Credentials.read(tmp_path / "tls", name, PARTIES) for name in PARTIES}


@pytest.fixture
def stolen(tmp_path: Path) -> dict[str, Credentials]:
    """Keys for the same names, from an authority that the forger made."""
    write_certificates(tmp_path / "forger", PARTIES)
    return {name: Credentials.read(tmp_path / "forger", name, PARTIES) for name in PARTIES}


def forge(bundle: Path) -> None:
    """Replace the model, and write the digests of contents.json and manifest.json anew."""
    new = (bundle / "model.safetensors").read_bytes()[:-4] + b"evil"
    for name, inside in (("model.safetensors", "contents"), ("contents.json", "manifest")):
        old = (bundle / name).read_bytes()
        (bundle / name).write_bytes(new)
        listed = (bundle / f"{inside}.json").read_bytes()
        before, after = (hashlib.sha256(each).hexdigest().encode() for each in (old, new))
        assert listed.count(before) == 1
        new = listed.replace(before, after)
    (bundle / "manifest.json").write_bytes(new)


def test_a_bundle_that_was_forged_with_its_digests_is_not_vouched_for(
    command: Command, tmp_path: Path, keys: dict[str, Credentials]
) -> None:
    bundle = signed(trained(tmp_path), keys)["bank"]
    for options in ((), ("--tls", "tls")):
        code, out, _ = command("vertical", "check", str(bundle), *options)
        assert (code, "that the parties agreed on and signed" in out) == (0, bool(options))
    forge(bundle)
    for options in ((), ("--tls", "tls")):
        code, out, err = command("vertical", "check", str(bundle), *options)
        assert code == 1
        assert "every file" not in out
        told = err.replace("\n", " ")
        assert "bank/bundle: the signature of " in told
        assert "is not valid: it is of another manifest, or by another key" in told


def test_signatures_of_a_forgers_own_authority_are_vouched_for_only_without_tls(
    command: Command, tmp_path: Path, keys: dict[str, Credentials], stolen: dict[str, Credentials]
) -> None:
    bundle = signed(trained(tmp_path), keys)["bank"]
    forge(bundle)
    manifest = Bundle.read(bundle).manifest.written()
    forged = Signatures({name: sign(own, manifest) for name, own in stolen.items()})
    (bundle / "signatures.json").write_bytes(forged.written())
    code, out, _ = command("vertical", "check", str(bundle), "--json")
    told = "the bundle's signatures are checked against no authority: that needs --tls"
    assert (code, json.loads(out)["unchecked"]) == (0, {str(bundle): told})
    _, out, _ = command("vertical", "check", str(bundle))
    assert told in out.replace("\n", " ")
    code, out, err = command("vertical", "check", str(bundle), "--tls", "tls")
    assert (code, "every file" in out) == (1, False)
    assert "not of the authority in tls" in err.replace("\n", " ")


def test_an_unsigned_bundle_is_said_to_agree_only_with_digests_beside_it(
    command: Command, tmp_path: Path, keys: dict[str, Credentials]
) -> None:
    """A forger may also remove the signatures. Only a party that expects them notices."""
    bundle = signed(trained(tmp_path), keys)["lead"]
    forge(bundle)
    (bundle / "signatures.json").write_text("{}")
    code, out, _ = command("vertical", "check", str(bundle))
    told = out.replace("\n", " ")
    assert code == 0
    assert "every file agrees with the digests that are beside it. But the bundle has no" in told
    assert "cannot find an edit if the editor also computed new digests" in told
    assert "agreed on" not in told
    code, out, err = command("vertical", "check", str(bundle), "--tls", "tls")
    assert (code, out) == (1, "")
    assert "the bundle is not signed by bank and lead" in err.replace("\n", " ")
