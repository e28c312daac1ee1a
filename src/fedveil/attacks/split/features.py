"""Reconstruction of the features behind a part's output, for a job or a run.

Four attackers get the same reports. In addition, each attacker knows something about the part:

- `unsplit`: its architecture.
- `known bottom`: its weights.
- `both`: its weights, and public examples.
- `public examples`: public examples, and its output for each of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from fedveil.attacks import pictures
from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.split import auxiliary, unsplit, whitebox_inversion
from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.example_prior import Gaussian, Prior, Smooth
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.base.array_types import Float64s
from fedveil.base.quantity import quantity
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import median, share
from fedveil.tasks.wide_and_deep import Deep
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.own_data import of_own_data
from fedveil.vertical.split import Part, module_of
from fedveil.vertical.task import Subset

#: Number of reports to average if each is drawn afresh, and the most public examples.
AVERAGED, _PUBLIC = 10, 2000
_SHOWN = 10
Method: TypeAlias = Callable[[Evidence, whitebox_inversion.Step], torch.Tensor]


def attack(target: SplitTarget, effort: Effort, watch: Watch) -> Finding:
    """Reconstruct the inputs of each part that sends its output to another party.

    `effort` sets how long the attack runs. `watch` reports its progress and saves its pictures. The
    inputs must be images, numbers, or numbers and words. Words are the categories of a table's
    columns, each of which the part maps to a vector. Other parts are not attacked, and the finding
    names them. Its epsilon covers everything that one party sends about an example. The party with
    the largest epsilon counts. The metrics depend on the inputs:

    - Images: the median MSE, PSNR and SSIM, on values from 0 to 1. They are compared with those of
      the mean public image.
    - Numbers that are not images: the correlation with the truth, as the median over the features.
    - Words: the share of words that are right. It is compared with the share for an attacker who
      guesses the most common public word of each column.
    """
    aims = [Aim(target, part, effort) for part in _attackable(target)]
    total = sum(len(aim.cases) * len(aim.methods) for aim in aims)
    figures: list[Measured] = []
    kept: list[str] = []
    done = 0
    for aim in aims:
        rows = [list(aim.plain(aim.truth)[:_SHOWN])] if aim.images else []
        for name, evidence in aim.cases.items():
            for method, invert in aim.methods.items():
                what = f"{aim.part.name}: {method}{name}"
                found = invert(evidence, partial(_tell, watch, done, total, what))
                done += 1
                figures += aim.figures(f"{what}: ", found)
                if aim.images:
                    rows.append(list(aim.plain(found)[:_SHOWN]))
        if rows:
            kept.append(watch.picture(f"features-{aim.part.name}.png", pictures.grid(rows)))
    most = max(aims, key=lambda aim: target.promised_of(aim.part.owner, aim.reports).epsilon)
    figure = target.promised_of(most.part.owner, most.reports)
    settings = target.job.privacy.model_dump(mode="json")["embedding_dp"]
    return Finding(
        attack="features",
        effort=effort,
        protection="none" if settings is None else "embedding_dp",
        figures=figures,
        settings=settings or {},
        epsilon=figure.epsilon,
        delta=figure.delta,
        saw=_saw(aims, most),
        pictures=kept,
    )


@dataclass(frozen=True)
class Aim:
    """Attack on the inputs of `part`: the examples to reconstruct, the reports, and the methods.

    `target` has the part's split model and data. `effort` sets the number of examples to
    reconstruct, and how long each method searches.
    """

    target: SplitTarget
    part: Part
    effort: Effort

    @cached_property
    def truth(self) -> torch.Tensor:
        """The examples to reconstruct: the part's inputs for the first training examples."""
        most = by_effort(self.effort, 16, 64, 256) * (1 if self.images else 8)
        return self._read("train", most)

    @cached_property
    def public(self) -> torch.Tensor:
        return self._read("test", _PUBLIC)

    @cached_property
    def images(self) -> bool:
        shape = self._read("train", 1).shape[1:]
        return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 7

    @property
    def reports(self) -> int:
        """The largest number of reports of each example that the attacker has.

        It is `AVERAGED` if every report has new noise. Otherwise it is 1, because all reports of an
        example are equal.
        """
        privacy = self.part.privacy
        drawn = privacy is not None and privacy.eps is not None and not privacy.reuse
        return AVERAGED if drawn else 1

    @cached_property
    def cases(self) -> Mapping[str, Evidence]:
        """The attacker's reports of all examples, in one or two cases, by the name of the case.

        In the case "", the attacker has one report of each example. If every report has new noise,
        there is a second case, ", 10 reports", in which the attacker has ten. The metrics' names
        contain the name of the case.
        """
        positions = np.arange(len(self.truth))
        reports = self.target.outputs(self.part.name, positions, self.reports)
        found = {"": Evidence.of(reports[:1], self.part.privacy)}
        if self.reports > 1:
            found[f", {self.reports} reports"] = Evidence.of(reports, self.part.privacy)
        return found

    @property
    def methods(self) -> Mapping[str, Method]:
        shape = tuple(self.truth.shape[1:])
        alone: Prior = Gaussian.standard(shape)
        if self.images:
            alone = Smooth(shape, *self._range)
        return {
            "unsplit": self._unsplit,
            "known bottom": partial(self._known, alone),
            "both": partial(self._known, Gaussian.of(self.public)),
            "public examples": self._public,
        }

    def plain(self, images: torch.Tensor) -> Float64s:
        """Scale images to [0, 1]: 0 is the smallest value in the public examples, 1 the largest."""
        low, high = self._range
        scaled: Float64s = ((images.double() - low) / (high - low)).clamp(0, 1).numpy()
        return scaled

    def figures(self, what: str, found: torch.Tensor) -> Iterator[Measured]:
        """Yield metrics of the reconstructed examples `found`. Their names begin with `what`."""
        if not self.images:
            yield from self._figures_of_table(what, found)
            return
        mean = self.public.mean(dim=0, keepdim=True).expand_as(self.truth)
        real, guess, made = (self.plain(each) for each in (self.truth, mean, found))
        for name in ("mse", "psnr", "ssim"):
            measure: Callable[[Float64s, Float64s], float] = getattr(pictures, name)
            of_guess = float(np.median([measure(a, b) for a, b in zip(real, guess, strict=True)]))
            values = [measure(a, b) for a, b in zip(real, made, strict=True)]
            yield median(f"{what}{name}", values, guess=of_guess)

    def _figures_of_table(self, what: str, found: torch.Tensor) -> Iterator[Measured]:
        numbers = self._numbers
        yield correlation(f"{what}correlation", self.truth[:, :numbers], found[:, :numbers])
        deep = module_of(self.part)
        if numbers is not None and isinstance(deep, Deep) and found.shape[1] > numbers:
            vectors = (self.truth, self.public, found)
            true, public, read = (deep.nearest(each[:, numbers:]) for each in vectors)
            guess = float((true == public.mode(dim=0).values).double().mean())
            yield share(f"{what}words", int((read == true).sum()), true.numel(), guess=guess)

    def _unsplit(self, evidence: Evidence, tell: whitebox_inversion.Step) -> torch.Tensor:
        low, high = self._range
        found = unsplit.invert(
            self._other_bottom,
            evidence,
            tuple(self.truth.shape[1:]),
            low=low,
            high=high,
            starts=by_effort(self.effort, 2, 5, 10),
            rounds=by_effort(self.effort, 45, 150, 500),
            tell=tell,
        ).inputs
        return found[:, : self._numbers]  # the attacker has no table of words

    def _known(
        self, prior: Prior, evidence: Evidence, tell: whitebox_inversion.Step
    ) -> torch.Tensor:
        steps = by_effort(self.effort, 600, 1500, 5000)
        return whitebox_inversion.invert(self._bottom, evidence, prior, steps=steps, tell=tell)

    def _public(self, evidence: Evidence, tell: whitebox_inversion.Step) -> torch.Tensor:
        outputs = self._bottom(self.public)
        steps = by_effort(self.effort, 600, 3000, 20_000)
        chance = generator(self.target.job.seed, "features", self.part.name)
        public = self.public[:, : self._numbers]
        return auxiliary.invert(public, outputs, evidence, chance, steps=steps, tell=tell)

    def _read(self, subset: Subset, most: int) -> torch.Tensor:
        found, module = _columns(self.target, self.part, subset, most), module_of(self.part)
        return module.joined(*found).detach() if isinstance(module, Deep) else found[0]

    @property
    def _numbers(self) -> int | None:
        """The number of numeric features if the part is a `Deep`, else None.

        A `Deep` may read words too. Then the vectors of the words follow the numeric features in
        each row of its inputs.
        """
        if not isinstance(module_of(self.part), Deep):
            return None
        return _columns(self.target, self.part, "train", 1)[0].shape[1]

    @property
    def _range(self) -> tuple[float, float]:
        return float(self.public.min()), float(self.public.max())

    @cached_property
    def _bottom(self) -> nn.Module:
        return whitebox_inversion.steady(_layers(module_of(self.part)))

    def _other_bottom(self, number: int) -> nn.Module:
        job = self.target.job
        other = job.model_copy(update={"seed": job.seed + 1 + number})
        split = make_split(other, make_task(other))
        return copy.deepcopy(_layers(module_of(split.by_name[self.part.name]))).requires_grad_()


