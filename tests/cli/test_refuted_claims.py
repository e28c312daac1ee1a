"""Faults planted in shipped mechanisms: every command that tests a claim exits 1 on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sabotage
from fedveil.cli import audit_cases
from fedveil.cli.audit_cases import cases
from fedveil.cli.exits import Exit
from fedveil.entropy import Seeded
from fedveil.errors import ClaimRefuted
from fedveil.privacy.finding import Finding, Measured
from fedveil.record.finding_lines import raise_if_refuted

Command = Callable[..., tuple[int, str, str]]

NOISE = ("protection=dp_encrypt", "protection.dp_encrypt.dp_eps=1.5",
         "protection.dp_encrypt.dp_delta=1e-3")  # fmt: skip
BITS = ("protection=rr", "protection.unary.eps=0.3", "protection.unary.cells=3",
        "protection.unary.report=bits")  # fmt: skip
OTHER_BITS = ("protection=oue", *BITS[1:])
SIGNS = ("protection=signds", "protection.signds.sign_eps=1", "protection.signds.sign_k=0.25",
         "protection.signds.sign_dim_out=1", "protection.signds.magnitude=fixed")  # fmt: skip
SHARES = ("protection=distributed_dp", "protection.distributed_dp.target_epsilon=2",
          "protection.distributed_dp.reconstruct_secrets_threshold=3",
          "simulation.masks=false", "rounds=1")  # fmt: skip
CENTRAL = ("protection=central_gaussian", "protection.central_gaussian.target_epsilon=2")
#: A fault, the job that it spoils, a mechanism of `fedveil audit` with its trials, and a bound of a
#: run's audit.
FAULTS = [
    (sabotage.an_eighth_of_the_noise, NOISE, "gaussian, an update", 3000,
     "if the noise is Gaussian"),
    (sabotage.clip_eight_times_too_large, NOISE, "gaussian, an update", 3000,
     "by how far canaries move it"),
    (sabotage.half_the_lies, BITS, "rr, bits of a parameter", 3000,
     "a bit of the code told true"),
    (sabotage.half_the_lies, OTHER_BITS, "oue, bits of a parameter", 3000,
     "another bit of the code told true"),
    (sabotage.selection_of_twice_the_epsilon, SIGNS, "signds, an update", 2000,
     "a favoured selection told true"),
    (sabotage.an_eighth_of_the_noise, SHARES, "noise in shares, an update", 1000,
     "by entries that no update reaches, if the noise is Gaussian"),
    (sabotage.an_eighth_of_the_noise, CENTRAL, "central gaussian, an update", 1000,
     "if the noise is Gaussian"),
]  # fmt: skip
#: The mechanisms of split learning.
LEARNT = ("embedding", "label")


def asked(*settings: str) -> list[str]:
    """Return the options for a run of 3 rounds by 5 clients, with a model of 3 parameters."""
    small = ("rounds=3", "clients.number=5", "clients.fraction=1", "data.name=parts:data",
             "model=parts:few", "training.epochs=1", "training.batch_size=9",
             "simulation.workers=0", "evaluation.every=3", "record.page=false")  # fmt: skip
    return [part for key in (*small, *settings) for part in ("--set", key)]


def attacked(command: Command, settings: tuple[str, ...]) -> tuple[int, str, str]:
    words = ("attack", "distinguish", "job.yaml", *asked(*settings))
    return command(*words, "--json", "--out", "attacked")


def refuted_by_an_attack(command: Command, settings: tuple[str, ...]) -> str:
    """Check that the attack on a spoilt job exits 1. Returns the folder with its finding."""
    code, out, err = attacked(command, settings)
    assert code == Exit.FAILED, err
    (found,) = json.loads(out)
    assert found["refutes"]
    assert "epsilon at least: far apart, 1 round" in found["excesses"]
    assert "error: 1 of 1 findings refute the protection's guarantee: epsilon at least: " in err
    return "attacked"


@pytest.mark.parametrize(
    ("fault", "settings", "mechanism", "trials", "bound"),
    FAULTS,
    ids=[f"{fault.__name__}, {settings[0]}" for fault, settings, *_ in FAULTS],
)
def test_a_planted_fault_is_refuted_by_each_command(
    fault: sabotage.Sabotage,
    settings: tuple[str, ...],
    mechanism: str,
    trials: int,
    bound: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedveil.privacy.audit.Secure", lambda: Seeded(3, "audit"))
    monkeypatch.setattr(audit_cases, "cases", lambda: (c for c in cases() if c.name == mechanism))
    (tmp_path / "job.yaml").write_text("name: spoilt\n")
    with fault():
        code, _, err = command("audit", "--trials", trials)
        assert (code, err) == (Exit.FAILED, f"error: refuted: {mechanism}\n")

        more = ("audit.canaries=60", "clients.number=62", "model=parts:wider", "rounds=2")
        code, _, err = command("run", "job.yaml", *asked(*settings, *more), "--out", "run")
        assert code == Exit.FAILED, err
        assert bound in err.partition("error: the audit refutes")[2]

        folders = ["run"]
        if settings is not CENTRAL:  # whose reports have no noise yet, and no claim
            folders.append(refuted_by_an_attack(command, settings))
    for folder in folders:
        code, _, err = command("audit", folder)
        assert code == Exit.FAILED, err
        assert "1 of 1 findings refute the protection's guarantee" in err


def test_the_audited_claims_of_split_learning_are_no_looser_than_the_mechanisms() -> None:
    """At eps 1 a bit costs a half. A one-hot row is two bits from another, a vector has four."""
    claims = {case.name: case.claim.epsilon for case in cases()}
    assert {name: claim for name, claim in claims.items() if name.split("_")[0] in LEARNT} == {
        "embedding_dp, a bit": 0.5, "embedding_dp, a one-hot row": 1.0,
        "embedding_dp, a vector": 2.0, "label_dp, one of six classes": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "settings", [NOISE, BITS, OTHER_BITS, SIGNS, SHARES], ids=lambda settings: settings[0]
)
def test_without_a_fault_nothing_is_refuted(
    settings: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("name: sound\n")
    code, out, err = attacked(command, settings)
    assert code == Exit.DONE, err
    assert not json.loads(out)[0]["refutes"]


def test_a_bound_is_held_against_its_own_claim_and_not_against_the_run_s() -> None:
    """A report of which 1 is claimed reveals 2.29, in a run of which 4 is claimed."""
    one = Measured("epsilon at least: far apart, 1 round", 2.29, epsilon=1.0, delta=1e-5)
    run = Measured("epsilon at least: far apart, 9 rounds", 2.4, epsilon=4.0, delta=1e-5)
    sound = Finding("distinguish", "quick", "dp_encrypt", [run], epsilon=4.0)
    spoilt = Finding("distinguish", "quick", "dp_encrypt", [run, one], epsilon=4.0)
    raise_if_refuted([sound])
    with pytest.raises(ClaimRefuted, match=r"1 of 2 .* 1 round 2.29 where 1 is claimed$"):
        raise_if_refuted([sound, spoilt])
