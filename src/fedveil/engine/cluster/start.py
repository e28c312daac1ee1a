"""Starts a job's clients on the machines of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedveil.base import own_code
from fedveil.base.files import write_whole
from fedveil.engine.assembly import ModelShape, make_model, make_protection, make_trainer
from fedveil.engine.cluster.cluster import Cluster
from fedveil.engine.cluster.machine import PROOF, MachineSetup
from fedveil.engine.cluster.machine_check import facts
from fedveil.engine.cluster.many_machines import ManyMachines
from fedveil.engine.cluster.membership import Membership
from fedveil.engine.cluster.own_sources import packed_sources
from fedveil.engine.cluster.ray_cluster import RayCluster
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.executor import Executor
from fedveil.errors import ClusterUnavailable
from fedveil.federated.job import Job
from fedveil.learning.own_layers import whole


def start_on_a_cluster(
    job: Job,
    shape: ModelShape,
    data: ClientsData,
    batch: ClientsData,
    dimension: int,
    folder: Path,
    *,
    starting: Callable[[str], None],
    event: Callable[[str], None],
) -> Executor:
    """Start machines on the cluster `simulation.on`, and return an executor that uses them.

    Every machine first trains on the examples in `batch`. Its result must equal this process's
    result. Then it receives the examples of its clients from `data`, which has those of all
    clients. `dimension` is the number of entries of an update, and `folder` the run's folder.
    `starting` is called with the name of each step before the first round, and `event` logs a line.
    """
    least = make_trainer(job, whole(make_model(job, shape)), shape.example_shape).least
    if least > 1 and len(make_protection(job, dimension).flow) > 1:
        raise ClusterUnavailable(
            f"simulation.on = {job.simulation.on}: under protection.name = {job.protection.name} "
            f"with masks, a cluster cannot train clients together. Use training.engine = loop or "
            f"simulation.masks = false"
        )
    starting("comparing the machines of the cluster")
    setup = MachineSetup(
        job=job,
        shape=shape,
        dimension=dimension,
        run=folder.resolve(),
        own=_packed(job),
        batch=batch,
        proof=_leave_proof(folder) if job.keeps_state else None,
    )
    mine = facts(job, shape, batch, dimension)
    cluster = _ray_cluster(job)
    packed = setup.packed(packed_sources(job.own_names))
    members = Membership(cluster, packed, mine, event=event, starting=starting)
    try:
        members.gather()
        starting("sending the machines their clients' examples")
        return ManyMachines(cluster, members, data, setup, least, event)
    except BaseException:
        members.close()
        raise


def _ray_cluster(job: Job) -> Cluster:
    workers = job.simulation.workers
    cores = None if workers == "auto" else max(1, int(workers))
    return RayCluster(job.simulation.on, cores, gpus=job.training.device != "cpu")


def _packed(job: Job) -> bytes:
    try:
        return own_code.packed(job.own_names)
    except Exception as error:  # pickling a script's objects may raise anything
        raise ClusterUnavailable(
            f"simulation.on = {job.simulation.on}: the script's own objects cannot be sent to "
            f"other machines: {own_code.described(error)}"
        ) from error


def _leave_proof(folder: Path) -> str:
    """Write a random text into `folder`, by which other machines recognise it. Returns the text."""
    proof = os.urandom(16).hex()
    write_whole(folder / PROOF, proof.encode(), 0o600)
    return proof
