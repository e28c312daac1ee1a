"""Proofs that several points were raised to the same exponent, without revealing the exponent.

A party has received points B_i, such as another party's blinded ids, and shows the points
D_i = k B_i (B_i to the power k, in additive notation). K = k G is its commitment to k, for the
group's generator G. The proof is that of Chaum and Pedersen (1992), batched as in RFC 9497,
2.2.1:

    M = Σ d_i B_i,   Z = Σ d_i D_i       with weights d_i hashed from K and all points
    prover:    draws r, sends c = hash(K, M, Z, r G, r M) and s = r - c k
    verifier:  c = hash(K, M, Z, s G + c K, s M + c Z)

A prover who succeeds knows k. If any D_i is not k B_i, an attempt succeeds with probability about
2^-128, as the weights have 128 bits. Both statements hold in the random-oracle model.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fedveil.entropy import Entropy
from fedveil.errors import MessageInvalid
from fedveil.vertical.ristretto.point_batches import Points

SCALAR_BYTES = 32
PROOF_BYTES = 2 * SCALAR_BYTES
WEIGHT_BYTES = 16

Point = bytes
Scalar = bytes


def prove(
    group: Any, exponent: Scalar, commitment: Point, weighted: Point, entropy: Entropy
) -> bytes:
    """Return a proof that a point Z is k times the point M, for a secret scalar k.

    `exponent` is k, and `weighted` is M. `commitment` is k G, with the group's generator G. `group`
    is the library of the group. The verifier must know M, Z and k G, but does not learn k.
    `entropy` is for the random number in the proof.
    """
    drawn = group.crypto_core_ristretto255_scalar_reduce(entropy.token(64))
    raised = group.crypto_scalarmult_ristretto255(exponent, weighted)
    challenge = _challenge(
        group, commitment, weighted, raised,
        group.crypto_scalarmult_ristretto255_base(drawn),
        group.crypto_scalarmult_ristretto255(drawn, weighted),
    )  # fmt: skip
    product = group.crypto_core_ristretto255_scalar_mul(challenge, exponent)
    response: bytes = group.crypto_core_ristretto255_scalar_sub(drawn, product)
    return challenge + response


def check(group: Any, commitment: Point, weighted: Point, raised: Point, proof: bytes) -> None:
    """Raise `MessageInvalid` unless `proof` shows that `raised` is k times the point `weighted`.

    k is the scalar for which `commitment` is k G, with the group's generator G. `group` is the
    library of the group.
    """
    if len(proof) != PROOF_BYTES:
        raise MessageInvalid(f"its proof has {len(proof)} bytes")
    challenge, response = proof[:SCALAR_BYTES], proof[SCALAR_BYTES:]
    times, add = group.crypto_scalarmult_ristretto255, group.crypto_core_ristretto255_add
    try:
        one = add(group.crypto_scalarmult_ristretto255_base(response), times(challenge, commitment))
        other = add(times(response, weighted), times(challenge, raised))
    except (RuntimeError, ValueError, TypeError):
        raise MessageInvalid(
            "its proof contains 32 bytes that are not a point of the group"
        ) from None
    if _challenge(group, commitment, weighted, raised, one, other) != challenge:
        raise MessageInvalid("its proof of the common examples is wrong")


def weights(commitment: Point, points: Points, raised: Points, domain: bytes) -> Points:
    """Return a weight of 128 bits for each pair of `points[i]` and its power `raised[i]`.

    A weight is a row of bytes, the most significant first: a hash of `commitment`, all points and
    `domain`, which says what the proof is for. So nobody can choose points to suit the weights.
    """
    seed = hashlib.sha512(b"fedveil: weights\0" + domain + commitment)
    for rows in (points, raised):
        seed.update(np.ascontiguousarray(rows).data)
    start = seed.digest()
    drawn = b"".join(
        hashlib.sha256(start + i.to_bytes(8, "little")).digest()[WEIGHT_BYTES - 1 :: -1]
        for i in range(len(points))
    )
    return np.frombuffer(drawn, np.uint8).reshape(-1, WEIGHT_BYTES)


def _challenge(group: Any, *points: Point) -> Scalar:
    digest = hashlib.sha512(b"fedveil: challenge\0" + b"".join(points)).digest()
    scalar: bytes = group.crypto_core_ristretto255_scalar_reduce(digest)
    return scalar
