"""EmbeddingDP on the features of images: its cost in accuracy, and its effect on reconstruction.

The MistNet paper states epsilon for one bit, reported truthfully with probability e^eps / (1 +
e^eps). Document 003, and everything built from it, keep a bit with e^(eps/2) / (1 + e^(eps/2)). The
paper's epsilon is therefore half of `eps` here, and results are compared at equal probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from experiments.evidence import SLACK, decided, idle, learnt
from experiments.experiment import Experiment, NewPart, Outcome, Scale, Tell, Verdict
from experiments.saved_results import kept
from fedveil.base.files import write_whole
from fedveil.errors import DataUnavailable
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.vertical.job import VerticalJob

if TYPE_CHECKING:
    from fedveil.attacks.effort import Effort

#: Names of the protections: none, one bit without noise, and EmbeddingDP.
NONE, BIT = "none", "bit"
EPSILONS = (5.0, 4.0, 2.0, 1.0, 0.5)
#: MistNet's table 1, ResNet-18 on CIFAR-10 cut after block 1, by its epsilon per bit.
PAPER_SSIM: Mapping[float | str, float] = {
    NONE: 0.918, BIT: 0.775, 2.0: 0.728, 1.0: 0.576, 0.5: 0.354,
}  # fmt: skip
#: Probability of a true bit at the paper's smallest epsilon, from its figure 3.
PAPER_KEPT = (0.5, 0.62)
#: An image with this SSIM can be recognised, according to the paper.
PAPER_RECOGNISED = 0.3
#: Our limit, in points, for the paper's "similar" accuracy without noise and centralised.
SIMILAR_POINTS = 2.0
#: The attackers: with the block's weights, with public images too, and with only its architecture.
KNOWN, PUBLIC, ARCHITECTURE = "known bottom", "both", "unsplit"
_WHO = {
    PUBLIC: "the block and public images", KNOWN: "the block", ARCHITECTURE: "its architecture",
}  # fmt: skip
_SHOWN = 8
_FIVE = "five classes of the other half of its training images"
#: The images of each data set, and those that the block was trained on.
_IMAGES = {
    "cifar10": ("CIFAR-10", _FIVE),
    "cifar10_jpeg": ("lossy JPEG files of CIFAR-10", _FIVE),
    "mnist": ("MNIST", "scikit-learn's digits"),
    "digits": ("scikit-learn's digits", "the other half of their training set"),
}
_LABELS = 10
_EPOCHS = 200  # as in the paper


@dataclass(frozen=True)
class Settings:
    """The split task of `image_cut`, its training, and the attack's effort."""

    task: str
    epochs: int
    effort: Effort
    epsilons: Sequence[float] = EPSILONS
    batch_size: int = 64

    def job(self, embedding_dp: object) -> VerticalJob:
        """Return the job that trains the rest of the network on the protected features."""
        return VerticalJob.model_validate(
            {
                "name": "embedding-dp",
                "task": f"experiments.image_cut:{self.task}",
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "privacy": {"embedding_dp": embedding_dp},
                "evaluation": {"every_epochs": self.epochs},
                "checkpoint": {"every_steps": 1_000},
                "threads": 1,
            }
        )

    @property
    def protections(self) -> dict[str, dict[str, float | None] | None]:
        """Values of a job's `privacy.embedding_dp`, by name."""
        found: dict[str, dict[str, float | None] | None] = {NONE: None, BIT: {"eps": None}}
        return found | {f"eps-{eps:g}": {"eps": eps} for eps in self.epsilons}


@dataclass(frozen=True)
class Figure:
    """The results of a protection: accuracy on held-out images, and median SSIM by attacker."""

    accuracy: float
    held_out: int
    ssim: Mapping[str, float]
    guess: float
    images: Mapping[str, Sequence[Any]]


class ProtectedFeatures(Experiment):
    """A network cut after its first block, whose features are sent under EmbeddingDP."""

    name = "embedding-dp"
    what = "Split learning under EmbeddingDP: accuracy, and the similarity of reconstructed images."
    source = "003, with its reference 2, MistNet (table 1 and figure 3)"
    scales = get_args(Scale)

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds: 0.06 for each training image of ResNet-18 on a core.

        A test image takes a third of this, and an attack (quick) as much as 4,000 images.
        """
        return {
            "small": 600.0,
            "medium": (3 * 12_500 + 7 * (3 * 2_500 + 4_000 + 10_000 / 3)) * 0.06,
            "full": 7 * 200 * 25_000 * 0.06,
        }[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Train and attack under every protection."""
        settings = self._settings or settings_of(scale, _data())
        figures = {name: _figure(settings, name, folder, tell) for name in settings.protections}
        return Outcome(
            _ran(settings), [*verdicts(figures)], [_table(figures)], [*_plots(figures)],
            [_picture(figures, folder)],
        )  # fmt: skip


