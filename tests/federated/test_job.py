"""The job: what it allows, what it says about the rest, and that nothing is lost on the way."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedveil.errors import InvalidValue, JobError
from fedveil.federated.job import VERTICAL_KEYS, Job
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.protections.catalog import find
from fedveil.protections.central_gaussian import CentralGaussianSettings
from fedveil.protections.dp_encrypt import DPEncryptSettings
from fedveil.protections.not_encrypt import NotEncryptSettings
from fedveil.protections.pw_encrypt import PWEncryptSettings
from fedveil.protections.signds import SignDSSettings
from fedveil.protections.unary_settings import UnarySettings
from fedveil.settings import allowed
from fedveil.settings.allowed import shown
from fedveil.vertical.job import VerticalJob
from job_checks import POSITIONS, at, load, problems, vectors

DEFAULT = """\
name: digits-lenet
seed: 0
rounds: 20
clients: {number: 100, fraction: 0.5}
data: {name: digits, split: iid}
model: lenet
training: {epochs: 10, batch_size: 20, optimizer: sgd, lr: 0.1, momentum: 0.0, weight_decay: 0.0, device: cpu, engine: auto}
server: {weighting: by_size, optimizer: none, lr: 1.0}
evaluation: {every: 1}
protection:
  name: not_encrypt
  dp_encrypt: {dp_eps: 50.0, dp_delta: 0.01, dp_norm_clip: 1.0}
  signds: {sign_k: 0.01, sign_eps: 100, sign_thr_ratio: 0.6, sign_global_lr: 1.0, sign_dim_out: 0}
  pw_encrypt: {share_secrets_ratio: 1.0, reconstruct_secrets_threshold: null, cipher_time_window: 300000}
  unary: {eps: 4.8, cells: 50}
