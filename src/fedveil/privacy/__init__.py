"""Privacy accounting: (epsilon, delta) guarantees, and the joint cost of several releases."""

from fedveil.privacy.compose import compose
from fedveil.privacy.guarantee_strength import Figure, attacker_wrong, epsilon_text, promise
from fedveil.privacy.ledger import Ledger, project
from fedveil.privacy.loss import Described, Gaussian, PrivacyLoss, format_epsilon
from fedveil.privacy.loss_distribution import LossDistribution
from fedveil.privacy.sampled_gaussian import SampledGaussian

__all__ = [
    "Described",
    "Figure",
    "Gaussian",
    "Ledger",
    "LossDistribution",
    "PrivacyLoss",
    "SampledGaussian",
    "attacker_wrong",
    "compose",
    "epsilon_text",
    "format_epsilon",
    "project",
    "promise",
]
