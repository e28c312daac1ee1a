"""Builds the objects of one party's side of a run from its job, its data and its randomness."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from fedveil.entropy import Entropy, Seeded
from fedveil.errors import JobError, RunFolderError
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.privacy.loss import PrivacyLoss
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import noisy_labels
from fedveil.vertical.account import Releases
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.label_watch import WatchedGradients
from fedveil.vertical.party import Party
from fedveil.vertical.party_log import PartyLog
from fedveil.vertical.returned_gradients import ReturnedGradients, saved_key
from fedveil.vertical.rows import Order, Rows
from fedveil.vertical.split import SplitModel, module_of
from fedveil.vertical.step_checkpoint import saved_steps
from fedveil.vertical.task import Subset, Task
from fedveil.vertical.told_failures import keep_failure

#: What each digest of a fingerprint stands for, as in "the run was made with another job".
_CHANGED = ("another job", "another model", "other data")


@dataclass(frozen=True)
class Setting:
    """Everything from which a party's side of a run is built.

    `rows` are the party's examples in the order that all parties use. `order_seed`, from the
    leader, determines the order of training. `entropy` is the randomness of everything that the
    party sends. `own_seed` determines initial weights and dropout. None means the job's seed.
    """

    job: VerticalJob
    task: Task
    split: SplitModel
    party: str
    rows: Mapping[Subset, Rows]
    entropy: Entropy
    order_seed: int
    folder: RunFolder
    own_seed: int | None = None


@dataclass(frozen=True)
class PartyParts:
    party: Party
    #: The party's examples. A leader under LabelDP trains on the labels drawn for the run.
    rows: Mapping[Subset, Rows]
    order: Order
    reports: Reports
    releases: Releases
    #: The privacy loss of a label under LabelDP, otherwise None.
    label_loss: PrivacyLoss | None
    limit: Limit
    gradients: WatchedGradients
    #: Digests of the job, the model and the data, which must be unchanged if the run is resumed.
    fingerprint: str

    def require_reports(self, looks: int, calibrations: int) -> None:
        """Raise `RunFolderError` if the folder lacks a report that must be sent again.

        A part with `reuse` saves an example's first report, and sends it again later. `looks` and
        `calibrations` are the numbers of evaluations and calibrations that have ended. Each has
        sent a report of all its examples. Call this after `Releases.restore`.
        """
        examples: dict[str, int] = {
            "train": self.releases.examples,
            "test": self.rows["test"].count if looks else 0,
            "calibration": self.order.aside if calibrations else 0,
        }
        for crossing in self.party.split.crossings:
            if crossing.sender == self.party.name and crossing.privacy and crossing.privacy.reuse:
                for subset, count in examples.items():
                    self.reports.require(crossing, subset, count)


def assemble(setting: Setting, log: PartyLog) -> PartyParts:
    """Build one party's objects for a run. Warnings about its outputs are private to it."""
    job, split, name, folder = setting.job, setting.split, setting.party, setting.folder
    is_leader = name == split.leader
    reports = Reports(setting.entropy, folder.path, log.note)
    count = setting.rows["train"].count
    order = Order(setting.order_seed, count, job.batch_size, set_aside(job, count))
    # Randomness drawn again from a seed is the same, and reveals nothing new.
    fresh = not isinstance(setting.entropy, Seeded)
    releases = Releases(folder, order, fresh=fresh, epochs=job.epochs)
    fingerprint = _fingerprint(setting)
    train, label_loss = _labelled(setting) if is_leader else (setting.rows["train"], None)
    limit = Limit(split, name, job.privacy.max_epsilon, job.privacy.delta, label_loss)
    gradients = WatchedGradients(_returned(setting, is_leader=is_leader))
    party = Party(
        name,
        split,
        loss=setting.task.loss if is_leader else None,
        in_flight=job.in_flight,
        seed=job.seed if setting.own_seed is None else setting.own_seed,
        device=job.device,
        tell_loss=job.tells_loss,
        report=reports,
        returned=gradients if is_leader else None,
        failed=partial(keep_failure, folder),
    )
    return PartyParts(
        party=party,
        rows={**setting.rows, "train": train},
        order=order,
        reports=reports,
        releases=releases,
        label_loss=label_loss,
        limit=limit,
        gradients=gradients,
        fingerprint=fingerprint,
    )


