"""MindSpore Federated's files: what they become, what is ignored, and what is refused."""

from __future__ import annotations

import copy
import math
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from fedveil.errors import JobError
from fedveil.federated import mindspore, mindspore_keys
from fedveil.federated.job import Job
from fedveil.protections.catalog import POSITIONS
from fedveil.settings import yaml_file
from fedveil.settings.allowed import shown
from job_checks import DATA, attempt, load

PLAIN = {
    "fl_name": "plain",
    "fl_iteration_num": 3,
    "server_mode": "FEDERATED_LEARNING",
    "round": {"start_fl_job_threshold": 10, "update_model_ratio": 1.0},
    "encrypt": {"encrypt_train_type": "NOT_ENCRYPT"},
    "client": {"client_epoch_num": 2, "client_batch_size": 8, "client_learning_rate": 0.5},
}


def changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The plain file, with the values at dotted places set."""
    data: dict[str, Any] = copy.deepcopy(PLAIN)
    for place, value in changes:
        block = data
        *path, name = place.split(".")
        for part in path:
            block = block.setdefault(part, {})
        block[name] = value
    return data


def sharing(job: Job) -> int:
    """The number of a round's clients that share secrets."""
    return job.protection.pw_encrypt.sharing_clients(job.clients_per_round)


class Conversion(NamedTuple):
    """A job that was read from their file, what was ignored in it, and what there is to say."""

    job: Job
    ignored: list[str]
    notes: list[str]


def translate(data: dict[str, Any]) -> Conversion:
    job, notes = Job.translated(data)
    return Conversion(job, mindspore.Translation(data, Job.model_fields).ignored, notes)


def convert(path: Path) -> Conversion:
    job, notes = Job.convert(path)
    assert (job, notes) == Job.load_with_notes(path)
    ignored = mindspore.Translation(yaml_file.read(path), Job.model_fields).ignored
    return Conversion(job, ignored, notes)


def refusals(*changes: tuple[str, Any]) -> list[str]:
    conversion, problems = attempt(lambda: translate(changed(*changes)))
    assert conversion is None
    return list(problems)


# --- whole files --------------------------------------------------------------------------------


def test_a_complete_file_of_the_sources_experiment():
    conversion = convert(DATA / "mindspore_signds.yaml")
    expected = Job(
        name="LeNet on handwriting",
        rounds=600,
        clients={"number": 100, "fraction": 1.0},
        training={"epochs": 20, "batch_size": 32, "lr": 0.01},
        protection={
            "name": "signds",
            "signds": {"sign_k": 0.2, "sign_global_lr": 4.0},
            "pw_encrypt": {"cipher_time_window": 3000, "reconstruct_secrets_threshold": 1},
        },
    )
    assert conversion.job == expected
    assert conversion.job.server.weighting == "equal"
    assert conversion.ignored == [
        "enable_ssl",
        "checkpoint_dir",
        "distributed_cache.type",
        "distributed_cache.address",
        "distributed_cache.plugin_lib_path",
        "round.start_fl_job_time_window",
        "round.update_model_time_window",
        "round.global_iteration_time_window",
        "summary.metrics_file",
        "summary.failure_event_file",
        "summary.continuous_failure_times",
        "summary.data_rate_dir",
        "summary.participation_time_level",
        "unsupervised.cluster_client_num",
        "unsupervised.eval_type",
        "compression.upload_sparse_rate",
        "ssl.server_cert_path",
        "ssl.client_cert_path",
        "ssl.ca_cert_path",
        "ssl.crl_path",
        "ssl.cipher_list",
        "ssl.cert_expire_warning_time_in_day",
        "client_verify.pki_verify",
        "client_verify.root_first_ca_path",
        "client_verify.root_second_ca_path",
        "client_verify.equip_crl_path",
        "client_verify.replay_attack_time_diff",
        "client.http_url_prefix",
        "client.connection_num",
    ]
    assert conversion.notes[0].endswith(", ".join(conversion.ignored))
    assert not any("left out" in note for note in conversion.notes)


def test_secure_aggregation_with_latecomers():
    conversion = convert(DATA / "mindspore_pw.yaml")
    job = conversion.job
    assert (job.protection.name, job.clients_per_round, sharing(job)) == ("pw_encrypt", 50, 48)
    assert job.protection.pw_encrypt.reconstruct_secrets_threshold == 35
    assert job.protection.pw_encrypt.cipher_time_window == 20000
    assert job.simulation.dropouts == {"masked": 0.1}
    assert job.server.weighting == "by_size"
    assert conversion.ignored == []
    assert any("45 of 50 updates close a round" in note for note in conversion.notes)


