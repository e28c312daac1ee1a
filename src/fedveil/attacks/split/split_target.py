"""A vertical job as an attacker sees it: the split model, the parties' data, and the messages."""

from __future__ import annotations

import copy
import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.base.message import Message
from fedveil.errors import AttackImpossible, RunFolderError
from fedveil.link.channel import Exchange, Send, drive_together
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import projected
from fedveil.record.model_file import read_model
from fedveil.record.run_folder import MODEL, job_of
from fedveil.vertical import noisy_labels
from fedveil.vertical.blocks import PrivacySettings
from fedveil.vertical.crossing import from_wire
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import make_split, make_task, report_entropy, threads
from fedveil.vertical.own_data import private_parts, sends_unprotected
from fedveil.vertical.party import Party
from fedveil.vertical.party_parts import set_aside
from fedveil.vertical.party_run import OWN_SEED
from fedveil.vertical.returned_gradients import ReturnedGradients, drawn_key
from fedveil.vertical.rows import Order, Rows, align
from fedveil.vertical.schedule import Transfer, micro_sizes
from fedveil.vertical.split import Crossing, SplitModel, module_of
from fedveil.vertical.task import SUBSETS, Subset, Task

Positions = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Crossed:
    """The messages of one step, as the parties of a split model received them from each other.

    The keys are names of parts. Rows are in the order of the batch. `outputs` has the parts'
    outputs: numbers, or the bits of EmbeddingDP as 0.0 and 1.0. `gradients` has the gradients of
    the step's mean loss with respect to these outputs, which the parts' owners received. If two
    parties returned a gradient for the same part, the value is the sum of both gradients. `loss` is
    the step's mean loss, if the leader sent it to the followers.
    """

    outputs: Mapping[str, torch.Tensor]
    gradients: Mapping[str, torch.Tensor]
    loss: float | None = None


