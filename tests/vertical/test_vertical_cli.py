"""`fedveil vertical` from the user's side, with every party in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedveil.vertical import VerticalJob

Command = Callable[..., tuple[int, str, str]]
JOB = """
name: small
epochs: 2
batch_size: 10
task: vertical_parts:bottoms
record: {every_steps: 2}
checkpoint: {every_steps: 4}
"""


@pytest.fixture
def vertical(command: Command, tmp_path: Path) -> Command:
    """Call `fedveil vertical` in a folder with a job."""
    (tmp_path / "job.yaml").write_text(JOB)
    return functools.partial(command, "vertical")


def test_run_evaluate_predict_and_resume(vertical: Command, tmp_path: Path) -> None:
    code, out, err = vertical(
        "run", "job.yaml", "--out", "made", "--set", "privacy.embedding_dp={}"
    )
    assert code == 0
    assert err.splitlines()[:2] == [
        "initial weights are drawn from the job's seed, which all parties know: for simulation "
        "only",
        "The embedding is protected by EmbeddingDP with one bit for each value and no noise.",
    ]
    assert all(sentence.startswith("labels: ") for sentence in err.splitlines()[2:])
    lines = out.splitlines()
    assert lines[0].startswith("epoch 0 step 2/5 loss: ")
    assert sum("held-out examples: " in line for line in lines) == 2
    assert "bank: epsilon inf at delta 0 (none) for a bit of left" in " ".join(out.split())
    assert "task vertical_parts:bottoms epochs 2, " in " ".join(out.split())
    assert "run folder   made" in lines

    code, out, _ = vertical("evaluate", "made")
    assert code == 0
    assert [line.partition(" ")[0] for line in out.splitlines()[:2]] == ["accuracy", "loss"]

    code, out, _ = vertical("predict", "made", "--out", "told.npz")
    assert (code, out) == (0, "wrote told.npz: 20 outputs of shape (3,)\n")
    told = np.load(tmp_path / "told.npz")
    assert told["ids"].shape == (20,)
    assert told["outputs"].shape == (20, 3)
    assert vertical("predict", "made", "--out", "told.npz")[::2] == (
        1,
        "error: told.npz already exists; it is not overwritten\n",
    )

    code, out, _ = vertical("run", "--resume", "made")
    assert code == 0
    assert "run folder   made" in out.splitlines()


def test_show_prints_every_key(vertical: Command, tmp_path: Path) -> None:
    code, out, _ = vertical("show", "job.yaml", "--set", "epochs=4")
    assert code == 0
    (tmp_path / "shown.yaml").write_text(out)
    assert VerticalJob.load(tmp_path / "shown.yaml") == VerticalJob.load(
        tmp_path / "job.yaml", ["epochs=4"]
    )


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("run", "nowhere.yaml"), 2, "nowhere.yaml cannot be read"),
        (("run", "--set", "epochs=0"), 2, "epochs = 0 is outside [1, inf)"),
        (("run", "--resume", "nowhere"), 1, "nowhere is not a run's folder: there is no such fold"),
        (("run", "--resume", "x", "--set", "epochs=1"), 2, "--resume uses the run's own job"),
        (("run", "--resume", "x", "--out", "y"), 2, "--resume uses the run's own job"),
        (("run", "--set", "task=nowhere:f"), 2, "task.name = 'nowhere:f': there is no module"),
        (("evaluate", "nowhere"), 1, "nowhere is not a run's folder"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    vertical: Command, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    found, out, err = vertical(*arguments)
    assert found == code
    assert out == ""
    assert err.startswith(f"error: {sentence}")
    assert len(err.splitlines()) == 1


def test_help_fits_a_screen(vertical: Command) -> None:
    for arguments in ((), ("run",), ("evaluate",), ("predict",), ("show",)):
        code, out, _ = vertical(*arguments, "--help")
        assert code == 0
        assert len(out.splitlines()) <= 40


THEIRS = """
role: leader
model:
  train_net:
    name: leader_top_net
    inputs: [{name: id_hldr, source: local}]
    outputs: [{name: out, destination: local}]
opts:
  - {type: FTRL, hyper_parameters: {learning_rate: 5.e-2}}
train_hyper_parameters: {epochs: 20, batch_size: 16000}
"""


def test_a_vertical_job_of_mindspore_federated_is_recognised(
    vertical: Command, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    for code, _, err in (vertical("run", "theirs.yaml"), command("run", "theirs.yaml")):
        assert code == 2
        assert err.startswith("error: theirs.yaml is a vertical job of MindSpore Federated, which ")
        assert "docs/own-split-models.md shows the counterparts" in err


JOIN = """
role: "leader"
bucket_num: 64
store_type: "csv"
primary_key: "oaid"
main_table_files: "vfl/input/leader/"
http_server_address: "127.0.0.1:1086"
remote_server_address: "127.0.0.1:1087"
enable_ssl: False
join_type: "psi"
shard_num: 1
"""

JOINING = """
main_table_files: ["vfl/datasets/follower_0.csv", "vfl/datasets/follower_1.csv"]
output_dir: "vfl/output/follower/"
store_type: "csv"
thread_num: 0
"""

#: A file of command-line arguments: every key is a block with its default and its help.
NESTED_JOIN = """
role: {def_val: "leader", help: "Role of the worker", choices: ["leader", "follower"]}
data_schema_path:
  def_val: "vfl/leader_schema.yaml"
  help: >
    "Path of the schema, whose keys are the names"
    "of columns."
primary_key: {def_val: "oaid", help: "The primary key"}
mysql_port: {def_val: 3306, help: "Its port"}
server_name: {def_val: "leader_node", help: "Its own name"}
http_server_address: {def_val: "127.0.0.1:1086", help: "Its own address"}
enable_ssl: {def_val: True, help: "TLS", choices: [True, False]}
server_cert_path: {def_val: "server.p12", help: "Its certificate"}
cipher_list: {def_val: "ECDHE-RSA-AES128-GCM-SHA256", help: "Its ciphers"}
cert_expire_warning_time_in_day: {def_val: 90, help: "When it warns"}
"""


@pytest.mark.parametrize("join", [JOIN, JOINING, NESTED_JOIN], ids=["flat", "follower", "nested"])
def test_a_data_join_of_mindspore_federated_is_no_server_file(
    join: str, vertical: Command, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "join.yaml").write_text(join)
    for code, _, err in (vertical("run", "join.yaml"), command("run", "join.yaml")):
        assert code == 2
        assert err.startswith("error: join.yaml configures MindSpore Federated's data join, which ")
        assert err.count("\n") == 1