def settings_of(scale: Scale, data: str) -> Settings:
    """Return a scale's settings.

    `full`: the paper's network and epochs, on the images available here.
    """
    return {
        "small": Settings(f"{data}_small", 5, "quick", batch_size=16),
        "medium": Settings(f"{data}_medium", 3, "quick", batch_size=16),
        "full": Settings(f"{data}_full", _EPOCHS, "full"),
    }[scale]


def kept_bit(eps: float) -> float:
    """Return the probability with which a bit is reported truthfully here."""
    return 1 / (1 + math.exp(-eps / 2))


def _data() -> str:
    from experiments.image_cut import JPEG
    from fedveil.data import cifar10, image_folder
    from fedveil.data.data_folders import find
    from fedveil.data.datasets import load

    if cifar10.here():
        return "cifar10"
    if all(find(cifar10.FOLDER, part) for part in (image_folder.TRAIN, image_folder.TEST)):
        return JPEG
    try:
        load("mnist")
    except DataUnavailable:
        return "digits"
    return "mnist"


def _figure(settings: Settings, name: str, folder: Path, tell: Tell) -> Figure:
    from experiments.attacked_features import attacked, trained

    job = settings.job(settings.protections[name])

    def training() -> dict[str, Any]:
        _prepare_block(settings, folder, tell)
        tell(NewPart(f"{_said(name)}: training"))
        accuracy, held_out = trained(job, folder / f"run-{name}")
        return {"accuracy": accuracy, "held_out": held_out}

    def attack() -> dict[str, Any]:
        _prepare_block(settings, folder, tell)
        tell(NewPart(f"{_said(name)}: reconstructing images"))
        ssim, guess, images = attacked(job, settings.effort, (KNOWN, PUBLIC), ARCHITECTURE)
        shown = {who: found[:_SHOWN].tolist() for who, found in images.items()}
        return {"ssim": ssim, "guess": guess, "images": shown}

    learnt = kept(folder, f"trained-{name}", training)
    return Figure(**learnt, **kept(folder, f"attacked-{name}", attack))


def _prepare_block(settings: Settings, folder: Path, tell: Tell) -> None:
    """Train the block that all runs share, unless this folder has it."""
    from experiments.image_cut import TASKS, keep_block

    file = folder / "block.safetensors"
    if not file.exists():
        tell(NewPart("the first block: training on public images"))
    keep_block(TASKS[settings.task], file)


def _said(name: str) -> str:
    return {NONE: "no protection", BIT: "one bit, no noise"}.get(name, name.replace("-", " "))


def _ran(settings: Settings) -> str:
    from experiments.image_cut import RESNET_18, TASKS

    images = TASKS[settings.task]
    where, public = _IMAGES[images.data]
    network = "ResNet-18" if images.network == RESNET_18 else "a slim one of the same layout"
    epochs = f"{settings.epochs} epoch{'s' if settings.epochs > 1 else ''}"
    fewer = "" if settings.epochs >= _EPOCHS else f" (the paper: {_EPOCHS} epochs)"
    return (
        f"The paper cuts a ResNet-18 for CIFAR-10 after its first block, which was trained before "
        f"on ImageNet's images of the same classes. Here {network} on {where} replaces it, with a "
        f"first block that was trained before on {public}. So trends can be compared, and levels "
        f"cannot. The block stays fixed. It sends bits to the leader, who trains the rest of the "
        f"network for {epochs} of at most {images.most_train:,} images{fewer}. The attacker "
        f"reconstructs the first images from one report of each, at effort {settings.effort}. "
        f"Similarity is the median SSIM, which is 1 for identical images. The paper's attacker "
        f"knows the block. The paper does not say whether it has public images, so the verdicts "
        f"are about attackers with and without them, and the last verdict is about the attacker "
        f"with them, the strongest. The paper's epsilon is half of `eps` here: its 2, 1 and 0.5 "
        f"are compared with 4, 2 and 1. In the picture, the first row has the images, and the "
        f"other rows their reconstructions by the strongest attacker, in the order of the table."
    )


