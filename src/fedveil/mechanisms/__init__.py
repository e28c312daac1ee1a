"""Privacy mechanisms on NumPy arrays. You can use them without any other part of fedveil."""

from fedveil.mechanisms.adaptive_budget import AdaptiveBudget
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.mechanisms.randomized_response import BinaryRandomizedResponse
from fedveil.mechanisms.signds.dimension_selection import SignDS
from fedveil.mechanisms.signds.step_estimate import MagnitudeEstimator
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.mechanisms.unclipped_sum import GaussianSum

__all__ = [
    "AdaptiveBudget",
    "BinaryRandomizedResponse",
    "EmbeddingDP",
    "GaussianMechanism",
    "GaussianSum",
    "LabelDP",
    "MagnitudeEstimator",
    "SignDS",
    "UnaryEncoding",
]
