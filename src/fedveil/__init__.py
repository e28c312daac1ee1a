"""Federated learning in which the protection of what leaves a client is one switch."""

from fedveil._version import __version__

__all__ = ["__version__"]
