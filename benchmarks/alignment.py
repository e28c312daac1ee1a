"""Time, processor time and memory of private set intersection between two processes.

    python benchmarks/alignment.py [--ids 100000] [--ids 1000000]      1 minute, and about 7
    python benchmarks/alignment.py --ids 1000000 --only peer           one of the two programs

Leader and follower have the same number of ids, half of them in common. Each has one core, and gRPC
on loopback with mutual TLS connects them. Memory is the peak of each process, including its ids and
its imports. Processor time is that of both parties during the intersection, without imports. If
openmined-psi is installed (`pip install openmined-psi`), it intersects the same ids in the same
run, in two processes connected by a pipe.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np

from fedveil.link.channel import drive
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.own_authority import write_certificates
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.vertical.remote import handshake
from fedveil.vertical.remote.handshake import Standing
from figures import Figure, show
from new_process import SPAWN, alone, memory_mb

LEADER_CORE, FOLLOWER_CORE = 0, 1
#: Number of ids -> the most seconds and megabytes of a party.
FLOORS = {100_000: (18.0, None), 1_000_000: (200.0, 500.0)}
#: The most processor time, as a share of the peer's in the same run.
MOST_OF_PEER = 0.75
PEER = "private_set_intersection"


def ids_of(party: str, count: int) -> np.ndarray:
    """Return `count` telephone numbers for a party. The other party has half of them, too."""
    start = 491_700_000_000 + (0 if party == "leader" else count // 2)
    return np.arange(start, start + count).astype(np.str_)


def standing(party: Literal["leader", "bank"], count: int) -> Standing:
    ids = ids_of(party, count)
    run = bytes(16) if party == "leader" else b""
    return Standing(
        party=party, job={}, parts={}, ids={"train": ids, "test": np.zeros(1, int)}, run=run
    )


def follower(port: int, folder: str, count: int, told: Connection) -> None:
    os.sched_setaffinity(0, {FOLLOWER_CORE})
    link = Link("leader")
    with Dialer(Address("127.0.0.1", port), link, "bank", Credentials.read(Path(folder), "bank")):
        mine, began = standing("bank", count), time.process_time()
        drive(handshake.follow(mine, "leader"), {"leader": link})
        told.send((memory_mb(), time.process_time() - began))
        link.receive()


def leader(count: int, told: Connection) -> None:
    os.sched_setaffinity(0, {LEADER_CORE})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_certificates(folder, ["leader", "bank"])
        link = Link("bank")
        own = Credentials.read(folder, "leader")
        place = Address("127.0.0.1", 0)
        listener = stack.enter_context(Listener(place, {"bank": link}, "leader", own, print))
        here, there = SPAWN.Pipe()
        arguments = (listener.address.port, str(folder), count, there)
        other = SPAWN.Process(target=follower, args=arguments)
        other.start()
        mine = standing("leader", count)
        leading = handshake.lead(mine, ("bank",), attempt=1, purpose="train", order_seed=0)
        began, used = time.perf_counter(), time.process_time()
        agreed = drive(leading, {"bank": link})
        seconds, used = time.perf_counter() - began, time.process_time() - used
        found = len(agreed.examples.positions["train"])
        assert found == count - count // 2, found
        followers_mb, followers_used = here.recv()
        told.send((seconds, used + followers_used, memory_mb(), followers_mb))
        link.send({"kind": "end"})
        other.join()


def peers_server(count: int, pipe: Connection) -> None:
    import private_set_intersection.python as psi

    os.sched_setaffinity(0, {FOLLOWER_CORE})
    server = psi.server.CreateWithNewKey(True)
    ids = ids_of("bank", count).tolist()
    pipe.send("ready")
    pipe.recv()
    began = time.process_time()
    setup = server.CreateSetupMessage(1e-9, count, ids, psi.DataStructure.RAW)
    pipe.send_bytes(setup.SerializeToString())
    request = psi.Request()
    request.ParseFromString(pipe.recv_bytes())
    pipe.send_bytes(server.ProcessRequest(request).SerializeToString())
    pipe.send(time.process_time() - began)


def peers_client(count: int, told: Connection) -> None:
    import private_set_intersection.python as psi

    os.sched_setaffinity(0, {LEADER_CORE})
    here, there = SPAWN.Pipe()
    other = SPAWN.Process(target=peers_server, args=(count, there))
    other.start()
    client = psi.client.CreateWithNewKey(True)
    ids = ids_of("leader", count).tolist()
    here.recv()
    began, used = time.perf_counter(), time.process_time()
    here.send("begin")
    request = client.CreateRequest(ids).SerializeToString()
    setup, response = psi.ServerSetup(), psi.Response()
    setup.ParseFromString(here.recv_bytes())
    here.send_bytes(request)
    response.ParseFromString(here.recv_bytes())
    found = len(client.GetIntersection(setup, response))
    assert found == count - count // 2, found
    seconds, used = time.perf_counter() - began, time.process_time() - used
    told.send((seconds, used + here.recv()))
    other.join()


def figures(counts: list[int], only: str | None) -> Iterator[Figure]:
    for count in counts:
        most_s, most_mb = FLOORS.get(count, (None, None))
        most_used = None
        if find_spec(PEER) is not None and only != "ours":
            peer_s, peer_used = alone(peers_client, count)
            yield Figure(f"openmined-psi, {count:,} ids each", peer_s, "s")
            yield Figure("  processor, both parties", peer_used, "s")
            most_s, most_used = min(peer_s, most_s or peer_s), MOST_OF_PEER * peer_used
        if only == "peer":
            continue
        seconds, used, leaders_mb, followers_mb = alone(leader, count)
        yield Figure(f"intersection, {count:,} ids each", seconds, "s", at_most=most_s)
        yield Figure("  processor, both parties", used, "s", at_most=most_used)
        yield Figure("  the leader's memory", leaders_mb, "MB", at_most=most_mb)
        yield Figure("  the follower's memory", followers_mb, "MB", at_most=most_mb)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, action="append", help="number of ids of each party")
    parser.add_argument("--only", choices=["ours", "peer"], help="measure only one of both")
    given = parser.parse_args()
    if given.ids and min(given.ids) < 1:
        parser.error(f"--ids is {min(given.ids):,}. Use a number of 1 or more")
    return show(figures(given.ids or [100_000], given.only))


if __name__ == "__main__":
    sys.exit(main())
