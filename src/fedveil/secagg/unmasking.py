"""Taking the masks off a sum: the server's heavy work, in one process or several.

Run as a program, this module does the part of a `Helper`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.message import Message, Value, decode, encode, take
from fedveil.secagg.helper_process import Helper
from fedveil.secagg.keys import KEY_BYTES, KeyPair, pair_seed, public_key
from fedveil.secagg.masking import Lanes, Ring, add_masks
from fedveil.secagg.secret import SECRET_BYTES, Secret

_SEEDS_AT_ONCE = 4096


@dataclass(frozen=True, repr=False)
class Masks:
    """Masks that are in a sum and must come off it.

    `seeds`: the seeds of the survivors' own masks. `pairs`: for each client that dropped out, its
    mask key and the survivors that masked with it. `public`: the survivors' public mask keys.
    """

    context: bytes
    seeds: Sequence[Secret] = ()
    pairs: Mapping[int, tuple[Secret, Sequence[int]]] = field(default_factory=dict)
    public: Mapping[int, bytes] = field(default_factory=dict)

    def remove_from(self, total: Lanes, ring: Ring, helpers: Sequence[Helper] = ()) -> None:
        """Take the masks off; each helper does as much as this process."""
        mine, *theirs = self._parts(1 + len(helpers))
        for helper, part in zip(helpers, theirs, strict=True):
            helper.give(encode(part.to_message(ring, len(total))))
        mine._remove(total)
        for helper in helpers:
            total += np.frombuffer(helper.result(), total.dtype)

    def _parts(self, count: int) -> list[Masks]:
        """The work in so many parts of about the same size."""
        slices: list[dict[int, tuple[Secret, Sequence[int]]]] = [{} for _ in range(count)]
        for client, (secret, peers) in self.pairs.items():
            for i in range(count):
                slices[i][client] = (secret, peers[i::count])
        return [
            Masks(self.context, self.seeds[i::count], slices[i], self.public) for i in range(count)
        ]

    def _remove(self, total: Lanes) -> None:
        signed = [(seed.reveal(), False) for seed in self.seeds]
        loaded = {client: public_key(raw) for client, raw in self.public.items()}
        for client, (secret, peers) in self.pairs.items():
            pair = KeyPair(secret)
            for peer in peers:
                seed = pair_seed(pair.agree(loaded[peer]), self.context, client, peer)
                # The survivor has added the mask where its number is the smaller one.
                signed.append((seed, client < peer))
            if len(signed) > _SEEDS_AT_ONCE:
                add_masks(total, signed)
                signed.clear()
        add_masks(total, signed)

    def to_message(self, ring: Ring, length: int) -> Message:
        """This work, on a vector of that length, for a helper process."""
        fields: dict[str, Value] = {"context": self.context, "bits": ring.bits, "length": length}
        fields["seeds"] = b"".join(seed.reveal() for seed in self.seeds)
        fields["survivors"] = np.array(list(self.public), np.int64)
        fields["public"] = b"".join(self.public.values())
        fields["dropped"] = np.array(list(self.pairs), np.int64)
        fields["secrets"] = b"".join(secret.reveal() for secret, _ in self.pairs.values())
        fields["counts"] = np.array([len(peers) for _, peers in self.pairs.values()], np.int64)
        peers = [peer for _, some in self.pairs.values() for peer in some]
        fields["peers"] = np.array(peers, np.int64)
        return fields

    @classmethod
    def from_message(cls, fields: Message) -> tuple[Masks, Ring, int]:
        """The inverse of `to_message`."""
        survivors, dropped, counts, peers = (
            take(fields, name, np.ndarray) for name in ("survivors", "dropped", "counts", "peers")
        )
        parts = np.split(peers, np.cumsum(counts))[: len(counts)]
        secrets = _secrets(take(fields, "secrets", bytes))
        pairs = zip(secrets, [part.tolist() for part in parts], strict=True)
        public = _cut(take(fields, "public", bytes), KEY_BYTES)
        masks = cls(
            take(fields, "context", bytes),
            _secrets(take(fields, "seeds", bytes)),
            dict(zip(dropped.tolist(), pairs, strict=True)),
            dict(zip(survivors.tolist(), public, strict=True)),
        )
        return masks, Ring(take(fields, "bits", int)), take(fields, "length", int)


def _secrets(data: bytes) -> list[Secret]:
    return [Secret(part) for part in _cut(data, SECRET_BYTES)]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def main() -> None:
    """Serve one piece of work; none comes where the round ends before."""
    work = sys.stdin.buffer.read()
    if not work:
        return
    masks, ring, length = Masks.from_message(decode(work))
    total = np.zeros(length, ring.lane)
    masks._remove(total)
    sys.stdout.buffer.write(total.data)


if __name__ == "__main__":
    main()
