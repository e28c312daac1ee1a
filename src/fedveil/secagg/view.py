"""The view: everything that a client has been shown in a round, as one digest.

In the complete graph, the digest covers everything that a server could show differently to
different clients. In a sparse graph, it covers only what must be equal for all clients. Two clients
derive their mask, and the key that encrypts their shares, from the digest of what they were shown
before. So clients with different views cannot decrypt each other's shares, and their masks do not
cancel.

This alone does not stop a lying server, which can replace clients' keys by its own. With active
security, each client signs its view together with the survivors that it was shown, and discloses a
share only if enough survivors (the threshold) have signed the same text.
"""

# Why this is enough if 2t > n + c, where t is the threshold, n clients share secrets, and c of them
# collude with the server. To unmask a client u alone, the server needs shares of u's seed from t -
# c honest clients, and for each of u's pairwise masks the secret of the key that u was shown for
# the peer. A peer whose secret is known does not disclose shares. Proof: otherwise t - c honest
# clients, the peer among them, have signed the peer's view with a list that names the peer as a
# survivor, so they disclose shares of its seed. Fewer than t - c honest holders are left to
# disclose shares of its mask key. So u was shown t - 1 - c peers whose secrets are known, t - c
# honest clients that disclose shares, itself, and the c colluding clients. These are 2t - c
# clients, but u accepts only n. The same count for a group of clients that is unmasked together
# gives at least t - c members.

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from fedveil.base.message import Value, encode
from fedveil.secagg.phases import as_ids, as_rows
from fedveil.secagg.terms import Terms


def keys_view(terms: Terms, public: Mapping[int, tuple[bytes, bytes]]) -> bytes:
    """Return the digest of what the server shows to clients before they deal shares.

    It covers the terms and, in the complete graph, each client's two public keys (`public`). In a
    sparse graph it covers only the terms, because clients have different neighbourhoods.
    """
    fields: dict[str, Value] = {"context": terms.context}
    if terms.neighbours is None:
        clients = sorted(public)
        fields["clients"] = as_ids(clients)
        for i, name in enumerate(("cipher_keys", "mask_keys")):
            fields[name] = as_rows([public[c][i] for c in clients], len(public[clients[0]][i]))
    return _digest(fields)


def vectors_view(terms: Terms, keys: bytes, sharers: Sequence[int], origin: bytes) -> bytes:
    """Return the digest of what the server shows to clients before they mask vectors.

    The digest covers `keys` (the digest of `keys_view`), `origin` (a digest of the public values
    from which the vectors are computed, such as the model) and, in the complete graph, `sharers`
    (the clients that share secrets).
    """
    fields: dict[str, Value] = {"keys": keys, "origin": origin}
    if terms.neighbours is None:
        fields["sharers"] = as_ids(sharers)
    return _digest(fields)


def _digest(fields: Mapping[str, Value]) -> bytes:
    return hashlib.sha256(b"fedveil secure aggregation view" + encode(fields)).digest()
