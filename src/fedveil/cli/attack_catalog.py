"""The attacks of `fedveil attack`: their names, what they do, and where their code is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.attacks.effort import Effort, Watch
from fedveil.starter import ATTACKED_JOBS

if TYPE_CHECKING:
    from fedveil.privacy.finding import Finding


@dataclass(frozen=True)
class Attack:
    """A command of `fedveil attack`: its `name`, its `help` text, and the function that it runs.

    The function is `attack(target, effort, watch)` of the module `home` in `fedveil.attacks`. It
    attacks `target`, a job or a finished run, and reports progress and pictures to `watch`. If
    `trains` is True, a job is first trained. `needs` is a sentence that says which jobs can be
    attacked, or "" if the built-in job can.
    """

    name: str
    home: str
    help: str
    trains: bool = False
    needs: str = ""

    @property
    def job(self) -> Path | None:
        return ATTACKED_JOBS.get(self.name)

    def described(self, options: str) -> str:
        """Return the command's help. Its last paragraph is `options`, about finished runs."""
        return "\n\n".join(filter(None, (self.help, self.needs, options)))

    def mount(self, target: Any, effort: Effort, watch: Watch) -> Finding:
        found: Finding = import_module(f"fedveil.attacks.{self.home}").attack(target, effort, watch)
        return found


#: Attacks on a federated job.
FEDERATED = (
    Attack("gradient", "gradient.inversion", "Reconstruct training images from what clients send."),
    Attack(
        "exact",
        "exact_inversion",
        "Compute a client's examples exactly from what it sends after one training step.",
    ),
    Attack(
        "steal",
        "stealing.stealing",
        "Send clients a malicious model, and read their examples from what they send back.",
    ),
    Attack(
        "membership",
        "membership.membership",
        "Find out which examples a model was trained on.",
        trains=True,
    ),
    Attack(
        "clients",
        "membership.client_membership",
        "Find out which clients took part in training, from their messages or from the sum of "
        "each round's messages.",
    ),
    Attack(
        "classes",
        "class_shares",
        "Find out how many examples of each class a client has, from what it sends.",
    ),
    Attack(
        "extraction",
        "extraction",
        "Plant phrases in clients' texts, train the job's language model from scratch, and "
        "extract the phrases from it.",
        needs="Needs a job with `task: next_token` or `instruction`; the built-in job has neither.",
    ),
    Attack(
        "repetition",
        "repetition",
        "Average what a client sends in many rounds, to remove the noise.",
    ),
    Attack(
        "distinguish",
        "distinguishing",
        "Guess which of two known updates a client sent; this gives a lower bound on epsilon.",
    ),
)
#: Attacks on a vertical job.
VERTICAL = (
    Attack(
        "features",
        "split.features",
        "Split learning: reconstruct a party's features from the outputs of its part of the model.",
    ),
    Attack(
        "labels",
        "split.labels",
        "Split learning: infer the labels from the gradients and losses that the party with the "
        "labels sends.",
    ),
    Attack(
        "tokens",
        "split.tokens",
        "Split learning of a language model: recover a party's text from the outputs of its part.",
        needs="Needs a job with `task: pangu`. With --set task=pangu, the built-in job trains a "
        "language model on a default text instead of images.",
    ),
)