def test_the_older_form_without_blocks():
    conversion = convert(DATA / "mindspore_flat.yaml")
    assert conversion.job == Job(
        name="flat",
        rounds=10,
        clients={"number": 8, "fraction": 1.0},
        training={"epochs": 2, "batch_size": 16, "lr": 0.05},
        protection={
            "name": "dp_encrypt",
            "dp_encrypt": {"dp_eps": 60.0, "dp_delta": 0.125, "dp_norm_clip": 0.5},
        },
    )
    assert set(conversion.ignored) == {
        "enable_fl",
        "ms_role",
        "server_num",
        "scheduler_ip",
        "scheduler_port",
        "fl_server_port",
    }


def test_everything_that_cannot_be_taken_over_is_named_at_once_in_their_words():
    with pytest.raises(JobError) as caught:
        convert(DATA / "mindspore_refused.yaml")
    assert list(caught.value.problems) == [
        "start_job = 3 is not a key of MindSpore Federated's server",
        "encrypt.dp_encrypt.dp_norm_clp = 1.0 is not a key of MindSpore Federated's server "
        "(did you mean encrypt.dp_encrypt.dp_norm_clip?)",
        "ssl = 1 is not a block of keys",
        "server_mode = 'HYBRID_TRAINING' is not supported: in it the server also trains, on "
        "data of its own; FEDERATED_LEARNING and CLOUD_TRAINING are allowed",
        "aggregation.aggregation_type = 'FedSGD' is not supported: only FedAvg, FedProx, "
        "Scaffold and FedCM are allowed",
        "compression.upload_compress_type = 'DIFF_SPARSE_QUANT' is not supported: "
        "DIFF_SPARSE_QUANT changes the clients' updates; only NO_COMPRESS is allowed",
        "compression.download_compress_type = 'QUANT' is not supported: QUANT changes the model "
        "from which clients start; only NO_COMPRESS is allowed",
        "aggregation.total_client_num = 4 is below round.start_fl_job_threshold = 10: a round's "
        "cohort is at most all clients",
        "round.update_model_ratio = 1.5 is not a number in (0, 1]",
        "fl_iteration_num = 0 is outside [1, inf)",
        "encrypt.dp_encrypt.dp_delta = 1 is outside (0, 1)",
        "encrypt.signds.sign_k = 0.4 is outside (0, 0.25]",
    ]


@pytest.mark.parametrize("name", ["signds", "pw", "flat"])
def test_the_native_form_is_the_same_job(name: str):
    path = DATA / f"mindspore_{name}.yaml"
    job = convert(path).job
    assert Job.load(path) == job == load(job.to_yaml())


def test_fedprox_is_read_with_its_rate():
    conversion = translate(
        changed(("aggregation", {"aggregation_type": "FedProx", "iid_rate": 0.25}))
    )
    assert conversion.job.training.proximal == 0.25
    assert conversion.ignored == []
    assert any("uses the mean of the squares of each tensor" in note for note in conversion.notes)
    without = translate(changed(("aggregation", {"aggregation_type": "FedProx", "iid_rate": 0})))
    assert without.job.training.proximal == 0
    with pytest.raises(JobError, match=r"'FedProx' needs aggregation\.iid_rate, the weight"):
        translate(changed(("aggregation", {"aggregation_type": "FedProx"})))


def test_a_wrong_value_is_told_with_its_key_as_the_file_spells_it():
    assert refusals(("aggregation", {"aggregation_type": "FedProx", "iid_rate": -1})) == [
        "aggregation.iid_rate = -1 is outside [0, inf)"
    ]
    flat = {"start_fl_job_threshold": 9, "client_epoch_num": 0, "client_batch_size": 8,
            "encrypt_type": "SIGNDS", "sign_k": 0.4}  # fmt: skip
    with pytest.raises(JobError) as caught:
        translate(flat)
    assert list(caught.value.problems) == [
        "client_epoch_num = 0 is outside [1, inf)", "sign_k = 0.4 is outside (0, 0.25]",
    ]  # fmt: skip


