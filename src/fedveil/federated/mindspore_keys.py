"""The translation of every key in a MindSpore Federated server's YAML file.

A key is in one of four tables, and a key in none of them is an error. Each key in `CONVERTED`
becomes one key of fedveil. `INTERPRETED` states a rule for each of its keys. A key in `REFUSED`
controls a feature that fedveil lacks, so the only valid value is the one that turns it off. The
keys in `IGNORED` configure MindSpore's servers, transport and files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS

MODE = "server_mode"
THRESHOLD = "round.start_fl_job_threshold"
RATIO = "round.update_model_ratio"
TOTAL = "aggregation.total_client_num"
TYPE = "encrypt.encrypt_type"
TRAIN_TYPE = "encrypt.encrypt_train_type"
SERVERS = "server_num"
UPLOAD = "compression.upload_compress_type"
AGGREGATION = "aggregation.aggregation_type"
IID_RATE = "aggregation.iid_rate"
#: The weight of a client's own gradient in MindSpore's FedCM. No key of theirs changes it.
FEDCM_ALPHA = 0.02

#: MindSpore's key -> fedveil's key. The keys that fedveil adds to a block of `encrypt` are allowed
#: too.
CONVERTED = {
    "fl_name": "name",
    "fl_iteration_num": "rounds",
    "client.client_epoch_num": "training.epochs",
    "client.client_batch_size": "training.batch_size",
    "client.client_learning_rate": "training.lr",
    **{
        f"encrypt.{position.block}.{key}": f"protection.{position.block}.{key}"
        for position in POSITIONS.values()
        for key in position.settings_type.model_fields
    },
}

#: MindSpore's alias of a key -> the key.
ALIASES = {
    f"encrypt.{position.block}.{alias}": f"encrypt.{position.block}.{key}"
    for position in POSITIONS.values()
    for alias, key in position.dialect.aliases.items()
}

_THEIRS = [name.upper() for name, position in POSITIONS.items() if position.dialect.theirs]
_OURS = [name.upper() for name, position in POSITIONS.items() if not position.dialect.theirs]
_ONE_SERVER = [name.upper() for name, p in POSITIONS.items() if p.dialect.one_server]
#: MindSpore's protections that are not supported -> why.
REFUSED_POSITIONS = {
    name: why for position in POSITIONS.values() for name, why in position.dialect.refused.items()
}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


#: MindSpore's key -> the rule.
INTERPRETED = {
    MODE: "`FEDERATED_LEARNING` and `CLOUD_TRAINING` average clients' models, like a job. "
    "`HYBRID_TRAINING`, in which the server also trains, and any other mode are refused",
    THRESHOLD: "clients per round: `clients.number`, with `clients.fraction: 1.0`",
    TOTAL: "`clients.number`, and `clients.fraction` is then threshold / total",
    RATIO: "1.0: nothing. Below 1.0, their round closes after ceil(ratio * threshold) updates and "
    "refuses later ones, so the rest of each cohort drops out: `simulation.dropouts.masked`",
    TYPE: f"`protection.name`: {_listed(_THEIRS)}, in any case, and {_listed(_OURS)}, "
    f"which fedveil adds; {_listed(REFUSED_POSITIONS)} is refused",
    TRAIN_TYPE: f"the newer name of `{TYPE}`",
    **{alias: f"another name of `{key}`" for alias, key in ALIASES.items()},
    AGGREGATION: "`FedAvg`: nothing; `FedProx`: `training.proximal`, from `aggregation.iid_rate`; "
    "`Scaffold`: `training.algorithm: scaffold`; `FedCM`: `training.algorithm: fedcm` with "
    f"`training.own_direction: {FEDCM_ALPHA}`, as in MindSpore; `FedNova` is refused, since it "
    "sends the clients' numbers of steps unprotected",
    IID_RATE: "`training.proximal` under `FedProx`, which needs it; ignored otherwise",
    SERVERS: f"1, as in MindSpore, under {_listed(_ONE_SERVER)}; otherwise ignored, as it changes "
    "nothing",
}

#: MindSpore's key -> the value that changes nothing, and why other values are refused.
REFUSED = {
    UPLOAD: ("NO_COMPRESS", "DIFF_SPARSE_QUANT changes the clients' updates"),
    "compression.download_compress_type": (
        "NO_COMPRESS",
        "QUANT changes the model from which clients start",
    ),
}

_IGNORED_BECAUSE = {
    "their transport and its access control": """
        enable_ssl ssl.server_cert_path ssl.client_cert_path ssl.ca_cert_path ssl.crl_path
        ssl.cipher_list ssl.cert_expire_warning_time_in_day client_password server_password
        client_verify.pki_verify client_verify.root_first_ca_path client_verify.root_second_ca_path
        client_verify.equip_crl_path client_verify.replay_attack_time_diff""",
    "their processes and addresses": """
        enable_fl enable_fl_client ms_role worker_num worker_step_num_per_iteration scheduler_ip
        scheduler_port scheduler_manage_port fl_server_port config_file_path client.http_url_prefix
        client.connection_num""",
    "deadlines of real devices": """
        round.start_fl_job_time_window round.update_model_time_window
        round.global_iteration_time_window""",
    "their files; a fedveil run has its own folder": """
        checkpoint_dir summary.metrics_file summary.failure_event_file
        summary.continuous_failure_times summary.data_rate_dir summary.participation_time_level""",
    "a clustering score that changes no model": """
        unsupervised.cluster_client_num unsupervised.eval_type encrypt.privacy_eval_type
        encrypt.laplace_eval.laplace_eval_eps""",
    "no effect in MindSpore either, with the values that are allowed above": """
        compression.upload_sparse_rate""",
}
#: MindSpore's key -> why it changes no result.
IGNORED = {key: why for why, names in _IGNORED_BECAUSE.items() for key in names.split()}
#: Everything below this block is ignored: MindSpore passes any key there to the database's driver.
IGNORED_BLOCK = "distributed_cache"

#: The documented defaults of MindSpore Federated that differ from fedveil's.
DEFAULTS = {
    "fl_name": "Lenet",
    "fl_iteration_num": 20,
    THRESHOLD: 1,
    "client.client_epoch_num": 25,
    "client.client_batch_size": 32,
    "client.client_learning_rate": 0.001,
}

#: The protections' parameters whose defaults differ in fedveil -> MindSpore's default.
OTHER_DEFAULTS = {"encrypt.pw_encrypt.reconstruct_secrets_threshold": 2000}

KEYS = (*CONVERTED, *INTERPRETED, *REFUSED, *IGNORED)
BLOCKS = {key.rsplit(".", depth)[0] for key in KEYS for depth in (1, 2)} - set(KEYS)

_WITHOUT_BLOCK = """
    start_fl_job_threshold start_fl_job_time_window update_model_ratio update_model_time_window
    global_iteration_time_window client_epoch_num client_batch_size client_learning_rate
    http_url_prefix pki_verify root_first_ca_path root_second_ca_path equip_crl_path
    replay_attack_time_diff encrypt_type encrypt_train_type share_secrets_ratio share_client_ratio
    reconstruct_secrets_threshold cipher_time_window dp_eps dp_delta dp_norm_clip
    sign_k sign_eps sign_thr_ratio sign_global_lr sign_dim_out"""
#: Older versions took settings as arguments of one call, without blocks: name -> its key.
WITHOUT_BLOCK = {
    name: next(key for key in KEYS if key.endswith(f".{name}")) for name in _WITHOUT_BLOCK.split()
}


def parameters(position: type[Protection]) -> dict[str, Any]:
    """Return fedveil's default of each parameter that MindSpore also has, by MindSpore's key."""
    block = f"encrypt.{position.block}."
    fields = position.settings_type.model_fields
    theirs = [key for key in WITHOUT_BLOCK.values() if key.startswith(block) and key in CONVERTED]
    return {key: fields[key.removeprefix(block)].default for key in theirs}


def _block_of(key: str, ours: str) -> str:
    block, _, name = ours.rpartition(".")
    return f"the same in `{block}`" if key.endswith(f".{name}") else f"`{ours}`"


def key_table() -> str:
    """Return all keys of a MindSpore job with their translations, as one Markdown table."""
    rows = [
        *((key, _block_of(key, ours)) for key, ours in CONVERTED.items()),
        *INTERPRETED.items(),
        *(
            (key, f"`{neutral}` changes nothing; refused otherwise: {why}")
            for key, (neutral, why) in REFUSED.items()
        ),
        *((key, f"ignored: {why}") for key, why in IGNORED.items()),
        (f"{IGNORED_BLOCK}.*", "ignored: their database"),
    ]
    lines = ["| their key | translation |", "|---|---|"]
    for meaning, group in groupby(rows, key=lambda row: row[1]):
        keys = [key for key, _ in group]
        if meaning.startswith("the same in"):  # the block once, then the names in it
            keys[1:] = [key.rpartition(".")[2] for key in keys[1:]]
        lines.append(f"| {', '.join(f'`{key}`' for key in keys)} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(key_table())
