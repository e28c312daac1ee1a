"""The mathematics under the protections, each usable alone on NumPy arrays."""

from fedveil.mechanisms.adaptive import AdaptiveBudget
from fedveil.mechanisms.embedding import EmbeddingDP
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.mechanisms.label import LabelDP
from fedveil.mechanisms.magnitude import MagnitudeEstimator
from fedveil.mechanisms.response import BinaryRandomizedResponse
from fedveil.mechanisms.selection import SignDS
from fedveil.mechanisms.unary import UnaryEncoding

__all__ = [
    "AdaptiveBudget",
    "BinaryRandomizedResponse",
    "EmbeddingDP",
    "GaussianMechanism",
    "LabelDP",
    "MagnitudeEstimator",
    "SignDS",
    "UnaryEncoding",
]
