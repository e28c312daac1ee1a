"""The settings of Ray's nodes on this machine."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from typing import Any

#: Ports that a node's helper processes use. A node that must wait for one to choose its own port
#: gives up after 15 seconds, which a busy machine exceeds.
_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
#: A node's shared memory for objects.
STORE_BYTES = 80 << 20

# Ray's nodes read these. By default their workers give way to every other process.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "40")
os.environ.setdefault("RAY_worker_niceness", "0")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def node(cores: int, **more: Any) -> dict[str, Any]:
    """Return the settings of a node with free ports, for Ray's `Cluster.add_node`."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in _PORTS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = {name: s.getsockname()[1] for name, s in zip(_PORTS, sockets, strict=True)}
    return {"num_cpus": cores, "object_store_memory": STORE_BYTES, **ports, **more}


def added(cluster: Any, settings: dict[str, Any]) -> Any:
    """Add a node to Ray's `cluster`, and return it. Tries three times.

    A node also gives up if its helper processes need more than 15 seconds to start.
    """
    for _ in range(2):
        with suppress(Exception):  # Ray raises nothing narrower
            return cluster.add_node(**settings)
    return cluster.add_node(**settings)