privacy: {randomness: seeded}
simulation: {workers: auto}
record: {tensorboard: false}
"""  # noqa: E501


# --- the default, and loading -------------------------------------------------------------------


def test_the_default_job_is_the_documented_one():
    assert load(DEFAULT) == Job() == Job.load() == load("clients:\nprotection:\n")
    assert Job().warnings == []


def test_defaults_of_the_server_optimiser_are_the_papers():
    server = Job().server
    assert (server.momentum, server.beta1, server.beta2, server.tau) == (0.9, 0.9, 0.99, 1e-3)


def test_every_block_and_every_key_may_be_left_out():
    whole = Job().model_dump()
    for path in allowed.keys(Job):
        part = copy.deepcopy(whole)
        inner = part
        for name in path[:-1]:
            inner = inner[name]
        del inner[path[-1]]
        assert Job(**part) == Job()
    for block in ("clients", "data", "training", "server", "protection", "privacy", "simulation"):
        assert Job(**{k: v for k, v in whole.items() if k != block}) == Job()


@pytest.mark.parametrize("position", POSITIONS)
def test_a_position_alone_is_its_defaults(position: str):
    short, long = load(f"protection: {position}"), load(f"protection: {{name: {position}}}")
    assert short == long == Job(protection=position) == Job.load(None, [f"protection={position}"])
    assert short.protection.name == position


@pytest.mark.parametrize(
    ("position", "settings"),
    [
        ("not_encrypt", NotEncryptSettings()),
        ("dp_encrypt", DPEncryptSettings()),
        ("pw_encrypt", PWEncryptSettings()),
        ("central_gaussian", CentralGaussianSettings()),
        ("signds", SignDSSettings()),
        ("rr", UnarySettings()),
        ("oue", UnarySettings()),
    ],
)
def test_active_settings(position: str, settings: object):
    assert Job(protection=position).protection.settings == settings


def test_user_functions_and_built_in_names():
    job = load("model: my.models:net_2\ndata: {name: 'model:data'}")
    assert (job.model, job.data.name) == ("my.models:net_2", "model:data")
    for name in ("my.models", "my..models:net", "models:", ":net", "2models:net", "models:net:two"):
        assert len(problems(f"model: '{name}'\ndata: {{name: '{name}'}}")) == 2


# --- weighting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("position", POSITIONS)
def test_weighting_follows_the_protection(position: str):
    local = position in ("dp_encrypt", "signds", "rr", "oue")
    assert find(position).perturbs == local
    job = Job(protection=position)
    noised = local or position == "central_gaussian"
    assert job.server.weighting == ("equal" if noised else "by_size")
    assert load(f"protection: {position}\nserver: {{weighting: equal}}").server.weighting == "equal"
    if local:
        sentence = problems(f"protection: {position}\nserver: {{weighting: by_size}}")
        assert sentence == [
            "server.weighting = by_size reveals to the server how much data each client has and "
            f"breaks the sensitivity of local privacy; under protection.name = {position} only "
            "equal is allowed"
        ]
    elif noised:
        assert problems(f"protection: {position}\nserver: {{weighting: by_size}}") == [
            "server.weighting = by_size breaks the sensitivity of central noise; under "
            "protection.name = central_gaussian only equal is allowed"
        ]
    else:
        explicit = load(f"protection: {position}\nserver: {{weighting: by_size}}")
        assert explicit.server.weighting == "by_size"


def test_an_explicit_by_size_stays_an_error_when_the_switch_is_set():
    assert len(problems(DEFAULT, "protection=signds")) == 1
    assert load(DEFAULT, "protection=signds", "server.weighting=equal").server.weighting == "equal"


# --- cohorts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "fraction", "cohort"),
    [(100, 0.5, 50), (10, 0.01, 1), (7, 1.0, 7), (3, 0.34, 1), (1000, 0.1, 100), (10, 0.29, 3)],
)
def test_clients_per_round(number: int, fraction: float, cohort: int):
    job = Job(clients={"number": number, "fraction": fraction})
    assert job.clients_per_round == cohort


@given(st.integers(1, 2000), st.integers(1, 1000))
@example(100, 70)  # 0.07 * 100 is above 7 in floating point
def test_sharing_clients_takes_the_ratio_as_written(cohort: int, thousandths: int):
    ratio = thousandths / 1000
    settings = PWEncryptSettings(share_secrets_ratio=ratio)
    assert settings.sharing_clients(cohort) == math.ceil(Fraction(thousandths, 1000) * cohort)


def test_owners_decide_the_number_of_clients():
    job = load("data: {name: femnist, split: by_client}\nprotection: pw_encrypt")
    assert job.clients.number is None
    assert job.warnings == []
    with pytest.raises(InvalidValue, match=r"^clients\.number = null is unknown"):
        _ = job.clients_per_round
    assert load(job.to_yaml()) == job
    known = job.with_clients(80)
    assert known.clients_per_round == 40
    assert known.clients.fraction == job.clients.fraction
    assert load("data: {name: femnist, split: by_client}\nclients: {number: 9}").clients.number == 9
    with pytest.raises(JobError, match=r"lets 2 of 2 clients a round share secrets, .* at least 3"):
        job.with_clients(4)


def test_owners_are_needed_where_they_decide():
    assert problems("data: {split: by_client}") == [
        "data.split = by_client needs data with owners, and digits has none: use femnist, "
        "shakespeare, text_folder, or package.module:function"
    ]
    assert load("data: {name: 'mine:data', split: by_client}").clients.number is None
    assert load("data: {name: mnist, split: writers}").clients.number is None
    assert (
        load("data: {name: mnist, split: writers}\nclients: {fraction: 0.5}").clients.number is None
    )
    assert problems("data: {name: image_folder}") == [
        "data.name = image_folder needs data.folder: name the folder that holds train/CLASS/ and "
        "test/CLASS/"
    ]
    assert problems("data: {name: fashion_mnist, split: writers}") == [
        "data.split = writers needs data.name = mnist, and fashion_mnist names no writers: use "
        "mnist, or by_client for data with owners"
    ]
    assert problems("clients: {number: null}") == [
        "clients.number = null is allowed only under data.split = by_client or writers; under iid "
        "use a whole number in [1, inf)"
    ]


# --- what is wrong, in one sentence each --------------------------------------------------------


@pytest.mark.parametrize(("text", "sentence"), vectors("job_sentences.txt"))
def test_sentence(text: str, sentence: str):
    assert problems(text) == [sentence]


@pytest.mark.parametrize(
    "text",
    [
        "deployment: {start_clients: 100}",
        "deployment: {answer_after_s: 299.5}",
        "{protection: pw_encrypt, deployment: {answer_after_s: 299.5, answer_s: 20}}",
        "{protection: pw_encrypt, clients: {number: 40, fraction: 0.5}, "
        "deployment: {clients_per_node: 13}}",
        "audit: {canaries: 50}",
        "{protection: {name: rr, unary: {fidelity: per_client}}, audit: {canaries: 3}}",
        "training: {nesterov: true, momentum: 0.1}",
        "training: {algorithm: feddyn, optimizer: adam, gradient_norm: 2.0}",
        "{training: {algorithm: fednova, normal_steps: 3}, "
        "server: {aggregation: median, weighting: equal, optimizer: adam, lr: 0.25}}",
        "{protection: distributed_dp, clients: {sampling: poisson}, training: {algorithm: fedcm}}",
        "{protection: distributed_dp, privacy: {unit: example}, training: {sampling_rate: 0.1}}",
        "{protection: pw_encrypt, data: {name: 'mine:data', split: by_client}, "
        "deployment: {clients_per_node: 3}}",
        "{protection: rr, training: {algorithm: feddyn}}",
        "server: {aggregation: norm_bound, weighting: by_size}",
        "server: {optimizer: adam, lr: 0.99}",
        "protection: {not_encrypt: {max_examples: 50}}",
        "{model: 'hf:m', task: sequence_classification, training: {class_weights: [1, 2.5]}}",
        "{model: 'hf:m', task: instruction, language: {prompts: [a]}}",
        "{protection: {name: pw_encrypt, pw_encrypt: {central_eps: 1.0, central_norm_clip: 8.0}}, "
        "privacy: {max_epsilon: null}}",
    ],
)
def test_what_just_fits_is_allowed(text: str):
    assert not [w for w in load(text).warnings if "central_eps" not in w]


BOUNDS = {
    "protection.signds.sign_k": (1e-300, 0.25),
    "protection.signds.sign_eps": (1e-300, 100),
    "protection.signds.sign_thr_ratio": (0.5, 1),
    "protection.signds.sign_dim_out": (0, 50),
    "protection.dp_encrypt.dp_delta": (1e-300, 1 - 2**-53),
    "protection.pw_encrypt.share_secrets_ratio": (1e-300, 1.0),
    "clients.fraction": (1e-300, 1),
    "privacy.delta": (0, 1 - 2**-53),
    "training.momentum": (0, 1 - 2**-53),
    "training.weight_decay": (0, 1e308),
    "simulation.dropouts.masked": (0, 1 - 2**-53),
    "seed": (0, 10**40),
}


@pytest.mark.parametrize("key", BOUNDS)
def test_both_ends_of_a_domain_are_inside_and_their_neighbours_are_not(key: str):
    low, high = BOUNDS[key]
    for value in (low, high):
        Job(**at(tuple(key.split(".")), value))
    outside = [-1, math.nextafter(0, -1)] if low in (0, 1e-300) else [math.nextafter(low, 0)]
    outside += [] if high > 100 else [math.nextafter(high, math.inf), high + 1]
    for value in outside:
        with pytest.raises(JobError) as caught:
            Job(**at(tuple(key.split(".")), value))
        assert caught.value.problems[0].startswith(f"{key} = {value!r} is ")


def test_every_key_refuses_what_it_cannot_be():
    """Few keys take a list, none a block, NaN or infinity; a number is not true."""
    lists = [("deployment", "reveal"), ("clients", "own_layers"), ("evaluation", "metrics")]
    lists += [("record", "callbacks"), ("adapter", "targets"), ("language", "prompts")]
    for path in allowed.keys(Job):
        values: list[Any] = [[], [1], math.nan, math.inf, -math.inf, {"a": 1}, "\x00", b"x"]
        switches = ("tensorboard", "page", "active_security", "regrow", "rotation", "masks")
        switches = (*switches, "nesterov", "recompute")
        if path[-1] not in switches:
            values += [True] if path[-1] != "adaptive" else []
        if path in lists:
            values.remove([])
        if path in (("protection", "own"), ("language", "config")):  # their readers check these
            values.remove({"a": 1})
        for value in values:
            with pytest.raises(JobError) as caught:
                Job(**at(path, value))
            assert all(p.startswith(".".join(path)) for p in caught.value.problems)


def test_all_problems_are_reported_at_once():
    found = problems(
        """
        seed: -1
        trainin: {lr: 1}
        lr: 0.1
        training: {optimizer: adam, momentum: 0.5, epochs: 0}
        server: {weighting: by_size, tau: x}
        protection: {name: signds, signds: {sign_k: 0.4, sign_eps: 0}}
        """,
        "model.depth=3",
        "privacy.randomness=sealed",
    )
    assert {sentence.split(" ")[0] for sentence in found} == {
        "seed",
        "trainin",
        "lr",
        "training.epochs",
        "training.momentum",
        "server.weighting",
        "server.tau",
        "protection.signds.sign_k",
        "protection.signds.sign_eps",
        "model.depth",
        "privacy.randomness",
    }
    assert len(found) == 11
    assert any("did you mean training.lr or server.lr?" in sentence for sentence in found)


def test_a_rule_is_silent_about_a_key_that_is_wrong_itself():
    text = "protection: {name: pw_encrypt}\nclients: {number: ten, fraction: 0.02}"
    assert problems(text) == ["clients.number = 'ten' is not a whole number in [1, inf) or null"]
    text = "protection: {name: pw_encrypt, pw_encrypt: {reconstruct_secrets_threshold: 0}}"
    assert len(problems(f"{text}\nclients: {{number: 20}}")) == 1


def test_a_job_of_the_other_kind_is_one_sentence_with_its_command(tmp_path: Path) -> None:
    split, federated = tmp_path / "a split.yaml", tmp_path / "federated.yaml"
    split.write_text("name: x\nepochs: 2\nbatch_size: 7\ntask: {name: tabular}\n")
    federated.write_text("name: x\nrounds: 2\nmodel: mlp\nclients: {number: 9}\n")
    for read, path, said in (
        (Job.load, split, f"vertical job. Run it with: fedveil vertical run '{split}'"),
        (Job.of, split, f"vertical job. Run it with: fedveil vertical run '{split}'"),
        (VerticalJob.load, federated, f"federated job. Run it with: fedveil run {federated}"),
        (VerticalJob.of, federated, f"federated job. Run it with: fedveil run {federated}"),
    ):
        with pytest.raises(JobError) as raised:
            read(path)
        assert raised.value.problems == (f"{path} is a {said}",)
    # A key that neither kind has is a mistake in a job of the kind that was asked for.
    split.write_text("name: x\nepochs: 2\nrunds: 7\n")
    with pytest.raises(JobError, match="runds") as raised:
        Job.load(split)
    assert "vertical" not in str(raised.value)


def test_the_keys_of_a_vertical_job_are_known_to_the_federated_one() -> None:
    assert set(VerticalJob.model_fields) == VERTICAL_KEYS


def test_a_job_is_checked_however_it_is_made():
    with pytest.raises(JobError, match=r"^rounds = 0 is outside \[1, inf\)$"):
        Job(rounds=0)
    with pytest.raises(JobError, match=r"^self = 1 is not a known key"):
        Job(self=1)
    with pytest.raises(JobError, match=r"^clients\.1 is a key that is not text$"):
        Job(clients={1: 2})
    with pytest.raises(JobError, match=r"^rounds = 3 cannot be set in place: use job.with_"):
        Job().rounds = 3  # type: ignore[misc]


# --- secure aggregation -------------------------------------------------------------------------


def pairwise(threshold: int, cohort: int, **settings: Any) -> Job:
    block = {"reconstruct_secrets_threshold": threshold, **settings}
    return Job(
        clients={"number": cohort, "fraction": 1.0},
        protection={"name": "pw_encrypt", "pw_encrypt": block},
    )


def test_threshold_is_below_the_clients_that_share():
    assert pairwise(59, 100, share_secrets_ratio=0.6).warnings == []
    with pytest.raises(JobError) as caught:
        pairwise(60, 100, share_secrets_ratio=0.6)
    assert caught.value.problems == (
        "protection.pw_encrypt.reconstruct_secrets_threshold = 60 is outside [1, 60): it is below "
        "the number of clients that share secrets, ceil(0.6 * 100 clients a round)",
    )
    with pytest.raises(JobError, match=r"outside \[1, 1\)"):
        pairwise(1, 1)


@pytest.mark.parametrize(
    ("threshold", "cohort", "ratio", "said"),
    [
        (50, 100, 1.0, "half"),
        (51, 100, 1.0, "two thirds"),
        (66, 100, 1.0, "two thirds"),
        (67, 100, 1.0, None),
        (30, 100, 0.6, "half"),
        (31, 100, 0.6, "two thirds"),
        (40, 100, 0.6, "two thirds"),
        (41, 100, 0.6, None),
    ],
)
def test_threshold_advice(threshold: int, cohort: int, ratio: float, said: str | None):
    warnings = pairwise(threshold, cohort, share_secrets_ratio=ratio).warnings
    assert [said in w for w in warnings] == ([] if said is None else [True])
    assert all(
        w.startswith("protection.pw_encrypt.reconstruct_secrets_threshold") for w in warnings
    )
    block = {"pw_encrypt": {"reconstruct_secrets_threshold": threshold}}
    quiet = {"name": "not_encrypt", **block}
    assert Job(protection=quiet).warnings == []


def test_the_graph_fits_the_cohort():
    assert pairwise(7, 20, neighbours=10).protection.pw_encrypt.neighbours == 10
    with pytest.raises(JobError, match=r"neighbours = 20 is outside \[2, 20\)"):
        pairwise(7, 20, neighbours=20)
    with pytest.raises(JobError, match="neighbours = 6 is below reconstruct_secrets_threshold = 7"):
        pairwise(7, 20, neighbours=6)
    [warning] = pairwise(7, 40, neighbours=20).warnings
    assert "at most half of the 21 clients of a neighbourhood" in warning
    assert pairwise(8, 40, neighbours=10).warnings == []
    with pytest.raises(JobError, match="active_security needs complete"):
        pairwise(7, 20, neighbours=10, active_security=True)
    assert pairwise(15, 20, neighbours="complete", active_security=True).warnings == []


# --- advice -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "beginning"),
    [
        (["protection=dp_encrypt", "clients.number=101"], "protection.dp_encrypt.dp_delta = 0.01"),
        (["server.optimizer=yogi"], "server.lr = 1.0 under server.optimizer = yogi"),
        (["privacy.max_epsilon=8"], "privacy.max_epsilon = 8.0 ends the run before"),
        (["data.alpha=0.1"], "data.alpha = 0.1 has no effect under data.split = iid"),
        (
            ["server.tau=0.1", "server.beta1=0.5"],
            "server.beta1 = 0.5 has no effect under server.optimizer = none; server.tau = 0.1",
        ),
    ],
)
def test_advice(overrides: list[str], beginning: str):
    (warning,) = Job.load(None, overrides).warnings
    assert warning.startswith(beginning)


@pytest.mark.parametrize(
    "overrides",
    [
        ["protection=dp_encrypt"],
        ["server.optimizer=adam", "server.lr=0.03", "server.tau=0.1"],
        ["privacy.max_epsilon=8", "protection=rr"],
        ["data.alpha=0.1", "data.split=dirichlet"],
        ["data.alpha=0.5", "server.tau=0.001", "adapter.targets=[]"],  # their defaults
        ["server.optimizer=momentum", "server.momentum=0.5"],
    ],
)
def test_no_advice_where_none_is_due(overrides: list[str]):
    assert Job.load(None, overrides).warnings == []


@pytest.mark.parametrize(
    ("key", "value", "other", "used", "unused"),
    [
        ("server.momentum", 0.5, "server.optimizer", "momentum", "none adagrad adam yogi"),
        ("server.beta1", 0.5, "server.optimizer", "adagrad adam yogi", "none momentum"),
        ("server.beta2", 0.5, "server.optimizer", "adam yogi", "none momentum adagrad"),
        ("server.tau", 0.5, "server.optimizer", "adagrad adam yogi", "none momentum"),
        ("server.trim", 0.2, "server.aggregation", "trimmed_mean", "mean median norm_bound"),
        ("server.norm_bound", 2.0, "server.aggregation", "norm_bound", "mean median trimmed_mean"),
        ("training.lr_rounds", 3, "training.lr_schedule", "step cosine", "constant own:rate"),
        ("training.lr_factor", 0.5, "training.lr_schedule", "step cosine", "constant own:rate"),
        ("training.dynamic", 0.5, "training.algorithm", "feddyn", "fedavg scaffold fedcm"),
        ("training.own_direction", 0.5, "training.algorithm", "fedcm", "fedavg scaffold feddyn"),
        ("data.shards_per_client", 3, "data.split", "shards", "iid dirichlet"),
        ("data.alpha", 0.3, "data.split", "dirichlet", "iid shards"),
        ("data.folder", "f", "data.name", "image_folder text_folder", "digits own:data"),
    ],
)
def test_a_key_is_unread_under_each_choice_that_does_not_need_it(
    key: str, value: object, other: str, used: str, unused: str
):
    for choice in f"{used} {unused}".split():
        text = {"model": "hf:m", "task": "next_token"} if choice == "text_folder" else {}
        warnings = Job().with_({key: value, other: choice, **text}).warnings
        told = f"{key} = {shown(value)} has no effect under {other} = {choice}"
        assert (told in "; ".join(warnings)) == (choice in unused.split()), choice


def test_another_protection_of_ones_own_gets_default_parameters():
    held = {"name": "a:One", "own": {"x": 3}, "unary": {"eps": 2.0}}
    assert ProtectionSettings.shorthand(held, "b:Two") == {"name": "b:Two", "unary": {"eps": 2.0}}
    assert ProtectionSettings.shorthand(held, "rr") == {"name": "rr", "own": {"x": 3}}
    assert ProtectionSettings.shorthand(held, "a:One") == held


def test_parameters_of_a_position_that_is_not_picked_are_told_of():
    """A file that says how much noise there is, and not that there is any."""
    (warning,) = Job(protection={"dp_encrypt": {"dp_eps": 3.0}}).warnings
    assert warning == (
        "protection.dp_encrypt has no effect, because protection.name is not set and its default "
        "is not_encrypt"
    )
    for name in ("not_encrypt", "dp_encrypt"):
        assert Job(protection={"name": name, "dp_encrypt": {"dp_eps": 3.0}}).warnings == []


def test_a_dotted_key_in_a_file_is_told_where_it_stands():
    with pytest.raises(
        JobError, match=r"is a key of the block protection: write it inside that block$"
    ):
        Job(**{"protection.dp_encrypt.dp_eps": 3})
    with pytest.raises(JobError, match=r"^a\.b = 3 is not a known key; the keys are name"):
        Job(**{"a.b": 3})


def test_what_others_call_a_key_is_known():
    with pytest.raises(JobError, match=r"\(did you mean training\.lr\?\)"):
        Job(training={"learning_rate": 0.1})


def test_importing_the_job_brings_no_torch():
    code = (
        "import sys; from fedveil.federated import job, mindspore, job_reference; job.Job.load();"
        "bad = {'torch', 'sklearn', 'pandas', 'fedveil.learning'} & set(sys.modules);"
        "sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
