"""Signatures of a model bundle's manifest, with the keys of the parties' certificates."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from fedveil.base.message import quoted
from fedveil.base.untrusted import MALFORMED
from fedveil.errors import BundleInvalid, CertificateError, PeerRefused
from fedveil.link.certificate_chain import ascent, described, is_root, load_chain
from fedveil.link.tls import Credentials

#: The beginning of the signed bytes, so that no signature for another purpose is valid here.
_DOMAIN = b"fedveil: model bundle\0"
#: PEM allows comments in any encoding between its certificates.
_ANY_BYTES = "surrogateescape"
MOST_CHAIN_BYTES = 1 << 16
MOST_SIGNATURE_BYTES = 1 << 12


@dataclass(frozen=True)
class Signed:
    """A party's signature of a model bundle's manifest, and its certificate chain in PEM."""

    chain: bytes
    signature: bytes


@dataclass(frozen=True)
class Signatures:
    """Each party's signature of a bundle's manifest. Empty if the parties had no certificates."""

    by_party: Mapping[str, Signed] = field(default_factory=dict)

    @classmethod
    def parsed(cls, data: bytes, source: Path | str) -> Signatures:
        try:
            found = json.loads(data)
            return cls(
                {
                    str(party): Signed(
                        one["chain"].encode("utf-8", _ANY_BYTES), bytes.fromhex(one["signature"])
                    )
                    for party, one in found.items()
                }
            )
        except MALFORMED:
            raise BundleInvalid(f"{source} is damaged: it holds no signatures") from None

    def written(self) -> bytes:
        lines = {
            party: {
                "chain": one.chain.decode("utf-8", _ANY_BYTES),
                "signature": one.signature.hex(),
            }
            for party, one in sorted(self.by_party.items())
        }
        return json.dumps(lines, indent=1).encode()

    def check(
        self, manifest: bytes, parties: Collection[str], own: Credentials | None
    ) -> str | None:
        """Check the signatures of a manifest. Returns a sentence on what was not checked, or None.

        With `own` credentials, each of the `parties` must have signed, with a certificate that
        names it and comes from an authority that `own` trusts. Without credentials, all parties or
        none must have signed, and certificates are not checked. Raises BundleInvalid if a required
        signature is missing or invalid.
        """
        missing = [party for party in parties if party not in self.by_party]
        if missing and (own is not None or self.by_party):
            raise BundleInvalid(
                f"the bundle is not signed by {' and '.join(missing)}: train with --tls, or score "
                f"without it"
            )
        if extra := [party for party in self.by_party if party not in parties]:
            raise BundleInvalid(
                f"the bundle is signed by {quoted(extra[0])}, which is no party of it"
            )
        for party, signed in self.by_party.items():
            check_signed(party, signed, manifest, own)
        if not self.by_party:
            return "the bundle has no signatures: the parties had no certificates when they trained"
        if own is None:
            return "the bundle's signatures are checked against no authority: that needs --tls"
        return None


def sign(own: Credentials, manifest: bytes) -> Signed:
    key: Any = serialization.load_pem_private_key(own.key, None)
    data = _DOMAIN + manifest
    if isinstance(key, rsa.RSAPrivateKey):
        return Signed(own.certificate, key.sign(data, _pss(), hashes.SHA256()))
    return Signed(own.certificate, key.sign(data, ec.ECDSA(hashes.SHA256())))


def check_signed(party: str, signed: Signed, manifest: bytes, own: Credentials | None) -> None:
    """Raise BundleInvalid unless `signed` is a valid signature of the manifest by `party`.

    With `own` credentials, the certificate in `signed` must also name `party` and come from an
    authority that `own` trusts.
    """
    wrong = f"the signature of {party} is not valid"
    if len(signed.chain) > MOST_CHAIN_BYTES or len(signed.signature) > MOST_SIGNATURE_BYTES:
        raise BundleInvalid(f"{wrong}: it is too long")
    try:
        leaf, *others = load_chain(signed.chain, Path(f"the certificate of {party}"))
        key = leaf.public_key()
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signed.signature, _DOMAIN + manifest, _pss(), hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signed.signature, _DOMAIN + manifest, ec.ECDSA(hashes.SHA256()))
        else:
            raise BundleInvalid(f"{wrong}: its key is of a kind that signs no bundle")
        if own is not None:
            _check_named(party, leaf, others, own)
    except InvalidSignature:
        raise BundleInvalid(f"{wrong}: it is of another manifest, or by another key") from None
    except (CertificateError, PeerRefused, UnsupportedAlgorithm, ValueError) as error:
        raise BundleInvalid(f"{wrong}: {error}") from None


def _check_named(
    party: str, leaf: x509.Certificate, others: list[x509.Certificate], own: Credentials
) -> None:
    if own.party_of(leaf, [party]) != party:
        raise BundleInvalid(
            f"the signature of {party} is made with the certificate of {described(leaf)}"
        )
    roots = [root for root in load_chain(own.authority, own.folder) if is_root(root)]
    path = ascent(leaf, [*others, *roots])
    if not any(root in path for root in roots):
        raise BundleInvalid(
            f"the signature of {party} is made with a certificate that is not of the authority in "
            f"{own.folder}"
        )
    own.check_peer(leaf, others)


def _pss() -> padding.PSS:
    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)
