"""A job's copies: what the job did not set is derived again."""

from __future__ import annotations

from fedveil.federated.job import Job


def test_a_copy_derives_again_what_the_job_did_not_set() -> None:
    """Without protection clients count by their size, and equally if reports are perturbed."""
    plain = Job.load(None, ["protection=not_encrypt"])
    assert plain.server.weighting == "by_size"
    assert plain.with_({"protection.name": "rr"}).server.weighting == "equal"
    chosen = Job.load(None, ["protection=not_encrypt", "server.weighting=equal"])
    assert chosen.with_({"rounds": 7}).server.weighting == "equal"
