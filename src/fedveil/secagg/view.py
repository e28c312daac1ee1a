"""The view: everything that a client has been shown of a round, as one digest.

Everything that a server could present differently to different clients goes into the digest, and
common values are derived from it: boxes of shares from what was shown before them, masks from all
that was shown before them. Two clients that were shown different things therefore cannot open each
other's boxes, or have masks that do not cancel, and their sum stays noise. It costs a hash of the
neighbourhood's keys, and no phase.

By itself that does not stop a lying server: it knows every view, so that the keys of enough clients
still remove masks, and it may have replaced clients' keys by its own. Active security rests on the
digest all the same: each client signs its view with the survivors that it was shown, and t
survivors must have signed equal ones before it discloses a share.

Why that is enough for 2t > n + c, with n clients that share secrets and c of them on the server's
side: a client u is opened alone only if t - c honest clients disclose shares of its seed, and each
of its masks is known by the key that u was shown for the peer. A peer whose key is known is not
among those that disclose. If it were, t - c honest clients, itself among them, would have signed
its view with a list that names it and so disclose its seed, and of the n that hold its shares fewer
than t - c are left for its key. So u was shown t - 1 - c such peers, t - c clients that disclose,
itself, and the c: 2t - c clients, where n are allowed. The same count for a group that is opened
together gives at least t - c of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from fedveil.base.message import Value, encode
from fedveil.secagg.phases import as_ids, as_rows
from fedveil.secagg.terms import Terms


def keys_view(terms: Terms, public: Mapping[int, tuple[bytes, bytes]]) -> bytes:
    """Return the digest of what clients are shown before shares are dealt.

    It covers the terms and, in the complete graph, all keys (`public`). In a sparse graph
    neighbours have different neighbourhoods, so they have only the terms in common.
    """
    fields: dict[str, Value] = {"context": terms.context}
    if terms.neighbours is None:
        clients = sorted(public)
        fields["clients"] = as_ids(clients)
        for i, name in enumerate(("cipher_keys", "mask_keys")):
            fields[name] = as_rows([public[c][i] for c in clients], len(public[clients[0]][i]))
    return _digest(fields)


def vectors_view(terms: Terms, keys: bytes, sharers: Sequence[int], origin: bytes) -> bytes:
    """Return the digest of what clients are shown before vectors are masked.

    It covers `keys`, the digest of `keys_view`; `origin`, the digest of what the vectors are made
    from; and, in the complete graph, the clients that share secrets (`sharers`).
    """
    fields: dict[str, Value] = {"keys": keys, "origin": origin}
    if terms.neighbours is None:
        fields["sharers"] = as_ids(sharers)
    return _digest(fields)


def _digest(fields: Mapping[str, Value]) -> bytes:
    return hashlib.sha256(b"fedveil secure aggregation view" + encode(fields)).digest()