def test_scaffold_is_read_and_fednova_is_refused():
    of_kind = translate(changed(("aggregation", {"aggregation_type": "Scaffold", "iid_rate": 1})))
    assert of_kind.job.training.algorithm == "scaffold"
    assert of_kind.ignored == ["aggregation.iid_rate"]
    plain = translate(changed(("aggregation", {"aggregation_type": "FedAvg", "iid_rate": 1})))
    assert plain.job.training.proximal == 0
    assert plain.ignored == ["aggregation.iid_rate"]
    with pytest.raises(JobError, match="sends the clients' numbers of steps unprotected"):
        translate(changed(("aggregation", {"aggregation_type": "FedNova"})))


def test_fedcm_is_read_with_the_weight_that_mindspore_fixes():
    conversion = translate(
        changed(("aggregation", {"aggregation_type": "FedCM", "iid_rate": 0.01}))
    )
    training = conversion.job.training
    assert (training.algorithm, training.own_direction) == ("fedcm", 0.02)
    assert conversion.ignored == ["aggregation.iid_rate"]
    assert any("their FedCM fixes alpha at 0.02" in note for note in conversion.notes)


# --- the switch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["encrypt_type", "encrypt_train_type"])
@pytest.mark.parametrize(
    "position", ["not_encrypt", "dp_encrypt", "signds", "rr", "oue", "pw_encrypt"]
)
def test_both_names_of_the_switch_in_any_case(key: str, position: str):
    for spelling in (position, position.upper(), position.title()):
        data = changed(("encrypt", {key: spelling}))
        data["encrypt"]["pw_encrypt"] = {"reconstruct_secrets_threshold": 7}
        assert translate(data).job.protection.name == position


def test_the_two_names_must_agree():
    agreeing = changed(("encrypt.encrypt_type", "not_encrypt"))
    assert translate(agreeing).job.protection.name == "not_encrypt"
    assert refusals(("encrypt.encrypt_type", "SIGNDS")) == [
        "encrypt.encrypt_type = 'SIGNDS' and encrypt.encrypt_train_type = 'NOT_ENCRYPT' are two "
        "names of one setting and differ"
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("STABLE_PW_ENCRYPT", "keeps one set of pairwise keys for all rounds and is not supported"),
        ("SIGN_DS", "is not a protection"),
        (None, "is not a protection"),
        (3, "is not a protection"),
    ],
)
def test_a_switch_in_no_position(value: Any, why: str):
    (sentence,) = refusals(("encrypt.encrypt_train_type", value))
    positions = ", ".join(name.upper() for name in POSITIONS)
    assert f" {why}; it is one of {positions}" in sentence
    assert sentence.startswith("encrypt.encrypt_train_type = ")


def test_our_additions_stand_beside_their_keys():
    job = translate(
        changed(
            ("encrypt.encrypt_train_type", "RR"),
            ("encrypt.unary", {"eps": 2.0, "cells": 7, "total_eps": None}),
            ("encrypt.signds", {"regrow": True}),
        )
    ).job
    assert (job.protection.unary.eps, job.protection.unary.cells) == (2.0, 7)
    assert job.protection.signds.regrow


PW = ("encrypt.encrypt_train_type", "PW_ENCRYPT")
THRESHOLD = ("encrypt.pw_encrypt.reconstruct_secrets_threshold", 7)


def test_the_share_ratio_goes_by_two_names():
    name, alias = (f"encrypt.pw_encrypt.share_{word}_ratio" for word in ("secrets", "client"))
    for ratios in ({name: 1.0}, {alias: 1.0}, {name: 1.0, alias: 1}):
        data = changed(PW, THRESHOLD, *ratios.items())
        assert sharing(translate(data).job) == 10
    assert sharing(translate(changed(PW, THRESHOLD, (alias, 0.8))).job) == 8
    assert len(refusals(PW, THRESHOLD, (alias, 0.8), (name, 1.0))) == 1
    assert refusals(PW, THRESHOLD, (alias, 2)) == [f"{alias} = 2 is outside (0, 1]"]


def test_a_threshold_that_is_left_out_follows_from_the_cohort():
    settings = translate(changed(PW)).job.protection.pw_encrypt
    assert settings.threshold(10) == 7


def test_the_threshold_is_below_the_cohort():
    place = "encrypt.pw_encrypt.reconstruct_secrets_threshold"
    (sentence,) = refusals(PW, (place, 10))
    assert sentence.startswith(f"{place} = 10 is outside [1, 10): it is below the number of")


