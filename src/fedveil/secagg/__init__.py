"""Secure aggregation: the server learns the sum of the clients' vectors, and nothing else.

This holds for a server that follows the protocol and, with active security, for a server that lies.

The protocol is double masking with shared secrets (Bonawitz et al., Practical Secure Aggregation
for Privacy-Preserving Machine Learning, 2017), on the complete graph or on a sparse one (Bell et
al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, 2020). `Client` and `Server`
are state machines that send nothing themselves. `run_round` runs a whole round in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.base.lazy import lazy

if TYPE_CHECKING:
    from fedveil.secagg.client import Client
    from fedveil.secagg.in_memory_round import SecureSum, run_round
    from fedveil.secagg.keys import Identity
    from fedveil.secagg.server import Server
    from fedveil.secagg.terms import Terms

__all__ = ["Client", "Identity", "SecureSum", "Server", "Terms", "run_round"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "fedveil.secagg.client": ["Client"],
        "fedveil.secagg.in_memory_round": ["SecureSum", "run_round"],
        "fedveil.secagg.keys": ["Identity"],
        "fedveil.secagg.server": ["Server"],
        "fedveil.secagg.terms": ["Terms"],
    },
)
