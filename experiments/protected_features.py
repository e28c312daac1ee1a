"""EmbeddingDP on the features of images: its cost in accuracy, and its effect on reconstruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from experiments.evidence import LEAST_SEEDS, with_interval
from experiments.experiment import Experiment, NewPart, Outcome, Scale, Tell
from experiments.feature_claims import (
    ARCHITECTURE,
    BIT,
    KNOWN,
    NONE,
    PAPER_ACCURACY,
    PAPER_SSIM,
    PUBLIC,
    WHO,
    Figure,
    kept_bit,
    our_name,
    said,
    verdicts,
)
from experiments.published_runs import ALL, PublishedRuns
from experiments.saved_results import kept
from experiments.statement_list import PAGES
from fedveil.base.files import write_whole
from fedveil.errors import DataUnavailable
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.read_run import ReadRun
from fedveil.pages.table import Table
from fedveil.vertical.job import VerticalJob

if TYPE_CHECKING:
    from fedveil.attacks.effort import Effort

EPSILONS = (5.0, 4.0, 2.0, 1.0, 0.5)
#: Those of the paper's table 1, doubled: its epsilon is half of ours.
TABLE_1 = (4.0, 2.0, 1.0)
_SHOWN = 8
_FIVE = "five classes of the other half of its training images"
#: The images of each data set, and those that the block was trained on.
_IMAGES = {
    "cifar10": ("CIFAR-10", _FIVE),
    "cifar10_jpeg": ("lossy JPEG files of CIFAR-10", _FIVE),
    "mnist": ("MNIST", "scikit-learn's digits"),
    "digits": ("scikit-learn's digits", "the other half of their training set"),
}
#: Marks results on images that are not those of the source.
_LOSSY = {"cifar10_jpeg": "lossy JPEG"}
_EPOCHS = 200  # as in the paper
_MORE = "The first three seeds without noise did not decide what one bit costs, so others were run."


@dataclass(frozen=True)
class Settings:
    """The split task of `image_cut`, its training, and the attack's effort."""

    task: str
    epochs: int
    effort: Effort
    epsilons: Sequence[float] = EPSILONS
    batch_size: int = 64
    #: Steps over which the learning rate falls to 0. None: it is constant.
    decay_steps: int | None = None
    #: Seeds of the trainings without noise: without protection, and with one bit.
    seeds: int = 3
    #: Seeds of the trainings with noise.
    noisy_seeds: int = 1

    def job(self, embedding_dp: object, seed: int = 0) -> VerticalJob:
        """Return the job that trains the rest of the network on the protected features."""
        return VerticalJob.model_validate(
            {
                "name": "embedding-dp",
                "task": f"experiments.image_cut:{self.task}",
                "seed": seed,
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "optimizer": {"decay_steps": self.decay_steps},
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


class ProtectedFeatures(Experiment):
    """A network cut after its first block, whose features are sent under EmbeddingDP."""

    name = "embedding-dp"
    what = "Split learning under EmbeddingDP: accuracy, and the similarity of reconstructed images."
    source = "003, with its reference 2, MistNet (table 1 and figure 3)"
    scales = get_args(Scale)
    saved_metrics = ("accuracy", "held_out")

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds: 0.04 for each training image of ResNet-18 on a core.

        A test image takes a third of this, and an attack (quick) as much as 10,000 training
        images. There are two trainings per seed without noise, and one per epsilon with it.
        """
        return {
            "small": 600.0,
            "medium": (3 * 12_500 + 5 * 10_000 + 21 * (3 * 2_500 + 2_000 / 3)) * 0.04,
            "full": 21 * 200 * 25_000 * 0.04,
        }[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Train and attack under every protection."""
        from experiments.image_cut import TASKS

        settings = self._settings or settings_of(scale, _data())
        published = PublishedRuns.of(folder)
        runs = {name: _runs(settings, name, published, tell) for name in settings.protections}
        figures = {
            name: _figure(of, _attacked(settings, name, folder, tell)) for name, of in runs.items()
        }
        curves = {run.folder.name: run for of in runs.values() for run in of}
        lossy = _LOSSY.get(TASKS[settings.task].data, "")
        return Outcome(
            _ran(settings), [*verdicts(figures, lossy)], [_table(figures, lossy)],
            [*_plots(figures, lossy)], [_picture(figures, folder)], seeds=0, curves=curves,
        )  # fmt: skip


def settings_of(scale: Scale, data: str) -> Settings:
    """Return a scale's settings.

    `full`: the paper's network and epochs, on the images available here.
    """
    return {
        "small": Settings(f"{data}_small", 5, "quick", batch_size=16),
        "medium": Settings(
            f"{data}_medium", 3, "quick", TABLE_1, 16, decay_steps=471, seeds=6, noisy_seeds=3
        ),
        "full": Settings(f"{data}_full", _EPOCHS, "full", noisy_seeds=3),
    }[scale]


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


@dataclass(frozen=True)
class Learnt:
    """A model's accuracy on the held-out images, and their number."""

    accuracy: float
    held_out: int


@dataclass(frozen=True)
class Attacked:
    """The fields of a `Figure` that an attack finds."""

    ssim: dict[str, float]
    guess: float
    images: dict[str, list[Any]]


def _runs(settings: Settings, name: str, published: PublishedRuns, tell: Tell) -> Sequence[ReadRun]:
    """Return the trainings under a protection by seed, each with its last test."""
    seeds = settings.seeds if name in (NONE, BIT) else settings.noisy_seeds
    return [_run(settings, name, seed, published, tell) for seed in range(seeds)]


def _run(settings: Settings, name: str, seed: int, published: PublishedRuns, tell: Tell) -> ReadRun:
    from experiments.attacked_features import check_same, trained

    folder, suffix = published.folder, f"-{seed}" if seed else ""
    job, path = settings.job(settings.protections[name], seed), folder / f"run-{name}{suffix}"
    check_same(job, path)  # also if its accuracy is saved already
    line = f"{said(name)}: training with seed {seed}"
    read = published.find(path.name, job)
    if read:
        tell(f"{line}, from the published curves")
        return read

    def training() -> dict[str, Any]:
        _prepare_block(settings, folder, tell)
        tell(NewPart(line))
        accuracy, held_out = trained(job, path)
        return {"accuracy": accuracy, "held_out": held_out}

    learnt = asdict(kept(folder, f"trained-{name}{suffix}", Learnt, training))
    test = {key: float(value) for key, value in learnt.items()}  # as published curves are read
    return ReadRun(path, job.model_dump(), [{"round": settings.epochs, **test}], (), ())


def _attacked(settings: Settings, name: str, folder: Path, tell: Tell) -> Attacked:
    from experiments.attacked_features import attacked

    def attack() -> dict[str, Any]:
        _prepare_block(settings, folder, tell)
        tell(NewPart(f"{said(name)}: reconstructing images"))
        job = settings.job(settings.protections[name])
        ssim, guess, images = attacked(job, settings.effort, (KNOWN, PUBLIC), ARCHITECTURE)
        shown = {who: found[:_SHOWN].tolist() for who, found in images.items()}
        return {"ssim": ssim, "guess": guess, "images": shown}

    return kept(folder, f"attacked-{name}", Attacked, attack)


def _figure(runs: Sequence[ReadRun], found: Attacked) -> Figure:
    accuracies = [run.records[-1]["accuracy"] for run in runs]
    held_out = int(runs[0].records[-1]["held_out"])
    return Figure(accuracies, held_out, found.ssim, found.guess, found.images)


def _prepare_block(settings: Settings, folder: Path, tell: Tell) -> None:
    """Prepare the block that all runs share. It is trained unless this folder has it.

    If this folder may use published curves, the published block is copied.
    """
    from experiments.image_cut import TASKS, keep_block

    file = folder / "block.safetensors"
    published = PAGES / f"{ProtectedFeatures.name}-{settings.task}.safetensors"
    if not file.exists() and (folder / ALL).exists() and published.exists():
        write_whole(file, published.read_bytes())
    if not file.exists():
        tell(NewPart("the first block: training on public images"))
    keep_block(TASKS[settings.task], file)


def _ran(settings: Settings) -> str:
    from experiments.image_cut import RESNET_18, TASKS

    images = TASKS[settings.task]
    where, public = _IMAGES[images.data]
    network = "ResNet-18" if images.network == RESNET_18 else "a slim one of the same layout"
    epochs = f"{settings.epochs} epoch{'s' if settings.epochs > 1 else ''}"
    noisy = "one" if settings.noisy_seeds == 1 else settings.noisy_seeds
    fewer = "" if settings.epochs >= _EPOCHS else f" (the paper: {_EPOCHS} epochs)"
    why = f"{_MORE} " if settings.seeds > LEAST_SEEDS else ""
    falls = "" if settings.decay_steps is None else "The learning rate falls linearly to 0. "
    return (
        f"The paper cuts a ResNet-18 for CIFAR-10 after its first block, which was trained before "
        f"on ImageNet's images of the same classes. Here {network} on {where} replaces it, with a "
        f"first block that was trained before on {public}. So compare trends, not levels. "
        f"The block stays fixed. It sends bits to the leader, who trains the rest of the "
        f"network for {epochs} of at most {images.most_train:,} images{fewer}. {falls}"
        f"The rest starts untrained. The paper's rest was trained before, too: its accuracy is 90% "
        f"after one epoch. "
        f"Accuracy is that on {images.most_test:,} held-out images at most. "
        f"Runs without noise have {settings.seeds} seeds, runs with noise have {noisy}. {why}"
        f"The attacker reconstructs the first images from one report of each, at effort "
        f"{settings.effort}. Similarity is the median SSIM, which is 1 for identical images. The "
        f"paper's attacker knows the block. The paper does not say whether it has public images, "
        f"so the verdicts are about attackers with and without them. The last verdict is about the "
        f"strongest attacker, with public images. The paper's epsilon is half of `eps` here: its "
        f"2, 1 and 0.5 are compared with 4, 2 and 1. In the picture, the first row has the images, "
        f"and the other rows their reconstructions by the strongest attacker, in the order of the "
        f"table."
    )


def _table(figures: Mapping[str, Figure], lossy: str) -> Table:
    paper = [
        {our_name(of): f"{value:.3f}" for of, value in found.items()}
        for found in (PAPER_ACCURACY, PAPER_SSIM)
    ]
    rows = [
        (said(name), _bit(name), with_interval(figure.accuracies, 4), paper[0].get(name, "-"),
         *(f"{figure.ssim[who]:.3f}" if who in figure.ssim else "-" for who in WHO),
         paper[1].get(name, "-"))
        for name, figure in figures.items()
    ]  # fmt: skip
    first = ("protection", "unchanged bits", "accuracy", "the paper's accuracy")
    columns = (*first, *WHO.values(), "the paper's SSIM")
    guess = next(iter(figures.values())).guess
    caption = f"SSIM by what the attacker knows (the mean image reaches {guess:.3f})"
    return Table(columns, rows, f"{caption}{_measured_on(lossy)}.")


def _measured_on(lossy: str) -> str:
    return f", and accuracy, measured on {lossy} files" if lossy else ""


def _bit(name: str) -> str:
    if not name.startswith("eps-"):
        return "no bits" if name == NONE else "1"
    return f"{kept_bit(float(name.removeprefix('eps-'))):.3f}"


def _plots(figures: Mapping[str, Figure], lossy: str) -> Iterator[Plot]:
    on = f"Measured on {lossy} files." if lossy else ""
    eps = {name: float(name.removeprefix("eps-")) for name in figures if name.startswith("eps-")}
    paper = {2 * of: value for of, value in PAPER_SSIM.items() if not isinstance(of, str)}
    x = [*eps.values()]
    curves = [
        Curve(who, x, [figures[name].ssim[key] for name in eps], marks=True)
        for key, who in WHO.items()
        if key != ARCHITECTURE
    ]
    curves.append(Curve("the paper", [*paper], [*paper.values()], marks=True, dashed=True))
    for who, level in (("here", figures[BIT].ssim[PUBLIC]), ("the paper", PAPER_SSIM[BIT])):
        curves.append(
            Curve(f"one bit, no noise: {who}", [min(x), max(x)], [level] * 2, dashed=True)
        )
    yield Plot(
        "ssim", "Similarity of reconstructed images", Axis("eps"), Axis("SSIM"),
        curves,
        f"The paper's epsilon is doubled, so that bits are flipped equally often. {on}".rstrip(),
    )  # fmt: skip
    curves = [Curve("EmbeddingDP", x, [figures[n].accuracy for n in eps], marks=True)]
    for name in (BIT, NONE):
        level = figures[name].accuracy
        curves.append(Curve(said(name), [min(x), max(x)], [level] * 2, dashed=True))
    share = Axis("accuracy", unit="percent")
    paper = {2 * of: value for of, value in PAPER_ACCURACY.items() if not isinstance(of, str)}
    curves.append(Curve("the paper", [*paper], [*paper.values()], marks=True, dashed=True))
    yield Plot("accuracy", "Accuracy on held-out images", Axis("eps"), share, curves, on)


def _picture(figures: Mapping[str, Figure], folder: Path) -> Path:
    """Draw the first images, and below them the strongest attacker's result per protection."""
    import numpy as np

    from fedveil.attacks.pictures import grid

    rows = [figures[NONE].images["truth"], *(each.images[PUBLIC] for each in figures.values())]
    path = folder / "embedding-dp-images.png"
    write_whole(path, grid([[np.array(image) for image in row] for row in rows]))
    return path