def test_one_server_under_pairwise_masks():
    for number in (2, 0):
        assert refusals(PW, THRESHOLD, ("server_num", number)) == [
            f"server_num = {number} is not supported under PW_ENCRYPT: one server holds the sum of "
            "masks, so only 1 is allowed"
        ]
    assert translate(changed(PW, THRESHOLD, ("server_num", 1))).ignored == []
    assert translate(changed(("server_num", 2))).ignored == ["server_num"]


@pytest.mark.parametrize("position", ["SIGNDS", "PW_ENCRYPT"])
def test_compression_of_uploads_that_their_server_switches_off(position: str):
    upload = ("compression.upload_compress_type", "DIFF_SPARSE_QUANT")
    data = changed(("encrypt.encrypt_train_type", position), THRESHOLD, upload)
    assert translate(data).ignored == ["compression.upload_compress_type"]
    assert len(refusals(upload)) == 1
    download = ("compression.download_compress_type", "QUANT")
    assert len(refusals(("encrypt.encrypt_train_type", position), THRESHOLD, download)) == 1


# --- cohorts ------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(1, 1000))
@example(100, 70)  # 0.07 * 100 is above 7 in floating point
def test_the_ratio_drops_exactly_the_latecomers(threshold: int, thousandths: int):
    """The decimal ratio as it is written decides, never its nearest binary number."""
    data = changed(
        ("round.start_fl_job_threshold", threshold),
        ("round.update_model_ratio", thousandths / 1000),
    )
    job = translate(data).job
    late = threshold - math.ceil(Decimal(thousandths) / 1000 * threshold)
    assert job.clients_per_round == threshold
    assert round(job.simulation.dropouts.get("masked", 0) * threshold) == late
    assert (job.simulation.dropouts == {}) == (late == 0)


def test_the_latecomers_are_a_share_of_the_cohort_and_not_of_all_clients():
    data = changed(("aggregation.total_client_num", 40), ("round.update_model_ratio", 0.8))
    assert translate(data).job.simulation.dropouts == {"masked": 0.2}


def test_words_are_read_in_any_case_and_an_empty_block_is_none():
    data = changed(("compression.upload_compress_type", "no_compress"), ("summary", {}))
    assert translate(data).ignored == []
    for name in ("STABLE_PW_ENCRYPT", "stable_pw_encrypt"):
        (sentence,) = refusals(("encrypt.encrypt_train_type", name))
        assert "keeps one set of pairwise keys" in sentence


@pytest.mark.parametrize("value", [0, -0.1, 1.01, math.nan, math.inf, True, "1.0"])
def test_a_ratio_outside_its_domain(value: Any):
    (sentence,) = refusals(("round.update_model_ratio", value))
    assert sentence.startswith("round.update_model_ratio = ")
    assert sentence.endswith(" is not a number in (0, 1]")


@given(st.integers(1, 2000), st.integers(0, 2000))
def test_a_known_number_of_clients(threshold: int, more: int):
    data = changed(
        ("round.start_fl_job_threshold", threshold),
        ("aggregation", {"aggregation_type": "FEDAVG", "total_client_num": threshold + more}),
    )
    job = translate(data).job
    assert (job.clients.number, job.clients_per_round) == (threshold + more, threshold)


@pytest.mark.parametrize("value", [0, True, "ten", 1.5])
def test_a_cohort_that_is_no_number(value: Any):
    sentence = f" = {shown(value)} is not a whole number in [1, inf)"
    assert refusals(("round.start_fl_job_threshold", value)) == [
        f"round.start_fl_job_threshold{sentence}"
    ]
    assert refusals(("aggregation.total_client_num", value)) == [
        f"aggregation.total_client_num{sentence}"
    ]


@pytest.mark.parametrize("mode", ["FEDERATED_LEARNING", "cloud_training"])
def test_modes_that_average(mode: str):
    assert translate(changed(("server_mode", mode))).job == translate(PLAIN).job


@pytest.mark.parametrize("mode", ["PARAMETER_SERVER", "", 3])
def test_modes_that_do_not(mode: Any):
    (sentence,) = refusals(("server_mode", mode))
    assert "does not average clients' models" in sentence


# --- the file as a whole ------------------------------------------------------------------------


