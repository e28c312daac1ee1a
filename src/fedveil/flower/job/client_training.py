"""Loads a client's examples and model, and computes its update.

This module needs torch, so `job_client` imports it only when it needs examples or a model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fedveil.base.array_digest import digest
from fedveil.base.array_types import Array
from fedveil.base.example_arrays import Targets, is_plain, ragged, shape_of, values
from fedveil.base.message import Message, take, take_array
from fedveil.base.quiet import QUIET_S, Quiet
from fedveil.data.lone_records import Form, described
from fedveil.data.own_dataset import count_records, read_records
from fedveil.engine.assembly import (
    ModelShape,
    check_weights,
    load_data,
    make_model,
    make_partition,
    make_task,
    make_trainer,
    make_training,
    start_vector,
)
from fedveil.engine.executors.client_side import ClientsData, Examples, Trained
from fedveil.engine.executors.client_side import Training as ClientTraining
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.job_protection import job_digest
from fedveil.entropy import Entropy
from fedveil.errors import DeploymentError
from fedveil.federated.job import Job
from fedveil.flower.job.example_shape import told_classes, told_form, told_shape
from fedveil.learning.own_layers import whole
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.trainer import ClientData, never
from fedveil.learning.weight_layout import Layout
from fedveil.protections.base import Protection, Update
from fedveil.rounds.outcomes import ClientId

_log = logging.getLogger("flwr")

#: Cached features by job, model, client and data, each after a digest of the examples. They are for
#: a process that trains more than once. The number of clients is limited, since one process may
#: simulate them all.
_seen_before: dict[tuple[bytes, str, ClientId, str | None], tuple[bytes, ClientsData]] = {}
_MOST_SEEN = 16


def shared_data(job: Job) -> ClientsData:
    """Return the job's data set, split among all clients."""
    data = load_data(job)
    split = make_partition(job, data)
    return ClientsData(data.train.x, data.train.y, split.indices, split.offsets, data.train.usable)


def client_data(
    job: Job,
    client: ClientId,
    function: str | None,
    shared: Callable[[], ClientsData],
    form: Form | None = None,
) -> ClientsData:
    """Return data that contains the client's examples, from the user's function named `function`.

    If `function` is None, returns `shared()`: the data of all clients, and so also this client's.
    `form` describes a valid training record. If it is given, each training record that the function
    returns is checked against it, and everything else that the function returns is ignored.
    """
    if function is None:
        return shared()
    train = load_data(job, function).train if form is None else read_records(function, form)
    return ClientsData.of_one(client, train.x, train.y, train.usable)


def example_count(
    job: Job, client: ClientId, function: str | None, shared: Callable[[], ClientsData]
) -> int:
    """Return the number of a client's examples.

    `function` names the user's function that returns the examples. Under `privacy.unit: example`,
    each training record that it returns counts as one example. Such records are counted without
    reading their values. If `function` is None, the client's examples are part of `shared()`, the
    data of all clients.
    """
    if function is not None and job.privacy.unit == "example":
        return count_records(function, make_task(job).targets)
    return client_data(job, client, function, shared).examples(client)


def _save_state(
    training: ClientTraining,
    client: ClientId,
    update: Update,
    protection: Protection,
    asked: Message,
) -> None:
    training.reported(client, protection.carried(update, asked))