@dataclass(frozen=True)
class SplitTarget:
    """A vertical job, its split model with weights, and all parties' rows in a common order.

    `told` is the leader's table with the labels used in training, after LabelDP. The true labels
    are in `rows`. `trained` is True if the weights are a run's result, False if they are initial.
    `initial` has the initial weights of a run. It is None for a job, and for a run in which parties
    drew their weights from seeds of their own.

        >>> from fedveil.attacks.split.split_target import SplitTarget
        >>> from fedveil.vertical import VerticalJob
        >>> target = SplitTarget.of(VerticalJob.load(None, ["epochs=1"]))
        >>> target.trained, target.split.leader
        (False, 'leader')
    """

    job: VerticalJob
    task: Task
    split: SplitModel
    rows: Mapping[Subset, Mapping[str, Rows]]
    told: Rows
    trained: bool = False
    initial: Mapping[str, torch.Tensor] | None = None

    @classmethod
    def of(cls, job: VerticalJob) -> SplitTarget:
        """Create a target from a job before its first step, with the data of all its parties."""
        return cls._made(job, None)

    @classmethod
    def of_run(cls, folder: str | Path) -> SplitTarget:
        path = Path(folder)
        target = cls._made(VerticalJob.load(job_of(path)), path)
        initial = None
        if not (path / OWN_SEED).exists():
            initial = copy.deepcopy(target.split.joined().state_dict())
        for party in target.split.parties:
            held = path / party / MODEL
            if not held.is_file():
                raise RunFolderError(
                    f"{path} holds no finished run of all parties: {party} has no {MODEL} in it"
                )
            owned = target.split.owned_by(party)
            read_model(held, nn.ModuleDict({part.name: module_of(part) for part in owned}))
        return replace(target, trained=True, initial=initial)

    @classmethod
    def _made(cls, job: VerticalJob, folder: Path | None) -> SplitTarget:
        task = make_task(job, folder)
        split = make_split(job, task)
        rows = {subset: _rows(task, split, subset) for subset in SUBSETS}
        told = _told(job, task, rows["train"][split.leader], folder)
        return cls(job, task, split, rows, told)

    def at_start(self) -> SplitTarget:
        """Return the target before the run's first step, or unchanged if that is not known.

        The steps that `begun` then plays are those that the parties have seen in the run, if the
        run's randomness comes from its seed.
        """
        if not self.trained or self.initial is None:
            return self
        split = copy.deepcopy(self.split)
        split.joined().load_state_dict(self.initial)
        return replace(self, split=split, trained=False)

    def under(self, privacy: PrivacySettings) -> SplitTarget:
        """Copy the target, and replace the privacy settings of its job with `privacy`.

        The weights stay the same. If `privacy` has LabelDP, the training labels are drawn anew.
        """
        job = self.job.model_copy(update={"privacy": privacy})
        split = make_split(job, self.task)
        split.joined().load_state_dict(self.split.joined().state_dict())
        told = _told(job, self.task, self.rows["train"][split.leader], None)
        return replace(self, job=job, split=split, told=told)

    @property
    def examples(self) -> int:
        return self.told.count

    @property
    def steps(self) -> int:
        """The number of training steps in the job."""
        return self.job.epochs * self._order.steps

    @cached_property
    def _order(self) -> Order:
        job, count = self.job, self.examples
        return Order(job.seed, count, job.batch_size, set_aside(job, count))

    def crossing(self, part: str) -> Crossing:
        """Return the first crossing at which another party receives the output of `part`.

        A `Crossing` is one transfer of a part's output to another party. Raises `AttackImpossible`
        if no other party receives it.
        """
        for crossing in self.split.crossings:
            if crossing.part == part:
                return crossing
        known = ", ".join(dict.fromkeys(each.part for each in self.split.crossings)) or "none"
        raise AttackImpossible(
            f"what the part {part} gives does not cross between parties: {known} does"
        )

    def promised(self, part: str, reports: int = 1) -> Figure:
        """Return the ledger's epsilon for an example after `reports` reports of `part`'s output."""
        privacy = self.crossing(part).privacy
        values = int(np.prod(self.crossing(part).output))
        charges = EmbeddingDP(None if privacy is None else privacy.eps).loss.charges(values)
        times = 1 if privacy is not None and privacy.reuse else reports
        return projected(charges, times).figure_every_round(self.job.privacy.delta)

    def promised_of(self, party: str, reports: int = 1) -> Figure:
        """Return the ledger's epsilon for an example after `reports` reports of everything.

        It counts all parts whose output `party` computes from its own data and sends. It is
        infinite if one of them is unprotected.
        """
        if sends_unprotected(self.split, party):
            charges = EmbeddingDP(None).loss.charges(1)
        else:
            charges = [
                (loss, count * (1 if privacy.reuse else reports))
                for part, privacy in private_parts(self.split, party)
                for loss, count in EmbeddingDP(privacy.eps).loss.charges(math.prod(part.output))
            ]
        return projected(charges, 1).figure_every_round(self.job.privacy.delta)

    def crossed(self, positions: Positions, step: int = 1) -> Crossed:
        """Run one step on the training examples at `positions`, and return its messages.

        The target's weights stay unchanged. Each value of `step` draws other noise. With the
        initial weights and `step` 1, these are exactly the messages of the run's first step on the
        same examples.
        """
        return self._step(self._parties(), positions, step)

    def begun(self, steps: int) -> Iterator[tuple[Positions, Crossed]]:
        """Train copies of the parts for `steps` steps. Yields each step's indices and messages.

        The indices are those of the step's training examples.
        """
        order = self._order
        parties = self._parties()
        for step in range(1, steps + 1):
            positions = order.of_step(step)
            yield positions, self._step(parties, positions, step, settled=step > order.steps)

    def _step(
        self,
        parties: Mapping[str, Party],
        positions: Positions,
        step: int,
        *,
        settled: bool = False,
    ) -> Crossed:
        heard: list[tuple[str, Message]] = []
        batches = {name: self._read(name).batch(positions) for name in parties}
        with threads(self.job.threads):
            exchanges = {
                name: _recorded(name, party.step(step, batches[name], settled=settled), heard)
                for name, party in parties.items()
            }
            losses = drive_together(exchanges)
        crossed = self._arrived(heard, step, micro_sizes(len(positions), self.job.in_flight))
        followers = self.split.followers
        return replace(crossed, loss=losses[followers[0]]) if followers else crossed

    def outputs(self, part: str, positions: Positions, reports: int = 1) -> torch.Tensor:
        """Return a part's output as another party receives it: [reports, examples, *output].

        `positions` are the indices of training examples. Each of the `reports` reports has new
        noise, unless the job reuses the first report.
        """
        steps = range(1, reports + 1)
        return torch.stack([self.crossed(positions, step).outputs[part] for step in steps])

    @cached_property
    def _reports(self) -> Reports:
        return Reports(report_entropy(self.job))

    @cached_property
    def _returned(self) -> ReturnedGradients:
        key = drawn_key(report_entropy(self.job))
        return ReturnedGradients(self.job.privacy.label_protection, key)

    def _read(self, party: str) -> Rows:
        return self.told if party == self.split.leader else self.rows["train"][party]

    def _parties(self) -> dict[str, Party]:
        split = copy.deepcopy(self.split)
        return {
            name: Party(
                name,
                split,
                loss=self.task.loss if name == split.leader else None,
                in_flight=self.job.in_flight,
                seed=self.job.seed,
                device=self.job.device,
                tell_loss=self.job.tells_loss,
                report=self._reports,
                returned=self._returned if name == split.leader else None,
            )
            for name in split.parties
        }

    def _arrived(
        self, heard: list[tuple[str, Message]], step: int, sizes: tuple[int, ...]
    ) -> Crossed:
        found: dict[tuple[Crossing, bool], dict[int, torch.Tensor]] = defaultdict(dict)
        for sender, message in heard:
            if message.get("kind") != "tensor":
                continue
            name, micro = message["name"], message["micro"]
            assert isinstance(name, str)
            assert isinstance(micro, int)
            gradient = name.endswith(".grad")
            for crossing in self.split.crossings:
                transfer = Transfer(crossing, micro, gradient)
                if crossing.part == name.removesuffix(".grad") and transfer.sender == sender:
                    rows = sizes[micro]
                    alone = {field: message[field] for field in message if field != "loss"}
                    tensor = from_wire(alone, transfer, training=True, step=step, rows=rows)
                    found[crossing, gradient][micro] = tensor
        outputs: dict[str, torch.Tensor] = {}
        returned: dict[str, list[torch.Tensor]] = defaultdict(list)
        for (crossing, gradient), by_micro in found.items():
            whole = torch.cat([by_micro[micro] for micro in range(len(sizes))])
            if gradient:
                returned[crossing.part].append(whole)
            else:
                outputs[crossing.part] = whole
        gradients = {part: functools.reduce(torch.add, whole) for part, whole in returned.items()}
        return Crossed(outputs, gradients)