def correlation(name: str, truth: torch.Tensor, found: torch.Tensor) -> Measured:
    """Return the metric `name`: how well the reconstruction `found` correlates with `truth`.

    Both are [examples, *shape]. The metric is the median of the features' correlations. Features
    that are constant in `truth` are left out. Nothing is measured if all are.
    """
    real, made = (each.flatten(1).double() for each in (truth, found))
    real, made = real - real.mean(dim=0), made - made.mean(dim=0)
    size, other = real.norm(dim=0), made.norm(dim=0)
    varied = size > 1e-9
    if not varied.any():
        return Measured(name, math.nan, guess=0.0, cases=0, unmeasured="every feature is constant")
    together = (real * made).sum(dim=0) / (size * other).clamp(min=1e-9)
    return median(name, together[varied].numpy(), guess=0.0)


def _saw(aims: Sequence[Aim], most: Aim) -> str:
    """Return a phrase on what the attacker saw, and on what is sent but not attacked.

    The phrase also says what the finding's epsilon covers: everything that the owner of the part
    `most` sends about an example.
    """
    split, owner = most.target.split, most.part.owner
    own = of_own_data(split.parts)
    sent = dict.fromkeys(c.part for c in split.crossings if c.part in own)
    attacked = {aim.part.name for aim in aims}
    seen = f"{quantity(most.reports, 'report')} of each of {len(most.truth)} examples"
    together = [part for part in sent if split.by_name[part].owner == owner]
    if len(together) > 1:
        seen += f"; epsilon is of all that {owner} sends about an example: {', '.join(together)}"
    if missed := [part for part in sent if part not in attacked]:
        seen += f"; not attacked, but sent: {', '.join(missed)}"
    return seen


def _attackable(target: SplitTarget) -> list[Part]:
    """Return the parts whose inputs can be reconstructed.

    Raises `AttackImpossible` if there are none.
    """
    crossing = {crossing.part for crossing in target.split.crossings}
    found = []
    for part in target.split.parts:
        if part.name in crossing and not part.sources:
            first, *others = _columns(target, part, "train", 1)
            words = isinstance(module_of(part), Deep)
            if first.is_floating_point() and first.numel() and (words or not others):
                found.append(part)
    if not found:
        raise AttackImpossible(
            "no part that crosses reads one column of numbers and nothing else: there are no "
            "features to reconstruct this way"
        )
    return found


def _columns(target: SplitTarget, part: Part, subset: Subset, most: int) -> list[torch.Tensor]:
    rows = target.rows[subset][part.owner]
    held = rows.batch(np.arange(min(most, rows.count))).columns
    return [held[name] for name in part.columns]


def _layers(module: nn.Module) -> nn.Module:
    return module.layers if isinstance(module, Deep) else module


def _tell(watch: Watch, before: int, total: int, what: str, done: int, of: int) -> None:
    watch.step(100 * before + 100 * done // of, 100 * total, what)
