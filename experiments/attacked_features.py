"""A split network trained under one protection, and the attacks on its messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from experiments import image_cut
from experiments.two_processes import together
from fedveil.attacks.effort import Effort, by_effort
from fedveil.attacks.split import features, unsplit
from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.base.array_types import Float64s
from fedveil.record.run_folder import JOB
from fedveil.studies.several_runs import refuse_changed
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import make_task, threads
from fedveil.vertical.task import initial


def check_same(job: VerticalJob, folder: Path) -> None:
    """Raise `RunFolderError` if the folder has a run of another job."""
    if (folder / JOB).exists():
        refuse_changed(folder, job.changes(VerticalJob.load(folder / JOB)))


def trained(job: VerticalJob, folder: Path) -> tuple[float, int]:
    """Train the job. Returns the final accuracy on held-out images, and the images' number."""
    check_same(job, folder)
    run = together(job, folder)
    looks = [record for record in run.metrics if "test_accuracy" in record]
    task = make_task(job)
    return looks[-1]["test_accuracy"], len(task.owned(task.leader, "test").ids)


def attacked(
    job: VerticalJob, effort: Effort, informed: Sequence[str], blind: str
) -> tuple[dict[str, float], float, dict[str, Float64s]]:
    """Reconstruct images from one report of each.

    `informed` names attackers of `features.Aim`. The attacker `blind` knows only the architecture
    of the network's block, and is tried if no bit is flipped. Returns the median SSIM by attacker,
    the SSIM of the mean public image, and the reconstructions by attacker. The true images are
    included as `truth`.
    """
    with threads(job.threads):
        target = SplitTarget.of(job)
        aim = features.Aim(target, target.split.by_name[image_cut.BLOCK], effort)
        evidence = aim.cases[""]
        methods = aim.methods
        found = {name: methods[name](evidence, _unheard) for name in informed}
        if not evidence.lie:
            found[blind] = _unsplit(job, evidence, effort)
        figures = {name: list(aim.figures("", images))[-1] for name, images in found.items()}
        shown = {name: aim.plain(images) for name, images in {"truth": aim.truth, **found}.items()}
    ssim = {name: figure.value for name, figure in figures.items()}
    return ssim, figures[informed[0]].guess, shown


def _unsplit(job: VerticalJob, evidence: Evidence, effort: Effort) -> torch.Tensor:
    """Reconstruct images by UnSplit, which knows only the architecture of the network's block."""
    task = make_task(job)
    assert isinstance(task, image_cut.ImageCut)
    images = task.images

    def made() -> torch.nn.Module:
        return image_cut.block_of(images.network, images.shape[0])

    def other(number: int) -> torch.nn.Module:
        return initial(1000 + number, image_cut.BLOCK, made)

    return unsplit.invert(
        other, evidence, images.shape, low=-1.0, high=1.0,
        starts=by_effort(effort, 2, 5, 10), rounds=by_effort(effort, 45, 150, 500),
    ).inputs  # fmt: skip


def _unheard(done: int, total: int) -> None:
    """Ignore the progress of one inversion."""