def _recorded(party: str, exchange: Exchange[T], heard: list[tuple[str, Message]]) -> Exchange[T]:
    """Wrap a party's `exchange`, and record each message that the party sends.

    An exchange is a generator that yields the party's requests to send or to receive. The result is
    also one, with the same requests. Each message is appended to `heard`, with the party's name.
    """
    answer: Message | None = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(request, Send):
            heard.append((party, request.message))
        answer = yield request


def _rows(task: Task, split: SplitModel, subset: Subset) -> dict[str, Rows]:
    owned = {name: task.owned(name, subset) for name in (task.leader, *task.followers)}
    positions = align({name: columns.ids for name, columns in owned.items()}, task.leader)
    return {
        name: Rows.aligned(columns, split.columns(name), positions[name])
        for name, columns in owned.items()
    }


def _told(job: VerticalJob, task: Task, rows: Rows, folder: Path | None) -> Rows:
    """Return the leader's training rows with the labels that LabelDP drew.

    The labels are loaded from the run's `folder`. If `folder` is None, this function draws them.
    Without LabelDP, the rows are unchanged.
    """
    settings = job.privacy.label_dp
    if settings is None or rows.labels is None:
        return rows
    assert task.classes is not None, "make_task has checked it"
    if folder is not None:
        return noisy_labels.kept(folder / task.leader / noisy_labels.LABELS, rows, task.classes)
    return noisy_labels.drawn(rows, LabelDP(settings.eps), task.classes, report_entropy(job))
