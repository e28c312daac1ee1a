"""The cost of secure aggregation, beside the paper's figures and Flower's SecAgg+ utilities.

    python benchmarks/secure_aggregation.py [--peers-python PYTHON] [PART ...]

The parts: client, server, memory, bytes, sparse, simulation, peers; all of them without names.
``peers`` needs PYTHON, that of an environment made from ``requirements-peers.txt``. Work on one
core is measured in CPU seconds. The part ``simulation`` is measured by the clock, so it needs a
machine that does nothing else.

`Crowd` makes the messages of many clients for the server, without running the clients. Keys, shares
and tags are real, and so are the masks in the part ``server``. Noise replaces the encrypted shares,
which a server only passes on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.message import Message, encode
from fedveil.base.packing import pack
from fedveil.entropy import Seeded
from fedveil.secagg import Client, Server, Terms, keys, masking_graph, shamir
from fedveil.secagg.keys import KeyPair, pair_seed, public_key
from fedveil.secagg.masking import Ring, add_masks
from fedveil.secagg.phases import SEALED_BYTES, as_ids
from fedveil.secagg.secret import Secret
from fedveil.secagg.share_tags import KEY, SEED, TAG_BYTES, Tagger
from fedveil.secagg.view import keys_view, vectors_view
from figures import Figure, best_s, show
from new_process import last_line

PEER_SCRIPT = Path(__file__).parent / "peers" / "flower_secagg.py"
CLIENTS, ENTRIES = 500, 100_000
LARGEST = (1 << 15) - 1  # entries of 16 bits


def make_terms(clients: int, entries: int, threshold: int, neighbours: int | None = None) -> Terms:
    """Return the terms of a round of `clients` clients with entries of 16 bits."""
    return Terms(
        job=b"benchmark",
        round=1,
        length=entries,
        bits=Ring.for_sum(clients, LARGEST).bits,
        threshold=threshold,
        sharing=clients,
        neighbours=neighbours,
    )


class OneClient:
    """Runs one real client through a whole round, and times it. Its peers only have keys."""

    def __init__(self, terms: Terms, clients: int) -> None:
        self.seconds = 0.0
        self.bytes_up = 0
        entropy = Seeded(0, "one client")
        numbers = entropy.words(terms.length) % np.uint64(LARGEST)
        self._vector = numbers.astype(np.int64)
        self._round = {"round": terms.round}
        began = time.process_time()
        self._client = Client(0, terms, entropy)
        self.seconds += time.process_time() - began
        members = clients if terms.neighbours is None else terms.neighbours + 1
        self._play(terms, list(range(members)), entropy)

    def _ask(self, phase: str, **fields: Any) -> Message:
        began = time.process_time()
        answer = self._client.respond({**self._round, "phase": phase, **fields}, self._vector)
        self.seconds += time.process_time() - began
        self.bytes_up += len(encode(answer))
        return answer

    def _play(self, terms: Terms, ids: list[int], entropy: Seeded) -> None:
        mine = self._ask("advertise")
        ciphers = {i: KeyPair.draw(entropy) for i in ids[1:]}
        masks = {i: KeyPair.draw(entropy) for i in ids[1:]}
        self._ask(
            "share",
            clients=as_ids(ids),
            cipher_keys=_rows([mine["cipher_key"], *(p.public for p in ciphers.values())]),
            mask_keys=_rows([mine["mask_key"], *(p.public for p in masks.values())]),
        )
        to_me = public_key(bytes(mine["cipher_key"]))  # type: ignore[arg-type]
        public = {i: (ciphers[i].public, masks[i].public) for i in ids[1:]}
        view = keys_view(terms, public | {0: (mine["cipher_key"], mine["mask_key"])})  # type: ignore[dict-item]
        boxes, tags, tagger = [], [], Tagger(terms.context)
        for i, pair in ciphers.items():
            numbers = entropy.integers(shamir.PRIME, 2 * shamir.LIMBS)
            dealt = shamir.encode_shares(numbers.astype(np.uint64).reshape(2, shamir.LIMBS))
            key = keys.seal_key(pair.agree(to_me), view, i, 0)
            boxes.append(keys.seal(key, view, i, 0, dealt))
            tags.append(b"".join(tagger.tags([(i, 0)] * 2, (SEED, KEY), dealt)))
        answer = self._ask("masked", senders=as_ids(ids[1:]), sealed=_rows(boxes), tags=_rows(tags))
        assert len(answer["refused"]) == 0, "every box opens"  # type: ignore[arg-type]
        gone = ids[1 :: len(ids) // (len(ids) - terms.threshold) or 1][: len(ids) // 10]
        there = [i for i in ids if i not in set(gone)]
        self._ask("unmask", survivors=as_ids(there), dropped=as_ids(gone))


def _rows(rows: Sequence[Any]) -> np.ndarray:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)


class Crowd:
    """Makes the messages of `clients` clients on demand."""

    def __init__(self, terms: Terms, clients: int, *, true_masks: bool) -> None:
        entropy = Seeded(0, "crowd")
        self.terms, self.ids, self._true_masks = terms, list(range(clients)), true_masks
        self._entropy = entropy
        self._tagger = Tagger(terms.context)
        self._cipher = {i: KeyPair.draw(entropy).public for i in self.ids}
        self._mask = {i: KeyPair.draw(entropy) for i in self.ids}
        self._seeds = {i: Secret(entropy.token(32)) for i in self.ids}
        self._loaded = {i: public_key(pair.public) for i, pair in self._mask.items()}
        self._dealt: dict[int, bytes] = {}
        self._places: dict[int, Mapping[int, int]] = {}
        self._ring = Ring(terms.bits)
        self._vectors: dict[int, np.ndarray] = {}
        self._noise = entropy.token(4 * terms.length)

    def advertise(self, i: int, message: Message) -> dict[str, Any]:
        """Return two keys."""
        return {"cipher_key": self._cipher[i], "mask_key": self._mask[i].public}

    def share(self, i: int, message: Message) -> dict[str, Any]:
        """Deal real shares. Returns their real tags, and noise in place of encrypted shares."""
        members = message["clients"].tolist()  # type: ignore[union-attr]
        secrets = [self._seeds[i], self._mask[i].secret]
        dealt = shamir.split(secrets, self.terms.threshold, len(members), self._entropy)
        self._dealt[i] = data = shamir.encode_shares(dealt)
        self._places[i] = {member: place for place, member in enumerate(members)}
        ends = [(i, member) for member in members for _ in range(2)]
        tags = self._tagger.tags(ends, [SEED, KEY] * len(members), data)
        sealed = np.frombuffer(self._entropy.token(len(members) * SEALED_BYTES), np.uint8)
        rows = np.frombuffer(b"".join(tags), np.uint8).reshape(-1, TAG_BYTES)
        return {"sealed": sealed.reshape(len(members), SEALED_BYTES), "tags": rows}

    def masked(self, i: int, message: Message) -> dict[str, Any]:
        """Return the masked vector of client `i`, made once, or noise if masks are not real."""
        if i not in self._vectors:
            lanes = np.frombuffer(self._noise, self._ring.lane)[: self.terms.length].copy()
            if self._true_masks:
                lanes = self._ring.elements(self.plain(i))
                seeds = [(self._seeds[i].reveal(), True)]
                for peer in message["senders"].tolist():  # type: ignore[union-attr]
                    shared = self._mask[i].agree(self._loaded[peer])
                    seeds.append((pair_seed(shared, self._view, i, peer), i < peer))
                add_masks(lanes, seeds)
            self._ring.reduce(lanes)
            self._vectors[i if self._true_masks else -1] = pack(lanes, 0, self._ring.bits)
        vector = self._vectors[i if self._true_masks else -1]
        return {"vector": vector, "refused": as_ids([])}

    @cached_property
    def _view(self) -> bytes:
        """A digest of the keys that all clients see. Nobody drops out before the shares arrive."""
        public = {i: (self._cipher[i], self._mask[i].public) for i in self.ids}
        return vectors_view(self.terms, keys_view(self.terms, public), self.ids, b"")

    def plain(self, i: int) -> np.ndarray:
        """Return the vector of client `i` without masks."""
        return (np.arange(self.terms.length) * (i + 1)) % (2 * LARGEST + 1) - LARGEST

    def unmask(self, i: int, message: Message) -> dict[str, Any]:
        """Return the share of every neighbour that the server asks for."""
        gone = set(message["dropped"].tolist())  # type: ignore[union-attr]
        asked = sorted([*message["survivors"].tolist(), *gone])  # type: ignore[union-attr]
        size, shares = shamir.SHARE_BYTES, []
        for dealer in asked:
            at = (2 * self._places[dealer][i] + (dealer in gone)) * size
            shares.append(self._dealt[dealer][at : at + size])
        return {"shares": np.frombuffer(b"".join(shares), np.uint8).reshape(-1, size)}


@dataclass
class Served:
    """A server after a round, with its CPU seconds: all of them, and those of the unmasking."""

    server: Server
    seconds: float = 0.0
    unmasking: float = 0.0


def serve(crowd: Crowd, dropped: int) -> Served:
    """Run a round in which `dropped` clients drop out before they send their masked vector."""
    terms = crowd.terms
    served = Served(Server(terms, crowd.ids, Seeded(0, "graph")))
    server = served.server
    messages: Mapping[int, Message] | None = dict.fromkeys(crowd.ids, server.opening())
    while messages is not None:
        phase = str(server.phase)
        for i, message in messages.items():
            if phase == "masked" and i < dropped:
                continue
            said = getattr(crowd, phase)(i, message)
            began = time.process_time()
            server.receive(i, {"phase": phase, "round": terms.round, **said})
            served.seconds += time.process_time() - began
        began = time.process_time()
        messages = server.advance()
        served.unmasking = time.process_time() - began
        served.seconds += served.unmasking
    return served


def keystream_s(masks: int, entries: int, lane: np.dtype[Any]) -> float:
    """Return the CPU seconds to generate the bytes of `masks` masks, as the protocol does."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = 1 << 17
    zeros, buffer = bytes(block), memoryview(bytearray(block))
    size = entries * lane.itemsize
    began = time.process_time()
    for i in range(masks):
        cipher = Cipher(algorithms.AES(i.to_bytes(32, "little")), modes.CTR(bytes(16))).encryptor()
        for start in range(0, size, block):
            part = min(block, size - start)
            cipher.update_into(zeros[:part] if part < block else zeros, buffer[:part])
    return time.process_time() - began