def verdicts(figures: Mapping[str, Figure]) -> Iterator[Verdict]:
    """Judge the paper's claims about accuracy, about SSIM, and about the meaning of its epsilon."""
    paper = {_ours(of): value for of, value in PAPER_SSIM.items()}
    both = [name for name in figures if name in paper]
    blind = {who: _blind(figures[NONE], who) for who in (PUBLIC, KNOWN)}
    for who, silent in blind.items():
        ours = [figures[name].ssim[who] for name in both]
        falls, chance = _falls(ours, figures[NONE].guess)
        yield Verdict.of(
            falls, f"an attacker with {_WHO[who]}: SSIM without protection, with one bit, and down "
            f"to eps {_smallest(both)}",
            _list([paper[name] for name in both]), _list(ours),
            held_to=f"lower by more than {SLACK:g} at every step, until it is within {SLACK:g} of "
            "the mean image; if a step above that is smaller, it says nothing",
            same="it falls: the more bits are flipped, the less can be reconstructed",
            other="the median of these few images does not fall at every step",
            nothing=silent or chance,
        )  # fmt: skip
    eps, printed = PAPER_KEPT
    here = kept_bit(eps)
    yield Verdict.of(
        abs(here - printed) < 0.005, f"probability of an unchanged bit at epsilon {eps:g}",
        f"{printed}", f"{here:.2f}", held_to="less than 0.005 apart",
        same="both state epsilon for a bit",
        other=f"source 003 halves epsilon before it flips bits: its eps {2 * eps:g} is the paper's "
        f"{eps:g} ({kept_bit(2 * eps):.2f})",
    )  # fmt: skip
    yield from _accuracy_verdicts(figures)
    most, least = figures[both[0]], figures[both[-1]]
    recognised, chance = decided([least.ssim[PUBLIC] - PAPER_RECOGNISED])
    yield Verdict.of(
        recognised, f"at eps {_smallest(both)}, images can still be recognised by their SSIM",
        f"{paper[both[-1]]}", f"{least.ssim[PUBLIC]:.3f}, the mean image {least.guess:.3f}",
        held_to=f"above the source's {PAPER_RECOGNISED:g} by more than {SLACK:g}; if it is within "
        f"{SLACK:g}, it says nothing",
        same=f"it has fallen from {most.ssim[PUBLIC]:.3f} without protection, but not that far",
        other=f"it has fallen from {most.ssim[PUBLIC]:.3f} without protection, and further than "
        "there; an attacker with more effort may find more",
        nothing=blind[PUBLIC] or chance,
    )  # fmt: skip


def _falls(ssim: Sequence[float], floor: float) -> tuple[bool, str]:
    """Decide, like `decided`, whether SSIM falls steadily down to `floor`, the mean image's."""
    steps = [before - later for before, later in pairwise(ssim) if later > floor + SLACK]
    return decided([min(steps)]) if steps else (True, "")


def _blind(plain: Figure, who: str) -> str:
    """Return a sentence if the attacker reconstructs nothing even without protection."""
    if plain.ssim[who] > plain.guess + SLACK:
        return ""
    return (
        f"without protection the attacker reaches {plain.ssim[who]:.3f}, not more than {SLACK:g} "
        f"above the mean image's {plain.guess:.3f}"
    )


def _accuracy_verdicts(figures: Mapping[str, Figure]) -> Iterator[Verdict]:
    held_out = figures[NONE].held_out
    names = [name for name in figures if name != NONE]
    reached = [figures[name].accuracy for name in names]
    good = [a for a in reached if learnt(a, _LABELS)]  # idle runs at the small end are left out
    told = reached[: 1 + max((i for i, a in enumerate(reached) if a in good), default=-1)]
    # Largest chance difference of two accuracies on this many images, at two deviations.
    margins = [_margin(a, held_out) for a in told]
    plain = idle({_said(NONE): figures[NONE].accuracy}, _LABELS)
    falls, nothing = False, "fewer than two runs end above chance level"
    if len(good) > 1:
        pairs = zip(pairwise(told), margins[1:], strict=True)
        rises = any(after > before + margin for (before, after), margin in pairs)
        falls, nothing = (False, "") if rises else decided([told[0] - told[-1]], margins[0])
    yield Verdict.of(
        falls, "accuracy falls with epsilon", "it does, and training takes longer", _list(reached),
        held_to="down to chance level, no rise by two standard deviations, and the last is further "
        "below the first; if the two are nearer, it says nothing",
        same="a smaller epsilon was never more accurate, as far as this number of images can tell",
        other="a smaller epsilon was more accurate than a larger one, or the smallest cost nothing",
        nothing=plain or nothing,
    )  # fmt: skip
    bit = figures[BIT].accuracy
    lost, margin = 100 * (figures[NONE].accuracy - bit), 100 * _margin(bit, held_out)
    spans = abs(abs(lost) - SIMILAR_POINTS) < margin
    yield Verdict.of(
        abs(lost) <= SIMILAR_POINTS, "accuracy with one bit per value, against no protection",
        "similar", f"{abs(lost):.1f} points {'lower' if lost > 0 else 'higher'}, ± {margin:.1f} by "
        f"chance",
        held_to=f"less than {SIMILAR_POINTS:g} points apart",
        same=f"not {SIMILAR_POINTS:g} points apart: the signs of this many features are enough",
        other=f"more than {SIMILAR_POINTS:g} points apart after these few epochs",
        nothing=plain or idle({_said(BIT): bit}, _LABELS) or (
            f"{held_out:,} images are too few to decide between less and more than "
            f"{SIMILAR_POINTS:g} points" if spans else ""
        ),
    )  # fmt: skip