class Training:
    """A client's training in one round. Only `update` reads the client's examples.

    `common` has the fields of the server's message that are the same for all clients. `states`
    returns the files in which a client keeps state from one round to the next. `shared` returns the
    job's data set, split among the clients.
    """

    def __init__(
        self,
        job: Job,
        common: Message,
        states: Callable[[ClientId], ClientStates],
        shared: Callable[[], ClientsData],
    ) -> None:
        self._states, self._shared = states, shared
        #: Called with the protection and the server's message once the report is made.
        self.reported: Callable[[Protection, Message], None] = lambda protection, asked: None
        target_shape, whole_targets, whole_examples = told_form(common)
        self._shape = ModelShape(
            example_shape=told_shape(common),
            classes=told_classes(common),
            fingerprint=take(common, "fingerprint", str),
            target_shape=target_shape,
            whole_targets=whole_targets,
            whole_examples=whole_examples,
        )
        # A copy, since torch accepts no read-only array.
        weights = take_array(common, "weights", "float32", (take(common, "dimension", int),))
        self.model = weights.copy()
        self._job = job
        self._round = take(common, "round", int)
        check_weights(job, self._shape, len(weights) // job.training.sent_vectors)
        model = make_model(job, self._shape)
        due = len(start_vector(job, Layout(TrainedPart.of(model).module)))
        if due != len(weights):
            raise DeploymentError(
                f"the server's model has {len(weights)} weights, model = {job.model} has {due}"
            )
        model = whole(model)
        self._part = TrainedPart.of(model)
        self._targets = make_task(job).targets
        self._trainer = make_trainer(job, model, self._shape.example_shape, self._round)

    def compile(self) -> None:
        """Compile the native code that trains examples of the job's shape. Reads no examples."""
        shape = self._shape.example_shape
        if isinstance(shape, tuple) and -1 not in shape:
            kind = np.int64 if self._shape.whole_examples else np.float32
            x = self._part.inputs(np.zeros((1, *shape), kind), self._job.training.device)
            self._trainer.compile(x.shape[1:])

    def update(
        self, client: ClientId, function: str | None, given_up: Callable[[], bool] = never
    ) -> tuple[Update, int]:
        """Train on the client's examples. Returns the update, and the number of the examples.

        `function` names the user's function that returns the examples. If it is None, they are the
        client's part of the job's data set. Once `given_up` returns True, training with torch ends
        before its next batch. Native code trains on all batches in one call.
        """
        data = _Needed(self._seen(client, function), given_up)
        states = partial(self._states, client)
        training = make_training(self._job, self._shape, self._trainer, data, states)
        training.open(self._round, self.model)
        # More threads may add in a different order. One thread gives the simulator's bytes.
        torch.set_num_threads(1)
        _log.info("round %d: client %d trains on its examples", self._round, client)
        with Quiet(QUIET_S, self._still):
            (answer,) = training.updates([client])
        for text in sorted(set(answer.effort.warnings)):
            _log.warning("%s", text)
        if isinstance(answer, Trained):
            if training.keeps:
                self.reported = partial(_save_state, training, client, answer.update)
            return answer.update, data.examples(client)
        assert training.failure is not None, answer
        raise training.failure

    def _still(self, seconds: float) -> None:
        _log.info("round %d: still training, %.0f s so far", self._round, seconds)

    def _seen(self, client: ClientId, function: str | None) -> ClientsData:
        """Read the client's examples. Returns them as inputs of the trained layers.

        If the model begins with fixed layers, these inputs are the outputs of the fixed layers,
        which are cached. The examples themselves are read in every round, so no cached output is
        used for a changed or removed example. `function` is as in `update`.
        """
        own = self._own(client, function)
        now = None if self._part.features is None else _digest(own)
        if now is None:
            return self._inputs(own)
        name = (job_digest(self._job), self._shape.fingerprint, client, function)
        known, seen = _seen_before.pop(name, (b"", own))
        if known != now:
            seen = self._inputs(own)
        if len(_seen_before) < _MOST_SEEN:
            _seen_before[name] = now, seen
        return seen

    def _own(self, client: ClientId, function: str | None) -> ClientsData:
        """Read and check the client's examples."""
        if self._job.privacy.unit == "example":
            form = self._form()
            own = client_data(self._job, client, function, self._shared, form).only(client)
            if own.x.shape[1:] != form.shape:
                raise _other_shape(own.x, self._shape)
            return own
        own = client_data(self._job, client, function, self._shared).only(client)
        own = replace(own, x=_of_shape(own, self._shape))
        _check_targets(own, self._shape, self._targets)
        return own

    def _inputs(self, own: ClientsData) -> ClientsData:
        """Return the examples `own` with the outputs of the fixed layers, if any, as inputs."""
        device = self._job.training.device
        if self._job.privacy.unit != "example":
            return replace(own, x=self._part.inputs(own.x, device))
        assert own.usable is not None, "each record is read by itself"
        x, usable = self._part.usable_inputs(own.x, own.usable, device)
        if said := described(usable):
            _log.warning("%s", said)
        return replace(own, x=x, usable=usable)

    def _form(self) -> Form:
        shape = self._shape
        assert isinstance(shape.example_shape, tuple), "the trainer takes nothing else"
        return Form(
            shape.example_shape,
            self._targets,
            shape.classes,
            shape.target_shape,
            shape.whole_targets,
            shape.whole_examples,
        )


class _Needed(Examples):
    """The examples in `data`. Training on them ends early once `given_up` returns True."""

    def __init__(self, data: ClientsData, given_up: Callable[[], bool]) -> None:
        self._data, self._given_up = data, given_up

    @property
    def x(self) -> Array:
        return self._data.x

    def examples(self, client: ClientId) -> int:
        return self._data.examples(client)

    def of(self, client: ClientId, entropy: Entropy, *, unchanged: bool = False) -> ClientData:
        found = self._data.of(client, entropy, unchanged=unchanged)
        return replace(found, given_up=self._given_up)


def _digest(data: ClientsData) -> bytes | None:
    """Return a digest of all examples in `data`, or None if they contain Python objects."""
    arrays = data.arrays()
    return None if any(x.dtype.hasobject for x in arrays.values()) else digest(arrays)


def _of_shape(data: ClientsData, shape: ModelShape) -> Array:
    """Return the inputs of the examples in `data`. Raises an error if they do not fit `shape`."""
    x = data.x
    if shape.example_shape == (-1, *x.shape[2:]) and is_plain(x) and x.ndim > 1:
        x = ragged(x)
    if shape_of(x) != shape.example_shape:
        raise _other_shape(x, shape)
    return x


def _other_shape(x: Array, shape: ModelShape) -> DeploymentError:
    return DeploymentError(
        f"this client's examples have shape {shape_of(x)}, the job's have {shape.example_shape}"
    )


def _check_targets(data: ClientsData, shape: ModelShape, targets: Targets) -> None:
    if targets == "own":
        return
    if targets in ("numbers", "bits"):
        if data.y.shape[1] != shape.classes:
            raise DeploymentError(
                f"this client has {data.y.shape[1]} targets for an example, the job has "
                f"{shape.classes}"
            )
        return
    highest = values(data.y).max(initial=0)
    if highest >= shape.classes:
        raise DeploymentError(
            f"this client has the label {highest}, the job's are in [0, {shape.classes})"
        )