def client_figures() -> Iterator[Figure]:
    """Measure one client among 500."""
    terms = make_terms(CLIENTS, ENTRIES, 2 * CLIENTS // 3 + 1)
    seconds = min(OneClient(terms, CLIENTS).seconds for _ in range(3))
    name = f"client: {CLIENTS} clients, {ENTRIES:,} entries (paper: 0.849 s)"
    yield Figure(name, seconds, "s", at_most=0.5)


def server_figures() -> Iterator[Figure]:
    """Measure the server of 500 clients at three dropout rates."""
    terms = make_terms(CLIENTS, ENTRIES, CLIENTS // 2 + 1)
    crowd = Crowd(terms, CLIENTS, true_masks=True)
    for percent, floor, paper in ((0, 0.8, 2.0), (10, 7, 62), (30, 16, 143)):
        dropped = CLIENTS * percent // 100
        served = min((serve(crowd, dropped) for _ in range(2)), key=lambda served: served.seconds)
        expected = sum(crowd.plain(i) for i in range(dropped, CLIENTS))
        assert (served.server.total() == expected).all(), "the sum is not exact"
        name = f"server: {percent}% dropped before masked (paper: {paper:g} s)"
        yield Figure(name, served.seconds, "s", at_most=floor)
        if dropped:
            masks = (CLIENTS - dropped) * (1 + dropped)
            alone = keystream_s(masks, ENTRIES, served.server.ring.lane)
            name = f"  unmasking over the keystream of its {masks:,} masks alone"
            yield Figure(name, served.unmasking / alone, "times", at_most=2.5)


def memory_figures() -> Iterator[Figure]:
    """Check that masked vectors are added to the sum as they arrive, and freed."""
    peaks = []
    for clients in (20, 80):
        terms = make_terms(80, 1_000_000, 11)
        crowd = Crowd(terms, clients, true_masks=False)
        crowd.masked(0, {})  # all clients send this one vector, which is not the server's memory
        tracemalloc.start()
        serve(crowd, 0)
        peaks.append(tracemalloc.get_traced_memory()[1] / 1e6)
        tracemalloc.stop()
    yield Figure("server: peak memory, 20 clients, 1,000,000 entries", peaks[0], "MB")
    yield Figure("server: peak memory of 80 clients over that", peaks[1] / peaks[0], "times", 1.2)


def bytes_figures() -> Iterator[Figure]:
    """Measure the bytes sent by one of 1,024 clients."""
    entries = 1 << 20
    one = OneClient(make_terms(1024, entries, 683), 1024)
    name = "bytes a client sends: 1,024 clients, 2^20 entries (paper: 1.73)"
    yield Figure(name, one.bytes_up / (2 * entries), "x raw", at_most=1.75)


def sparse_figures() -> Iterator[Figure]:
    """Measure a client and the whole server in the sparse graph of 1,000 and of 10,000 clients."""
    client_s, server_s = {}, {}
    for clients in (1_000, 10_000):
        planned = max(clients, masking_graph.COMPLETE_UP_TO + 1)
        threshold = masking_graph.default_threshold(planned)
        degree = masking_graph.automatic(planned, threshold)
        assert degree is not None
        terms = make_terms(clients, ENTRIES, threshold, degree)
        client_s[clients] = min(OneClient(terms, clients).seconds for _ in range(5))
        yield Figure(f"sparse, {clients:,} clients: neighbours", degree, "")
        yield Figure(f"sparse, {clients:,} clients: client", client_s[clients], "s")
        crowd = Crowd(terms, clients, true_masks=False)
        server_s[clients] = serve(crowd, clients // 10).seconds
        yield Figure(f"sparse, {clients:,} clients, 10% dropped: server", server_s[clients], "s")
    one, ten = client_s.values()
    yield Figure("sparse: client at 10,000 over 1,000", ten / one, "times", at_most=1.5)
    one, ten = server_s.values()
    yield Figure("sparse: server at 10,000 over ten times 1,000", ten / one / 10, "times", 1.3)


def images() -> dict[str, Any]:
    """Return noise in the shape of MNIST: 60 examples for each of 100 clients."""
    draw = Seeded(0, "images").generator()
    x = draw.normal(size=(6_100, 1, 28, 28)).astype(np.float32)
    y = draw.integers(0, 10, len(x))
    return {"x_train": x[100:], "y_train": y[100:], "x_test": x[:100], "y_test": y[:100]}


def simulation_figures() -> Iterator[Figure]:
    """Measure whole simulated rounds, training included, with two worker processes."""
    import fedveil

    for name, seconds in (("pw_encrypt", 5.0), ("not_encrypt", None)):
        job = fedveil.Job(
            rounds=4,
            clients={"number": 100, "fraction": 1.0},
            data={"name": "secure_aggregation:images"},
            model="lenet",
            training={"epochs": 1},
            protection={
                "name": name,
                "pw_encrypt": {"reconstruct_secrets_threshold": 67, "neighbours": "complete"},
            },
            simulation={"workers": 2, "dropouts": {"masked": 0.1}},
            evaluation={"every": 4},
        )
        with tempfile.TemporaryDirectory() as folder:
            run = fedveil.simulate(job, Path(folder) / "run")
        fastest = min(record["seconds_round"] for record in run.metrics[1:])
        title = f"simulated round, 100 clients x 61,706, two workers, {name}"
        yield Figure(title, fastest, "s", at_most=seconds)


def peer_figures(python: str) -> Iterator[Figure]:
    """Run Flower's own utilities in their own environment. Yields their times over ours."""
    theirs = last_line(python, PEER_SCRIPT)
    ours = {"mask_s": masking_s(), **shamir_s()}
    titles = {
        "mask_s": "client masking, 1,000,000 entries, 100 neighbours",
        "share_s": "Shamir 51 of 100, two secrets: sharing",
        "join_s": "Shamir 51 of 100, two secrets: joining",
    }
    for key, title in titles.items():
        yield Figure(f"{title}: ours", 1000 * ours[key], "ms")
        yield Figure(f"  flwr {theirs['version']}", 1000 * theirs[key], "ms")
        yield Figure("  theirs over ours", theirs[key] / ours[key], "times", at_least=5)


def masking_s() -> float:
    """Return the CPU seconds of a client's own mask, and of 100 key agreements and their masks."""
    entropy, view = Seeded(0), bytes(32)
    pair = KeyPair.draw(entropy)
    peers = [KeyPair.draw(entropy).public for _ in range(100)]
    lanes = np.zeros(1_000_000, Ring.for_sum(101, LARGEST).lane)

    def work() -> None:
        seeds = [(bytes(32), True)]
        for i, peer in enumerate(peers, 1):
            seeds.append((pair_seed(pair.agree(public_key(peer)), view, 0, i), i % 2 == 0))
        add_masks(lanes, seeds)

    return best_s(work, clock=time.process_time)


def shamir_s() -> dict[str, float]:
    """Return the seconds to share two 32-byte secrets among 100, and to recover them from 51."""
    entropy = Seeded(0)
    secrets = [Secret(entropy.token(32)) for _ in range(2)]
    shares = shamir.split(secrets, 51, 100, entropy)
    some = np.ascontiguousarray(shares[:51].transpose(1, 0, 2))
    points = np.arange(1, 52)
    clock = time.process_time
    return {
        "share_s": best_s(lambda: shamir.split(secrets, 51, 100, entropy), clock=clock),
        "join_s": best_s(lambda: shamir.join(points, some), clock=clock),
    }


PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "client": client_figures,
    "server": server_figures,
    "memory": memory_figures,
    "bytes": bytes_figures,
    "sparse": sparse_figures,
    "simulation": simulation_figures,
}


def main() -> int:
    """Print the figures. Returns the exit status: 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join([*PARTS, "peers"]))
    parser.add_argument("--peers-python", help="the Python with the peers")
    arguments = parser.parse_args()
    chosen = arguments.parts or [*PARTS, *(["peers"] if arguments.peers_python else [])]
    if unknown := set(chosen) - {*PARTS, "peers"}:
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    if "peers" in chosen and not arguments.peers_python:
        parser.error("the part peers needs --peers-python")
    missed = 0
    for part in chosen:
        missed |= show(peer_figures(arguments.peers_python) if part == "peers" else PARTS[part]())
    return missed


if __name__ == "__main__":
    sys.exit(main())
