"""Removal of masks from a sum: the server's heavy work, in one process or several.

Run as a program, this module does the work of a `Helper`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.base.message import Message, decode, encode, take
from fedveil.secagg.helper_process import Helper
from fedveil.secagg.keys import KEY_BYTES, KeyPair, pair_seed, public_key
from fedveil.secagg.masking import Lanes, Ring, add_masks
from fedveil.secagg.phases import as_ids, as_rows, as_table, take_ids, take_table
from fedveil.secagg.secret import SECRET_BYTES, Secret

_SEEDS_AT_ONCE = 4096


@dataclass(frozen=True, repr=False)
class Masks:
    """Masks to be removed from a sum.

    `view`: the digest of what clients were shown. `seeds`: the seeds of the survivors' own masks.
    `pairs`: for each client that dropped out, its mask key and the survivors that masked with it.
    `public`: the survivors' public mask keys.
    """

    view: bytes
    seeds: Sequence[Secret]
    pairs: Mapping[int, tuple[Secret, Sequence[int]]]
    public: Mapping[int, bytes]

    def remove_from(self, total: Lanes, ring: Ring, helpers: Sequence[Helper] = ()) -> None:
        """Remove the masks. Each helper does as much as this process."""
        mine, *theirs = self._parts(1 + len(helpers))
        for helper, part in zip(helpers, theirs, strict=True):
            helper.give(encode(part.to_message(ring, len(total))))
        mine._remove(total)
        for helper in helpers:
            total += np.frombuffer(helper.result(), total.dtype)

    def _parts(self, count: int) -> list[Masks]:
        """Split the work into `count` parts of about equal size."""
        parts = []
        for i in range(count):
            pairs = {client: (key, peers[i::count]) for client, (key, peers) in self.pairs.items()}
            parts.append(Masks(self.view, self.seeds[i::count], pairs, self.public))
        return parts

    def _remove(self, total: Lanes) -> None:
        signed = [(seed.reveal(), False) for seed in self.seeds]
        loaded = {client: public_key(raw) for client, raw in self.public.items()}
        for client, (secret, peers) in self.pairs.items():
            pair = KeyPair(secret)
            for peer in peers:
                seed = pair_seed(pair.agree(loaded[peer]), self.view, client, peer)
                # The survivor added the mask if its number is the smaller one.
                signed.append((seed, client < peer))
            if len(signed) > _SEEDS_AT_ONCE:
                add_masks(total, signed)
                signed.clear()
        add_masks(total, signed)

    def to_message(self, ring: Ring, length: int) -> Message:
        """Encode this work, on a vector of `length` entries, for a helper process."""
        secrets = {client: secret.reveal() for client, (secret, _) in self.pairs.items()}
        return {
            "view": self.view,
            "bits": ring.bits,
            "length": length,
            "seeds": as_rows([seed.reveal() for seed in self.seeds], SECRET_BYTES),
            **as_table("survivors", "public", self.public, KEY_BYTES),
            **as_table("dropped", "secrets", secrets, SECRET_BYTES),
            **{f"peers {client}": as_ids(peers) for client, (_, peers) in self.pairs.items()},
        }

    @classmethod
    def from_message(cls, fields: Message) -> tuple[Masks, Ring, int]:
        """Decode a message made by `to_message`."""
        secrets = take_table(fields, "dropped", "secrets", SECRET_BYTES)
        masks = cls(
            take(fields, "view", bytes),
            [Secret(row.tobytes()) for row in take(fields, "seeds", np.ndarray)],
            {c: (Secret(raw), take_ids(fields, f"peers {c}")) for c, raw in secrets.items()},
            take_table(fields, "survivors", "public", KEY_BYTES),
        )
        return masks, Ring(take(fields, "bits", int)), take(fields, "length", int)


def main() -> None:
    """Serve one piece of work. Does nothing if the round ended before."""
    work = sys.stdin.buffer.read()
    if not work:
        return
    masks, ring, length = Masks.from_message(decode(work))
    total = np.zeros(length, ring.lane)
    masks._remove(total)
    sys.stdout.buffer.write(total.data)


if __name__ == "__main__":
    main()