def set_aside(job: VerticalJob, count: int) -> int:
    """Return how many of `count` training examples are set aside for a calibrator."""
    share = job.scoring.calibration
    if share is None:
        return 0
    aside = round(share * count)
    if not 0 < aside < count:
        raise JobError(
            [f"scoring.calibration = {share} sets {aside} of {count} training examples aside; "
             f"at least one must be set aside and one trained on"]
        )  # fmt: skip
    return aside


def _returned(setting: Setting, *, is_leader: bool) -> ReturnedGradients:
    settings = setting.job.privacy.label_protection
    if settings is None or not is_leader:
        return ReturnedGradients(None, b"")
    if settings.name == "marvell":
        _check_one_label(setting, "label_protection.name = marvell")
    return ReturnedGradients(settings, saved_key(setting.folder, setting.entropy))


def _check_one_label(setting: Setting, key: str) -> None:
    """Raise JobError if the examples have several labels each, which `privacy.<key>` forbids."""
    rows = setting.rows["train"]
    if rows.labels is not None and rows.labels.numel() != rows.count:
        raise JobError(
            [f"privacy.{key} needs one label for each example, but each label of task.name = "
             f"{setting.job.task.name} has the shape {tuple(rows.labels.shape[1:])}"]
        )  # fmt: skip


def _labelled(setting: Setting) -> tuple[Rows, PrivacyLoss | None]:
    """Return the leader's rows with the labels to train on, and a label's privacy loss.

    Without LabelDP, the labels are the true ones and the loss is None. Under LabelDP, a new run
    draws the labels and saves them, and a resumed run loads them. Raises JobError if an example has
    several labels, and RunFolderError if the saved labels are missing or damaged.
    """
    settings, rows = setting.job.privacy.label_dp, setting.rows["train"]
    if settings is None or rows.labels is None:
        return rows, None
    _check_one_label(setting, "label_dp")
    classes = setting.task.classes
    assert classes is not None, "make_task has checked it"
    mechanism = LabelDP(settings.eps)
    path = setting.folder.path / noisy_labels.LABELS
    if path.exists():
        told = noisy_labels.kept(path, rows, classes)
    elif saved_steps(setting.folder):
        raise RunFolderError(f"{path} is missing: it contains the labels that the run trains on")
    else:
        told = noisy_labels.drawn(rows, mechanism, classes, setting.entropy)
        setting.folder.write_atomically(noisy_labels.LABELS, noisy_labels.file_of(told))
    return told, mechanism.loss


def changed_since(saved: str, now: str) -> str:
    """Return a phrase that says what differs between two fingerprints, or "" if they are equal.

    `saved` is the fingerprint in a checkpoint, and `now` that of the run that would use it.
    """
    before, found = saved.split(" "), now.split(" ")
    if len(before) != len(found):  # the checkpoint is of an earlier version
        return "another job, model or data, or by an earlier version of fedveil"
    each = zip(_CHANGED, before, found, strict=True)
    return " and ".join(what for what, was, is_now in each if was != is_now)


def _fingerprint(setting: Setting) -> str:
    job = hashlib.sha256(json.dumps(setting.job.agreed(), sort_keys=True).encode())
    job.update(f"{setting.party} {setting.order_seed}".encode())
    model, data = hashlib.sha256(), hashlib.sha256()
    for part in setting.split.owned_by(setting.party):
        for name, tensor in module_of(part).state_dict().items():
            model.update(f"{part.name} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
    for subset in ("train", "test"):
        data.update(setting.rows[subset].fingerprint())
    return " ".join(digest.hexdigest() for digest in (job, model, data))