def test_what_is_left_out_takes_their_defaults_and_is_said():
    conversion = translate({"encrypt": {"encrypt_type": "RR"}})
    job = conversion.job
    assert (job.name, job.rounds, job.clients_per_round) == ("Lenet", 20, 1)
    assert (job.training.epochs, job.training.batch_size, job.training.lr) == (25, 32, 0.001)
    (note,) = [note for note in conversion.notes if "left out" in note]
    assert all(f"{k} = {v}" in note for k, v in mindspore_keys.DEFAULTS.items())
    some = translate({"fl_iteration_num": 7, "encrypt": {"encrypt_type": "RR"}})
    (note,) = [note for note in some.notes if "left out" in note]
    assert "fl_iteration_num" not in note


def left_out(conversion: Conversion) -> list[str]:
    return [note for note in conversion.notes if note.startswith("left out")]


def test_parameters_of_the_chosen_protection_that_are_left_out_are_said():
    chosen = ("encrypt.encrypt_train_type", "DP_ENCRYPT")
    given = ("encrypt.dp_encrypt", {"dp_norm_clip": 0.7})
    assert left_out(translate(changed(chosen, given))) == [
        "left out, so their defaults apply: encrypt.dp_encrypt.dp_eps = 50.0, "
        "encrypt.dp_encrypt.dp_delta = 0.01"
    ]
    assert left_out(translate(changed(given))) == []  # without protection, they have no effect


def test_a_threshold_that_is_left_out_is_not_said_to_be_theirs():
    place = "encrypt.pw_encrypt."
    window, alias = (f"{place}cipher_time_window", 3000), (f"{place}share_client_ratio", 1.0)
    assert left_out(translate(changed(PW, window, alias))) == [
        f"left out, so fedveil's default applies, not theirs (2000): "
        f"{place}reconstruct_secrets_threshold"
    ]
    assert left_out(translate(changed(PW, THRESHOLD, window, alias))) == []


def test_each_default_that_is_said_to_be_theirs_is_their_documented_one():
    documented = {
        "dp_eps": 50, "dp_delta": 0.01, "dp_norm_clip": 1, "sign_k": 0.01, "sign_eps": 100,
        "sign_thr_ratio": 0.6, "sign_global_lr": 1, "sign_dim_out": 0, "share_secrets_ratio": 1,
        "cipher_time_window": 300_000,
    }  # fmt: skip
    said = {
        key.rpartition(".")[2]: value
        for position in POSITIONS.values()
        for key, value in mindspore_keys.parameters(position).items()
        if key not in mindspore_keys.OTHER_DEFAULTS
    }
    assert said == documented


def test_settings_on_top_are_in_our_keys():
    path = DATA / "mindspore_signds.yaml"
    job = Job.load(path, ["clients.number=1000", "clients.fraction=0.1", "protection=oue"])
    assert (job.clients_per_round, job.rounds, job.protection.name) == (100, 600, "oue")
    with pytest.raises(JobError) as caught:
        Job.load(path, ["rounds = 0", "seeed=1", "protection.signds.sign_eps=0"])
    assert [problem.split(" ")[0] for problem in caught.value.problems] == [
        "seeed",
        "rounds",
        "protection.signds.sign_eps",
    ]


UNKNOWN = "is not a key of MindSpore Federated's server"


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("seed", 3, f"seed = 3 {UNKNOWN}; set a fedveil key with --set, or in a fedveil job file"),
        ("clients", {"number": 3}, f"clients.number = 3 {UNKNOWN}; set a fedveil key with --set"),
        ("fl_nam", "x", f"fl_nam = 'x' {UNKNOWN} (did you mean fl_name?)"),
        ("summary", 3, "summary = 3 is not a block of keys"),
        ("extra", {}, f"extra = {{}} {UNKNOWN}"),
        ("a", {"b": {"c": {"d": {"e": 1}}}}, f"a.b.c = {{'d': {{'e': 1}}}} {UNKNOWN}"),
        ("fl_name", None, "fl_name has no value"),
        ("fl_name", {"a": 1}, f"fl_name.a = 1 {UNKNOWN}"),
        ("fl_name", "a/b", "fl_name = 'a/b' is not text of at most 100 characters"),
        ("update_model_ratio", 1.0, "update_model_ratio repeats round.update_model_ratio"),
        ("client.client_learning_rate", "1", "client.client_learning_rate = '1' is not a number"),
        ("encrypt.dp_encrypt.dp_eps", None, "encrypt.dp_encrypt.dp_eps = null is not a number"),
    ],
)
def test_one_thing_wrong(place: str, value: Any, sentence: str):
    (found,) = refusals((place, value))
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    ("data", "theirs"),
    [
        (PLAIN, True),
        ({**PLAIN, "seed": 1}, True),
        ({"encrypt": {}}, True),
        ({"start_fl_job_threshold": 5, "rounds": 3, "encrypt_type": "SIGNDS"}, True),
        ({"distributed_cache": {}}, True),
        ({}, False),
        (Job().model_dump(), False),
        ({"client": {}, "rounds": 3}, False),
        ({"round": 3, "seed": 1}, False),
        ({"neighbours": 3}, False),
    ],
)
def test_whose_file_it_is(data: dict[str, Any], theirs: bool):
    assert mindspore.is_dialect(data, Job.model_fields) == theirs