def _margin(accuracy: float, images: int) -> float:
    """Return two standard deviations of the difference of two accuracies on `images` images."""
    return 2 * math.sqrt(2 * accuracy * (1 - accuracy) / images)


def _ours(of: float | str) -> str:
    """Return our name of the paper's result `of`, its epsilon or a protection's name."""
    return of if isinstance(of, str) else f"eps-{2 * of:g}"


def _smallest(names: Sequence[str]) -> str:
    return names[-1].removeprefix("eps-")


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _table(figures: Mapping[str, Figure]) -> Table:
    paper = {_ours(of): value for of, value in PAPER_SSIM.items()}
    rows = [
        (_said(name), _bit(name), f"{figure.accuracy:.4f}",
         *(f"{figure.ssim[who]:.3f}" if who in figure.ssim else "-" for who in _WHO),
         f"{paper[name]:.3f}" if name in paper else "-")
        for name, figure in figures.items()
    ]  # fmt: skip
    columns = ("protection", "unchanged bits", "accuracy", *_WHO.values(), "the paper's")
    guess = next(iter(figures.values())).guess
    return Table(
        columns, rows, f"SSIM by what the attacker knows (the mean image reaches {guess:.3f})."
    )


def _bit(name: str) -> str:
    if not name.startswith("eps-"):
        return "no bits" if name == NONE else "1"
    return f"{kept_bit(float(name.removeprefix('eps-'))):.3f}"


def _plots(figures: Mapping[str, Figure]) -> Iterator[Plot]:
    eps = {name: float(name.removeprefix("eps-")) for name in figures if name.startswith("eps-")}
    paper = {2 * of: value for of, value in PAPER_SSIM.items() if not isinstance(of, str)}
    x = [*eps.values()]
    curves = [
        Curve(who, x, [figures[name].ssim[key] for name in eps], marks=True)
        for key, who in _WHO.items()
        if key != ARCHITECTURE
    ]
    curves.append(Curve("the paper", [*paper], [*paper.values()], marks=True, dashed=True))
    for who, level in (("here", figures[BIT].ssim[PUBLIC]), ("the paper", PAPER_SSIM[BIT])):
        curves.append(
            Curve(f"one bit, no noise: {who}", [min(x), max(x)], [level] * 2, dashed=True)
        )
    yield Plot(
        "ssim", "Similarity of reconstructed images", Axis("eps"), Axis("SSIM"),
        curves, "The paper's epsilon is doubled, so that bits are flipped equally often.",
    )  # fmt: skip
    curves = [Curve("EmbeddingDP", x, [figures[n].accuracy for n in eps], marks=True)]
    for name in (BIT, NONE):
        level = figures[name].accuracy
        curves.append(Curve(_said(name), [min(x), max(x)], [level] * 2, dashed=True))
    share = Axis("accuracy", unit="percent")
    yield Plot("accuracy", "Accuracy on held-out images", Axis("eps"), share, curves)


def _picture(figures: Mapping[str, Figure], folder: Path) -> Path:
    """Draw the first images, and below them the strongest attacker's result per protection."""
    import numpy as np

    from fedveil.attacks.pictures import grid

    rows = [figures[NONE].images["truth"], *(each.images[PUBLIC] for each in figures.values())]
    path = folder / "embedding-dp-images.png"
    write_whole(path, grid([[np.array(image) for image in row] for row in rows]))
    return path