def test_converting_a_party_s_file_names_the_page_with_the_counterparts(tmp_path: Path):
    (tmp_path / "leader.yaml").write_text("role: leader\nmodel: {train_net: {name: x}}\n")
    with pytest.raises(JobError, match=r"cannot be read: .*docs/own-split-models\.md"):
        convert(tmp_path / "leader.yaml")


def test_converting_a_file_of_ours_is_refused(tmp_path: Path):
    (tmp_path / "job.yaml").write_text(Job().to_yaml())
    with pytest.raises(
        JobError, match="does not hold the settings of a MindSpore Federated server"
    ):
        convert(tmp_path / "job.yaml")


JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just([1])


@given(st.dictionaries(st.sampled_from([*mindspore_keys.KEYS, "x.y", "seed"]), JUNK, max_size=6))
def test_junk_is_a_job_or_one_sentence_for_each_problem(values: dict[str, Any]):
    conversion, problems = attempt(lambda: translate(changed(*values.items())))
    assert (conversion is None) == bool(problems)
    assert len(set(problems)) == len(problems)
    if conversion is not None:
        assert load(conversion.job.to_yaml()) == conversion.job


# --- the tables ---------------------------------------------------------------------------------


def test_the_tables_do_not_overlap_and_lead_to_keys_that_exist():
    tables = (
        mindspore_keys.CONVERTED,
        mindspore_keys.INTERPRETED,
        mindspore_keys.REFUSED,
        mindspore_keys.IGNORED,
    )
    assert len(set().union(*tables)) == sum(map(len, tables)) == len(mindspore_keys.KEYS)
    whole = Job().model_dump()
    for ours in mindspore_keys.CONVERTED.values():
        value: Any = whole
        for part in ours.split("."):
            value = value[part]
    tops = {key.partition(".")[0] for key in mindspore_keys.KEYS}
    assert not (tops | set(mindspore_keys.WITHOUT_BLOCK)) & set(Job.model_fields)


@pytest.mark.parametrize("key", mindspore_keys.IGNORED)
def test_each_ignored_key_is_ignored_and_listed(key: str):
    conversion = translate(changed((key, "anything")))
    assert conversion.ignored == [key]
    assert conversion.job == translate(PLAIN).job


def test_the_table_names_our_key_where_its_name_is_another():
    lines = mindspore_keys.key_table().splitlines()
    renamed = {
        theirs: ours
        for theirs, ours in mindspore_keys.CONVERTED.items()
        if theirs.rpartition(".")[2] != ours.rpartition(".")[2]
    }
    assert len(renamed) > 3
    for theirs, ours in renamed.items():
        (line,) = (line for line in lines if f"`{theirs}`" in line)
        assert f"| `{ours}` |" in line
    names = "`encrypt.dp_encrypt.dp_eps`, `dp_delta`, `dp_norm_clip`, `noise`"
    assert f"| {names} | the same in `protection.dp_encrypt` |" in lines  # the block once


def test_the_examples_of_the_page_are_true():
    page = (DATA.parent.parent / "docs" / "mindspore.md").read_text(encoding="utf-8")
    for place, value in (("encrypt.signds.sign_k", 0.4), ("server_mode", "HYBRID_TRAINING")):
        (sentence,) = refusals((place, value))
        assert f"\n{sentence}\n" in page


def test_the_files_here_are_plain_yaml():
    for path in DATA.glob("mindspore_*.yaml"):
        assert yaml_file.read(path) == yaml.safe_load(path.read_text())
