"""Each key of a vertical job, changed alone, changes something that can be observed.

As `tests/engine/test_every_key_matters.py` for federated jobs: a key that is read, checked and
never handed on leaves every record and every byte as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.errors import FedveilError
from fedveil.record.run_folder import EVENTS, PRIVATE
from fedveil.settings.allowed import dotted, keys
from fedveil.vertical import VerticalJob, train
from folders import ROOT
from key_case import Case
from vertical_parts import Joint

BASE = {
    "name": "unequal", "seed": 3, "epochs": 2, "batch_size": 9,
    "task.name": "vertical_parts:bottoms", "evaluation.every_epochs": 2,
    "record.every_steps": 4, "privacy.delta": 3e-4,
}  # fmt: skip
BITS = {"privacy.embedding_dp": {}, "privacy.embedding_dp.eps": 4.0}
LABELS = {"privacy.label_dp": {}, "privacy.label_dp.eps": 2.0}
#: The wine table has three classes, the breast cancer table two. One epoch of large batches.
TABLE = {"task.name": "tabular", "task.tabular.table": "wine", "epochs": 1, "batch_size": 60}
TWO = TABLE | {"task.tabular.table": "breast_cancer", "batch_size": 200}
NOISE = TWO | {"privacy.label_protection": {}, "privacy.label_protection.name": "marvell"}
COARSE = {"compression": {}, "compression.bits": 4}
PARTS = {"parts.left": {}, "parts.right": {}, "parts.top": {}}
OWN_BITS = PARTS | BITS | {"parts.left.privacy": {}, "parts.left.privacy.embedding_dp": {},
                           "parts.left.privacy.embedding_dp.eps": 2.0}  # fmt: skip
FILES = "task.tables.files."
TABLES = {
    "task.name": "tables", "epochs": 1, "task.tables.leader": "lead",
    "task.tables.owners": ["lead", "bank"], f"{FILES}lead.path": "lead.csv",
    f"{FILES}lead.label": "bought", f"{FILES}bank.path": "bank.csv",
    f"{FILES}bank.categories": {"city": 4}, f"{FILES}bank.missing": "mean",
}  # fmt: skip
TESTED = TABLES | {"task.tables.test_fraction": None, f"{FILES}lead.test": "lead-test.csv",
                   f"{FILES}bank.test": "bank-test.csv"}  # fmt: skip
SHARED = PARTS | {
    "parts.shared.owner": "bank", "parts.shared.inputs": ["left"], "parts.shared.output": [8],
    "parts.shared.module": "test_every_vertical_key:wide",
    "parts.top.inputs": ["shared", "right"],
    **{f"parts.shared.optimizer.{key}": value
       for key, value in (("name", "sgd"), ("lr", 0.2), ("momentum", 0.5))},
}  # fmt: skip


def wide(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(8, 8)


def curved(seed: int) -> nn.Module:
    return nn.Sequential(wide(seed), nn.Tanh())


def joint(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Joint(16, 8)


CASES: dict[str, Case] = {
    "name": Case("another"),
    "seed": Case(4),
    "epochs": Case(3),
    "batch_size": Case(8),
    "in_flight": Case(4),
    "device": Case("cuda:7", refused="cuda:7 cannot be used here"),
    "task.name": Case("vertical_parts:u_shape"),
    "task.tabular.table": Case("breast_cancer", TABLE),
    "task.tabular.width": Case(7, TABLE),
    "task.tabular.scores": Case(5, TABLE),
    "task.tabular.bins": Case(5, TABLE),
    "task.tabular.wide": Case("linear", TABLE),
    "task.tables.leader": Case("bank", TABLES, refused="bank"),
    "task.tables.owners": Case(["bank", "lead"], TABLES),
    "task.tables.classes": Case(None, TABLES),
    "task.tables.test_fraction": Case(0.4, TABLES),
    "task.tables.width": Case(7, TABLES),
    "task.tables.scores": Case(5, TABLES),
    "task.tables.bins": Case(5, TABLES),
    "task.tables.vector": Case(5, TABLES),
    "task.tables.wide": Case("linear", TABLES),
    "task.tables.files.NAME.path": Case("other.csv", TABLES),
    "task.tables.files.NAME.test": Case("other-test.csv", TESTED),
    "task.tables.files.NAME.id": Case("second", TABLES),
    "task.tables.files.NAME.label": Case("sold", TABLES),
    "task.tables.files.NAME.class_weights": Case({"1": 3.0}, TABLES),
    "task.tables.files.NAME.features": Case(["balance", "city"], TABLES),
    "task.tables.files.NAME.without": Case(["balance"], TABLES),
    "task.tables.files.NAME.categories": Case({"city": 3}, TABLES),
    "task.tables.files.NAME.missing": Case("refuse", TABLES, refused="age is empty"),
    "scoring.calibration": Case(0.25, TABLES),
    "scoring.threshold": Case("f1", TABLES | {"scoring.calibration": 0.3}),
    "task.tables.files.NAME.separator": Case("pipe", TABLES, refused="bank.csv has no column 'id'"),
    "task.tables.files.NAME.encoding": Case("utf-16", TABLES, refused="bank.csv has no column"),
    "task.tables.files.NAME.decimal": Case("comma", TABLES, refused="balance = "),
    "task.tables.files.NAME.kinds": Case({"age": "time"}, TABLES, refused="is not a time such as"),
    "task.tables.files.NAME.empty": Case(["a"], TABLES),
    "parts.NAME.owner": Case("lead", SHARED),
    "parts.NAME.inputs": Case(
        ["right", "left"],
        SHARED
        | {
            "parts.shared.owner": "lead",
            "parts.shared.inputs": ["left", "right"],
            "parts.shared.module": "test_every_vertical_key:joint",
        },
    ),
    "parts.NAME.output": Case([7], SHARED, refused="7"),
    "parts.NAME.module": Case("test_every_vertical_key:curved", SHARED),
    "parts.NAME.dtype": Case("bfloat16", SHARED, refused="the part states bfloat16"),
    "parts.NAME.frozen": Case(True, SHARED),
    "parts.NAME.optimizer.name": Case("adam", SHARED | {"parts.shared.optimizer.momentum": 0.0}),
    "parts.NAME.optimizer.lr": Case(0.1, SHARED),
    "parts.NAME.optimizer.momentum": Case(0.9, SHARED),
    "parts.NAME.optimizer.weight_decay": Case(0.1, SHARED),
    "parts.NAME.optimizer.warmup_steps": Case(5, SHARED),
    "parts.NAME.optimizer.decay_steps": Case(5, SHARED),
    "parts.NAME.optimizer.gradient_norm": Case(0.01, SHARED),
    "parts.NAME.privacy.embedding_dp.eps": Case(3.0, OWN_BITS),
    "parts.NAME.privacy.embedding_dp.gradient": Case("none", OWN_BITS),
    "parts.NAME.privacy.embedding_dp.reuse": Case(True, OWN_BITS),
    "optimizer.name": Case("adamw", {"optimizer.momentum": 0.0}),
    "optimizer.lr": Case(0.1),
    "optimizer.momentum": Case(0.9),
    "optimizer.weight_decay": Case(0.1),
    "optimizer.warmup_steps": Case(5),
    "optimizer.decay_steps": Case(5),
    "optimizer.gradient_norm": Case(0.01),
    "privacy.embedding_dp.eps": Case(3.0, BITS),
    "privacy.embedding_dp.gradient": Case("none", BITS),
    "privacy.embedding_dp.reuse": Case(True, BITS),
    "privacy.label_dp.eps": Case(3.0, LABELS),
    "privacy.label_protection.name": Case("max_norm", NOISE),
    "privacy.label_protection.power": Case(2.0, NOISE),
    "privacy.randomness": Case("secure", BITS),
    "privacy.max_epsilon": Case(20.0, BITS),
    "privacy.delta": Case(1e-7, BITS),
    "compression.bits": Case(3, COARSE),
    "compression.forward": Case(False, COARSE),
    "compression.backward": Case(False, COARSE),
    "compression.error_feedback": Case(True, COARSE),
    "evaluation.every_epochs": Case(1),
    "record.every_steps": Case(3),
    "record.followers_see_loss": Case(False),
}
#: What these runs do not show, and the tests that do.
ELSEWHERE: dict[str, str] = {
    "threads": "tests/vertical/test_vertical_apart.py",
    "task.mnist_halves.": "tests/tasks/test_tasks.py",
    "task.tables.ids.": "tests/tasks/test_bank_files.py",
    "task.pangu.": "tests/tasks/test_pangu.py",
    "alignment.by": "tests/vertical/test_vertical_apart.py",
    "alignment.most_ids": "tests/vertical/test_vertical_handshake.py",
    "alignment.least_common": "tests/vertical/test_lying_leader.py",
    "checkpoint.every_steps": "tests/vertical/test_vertical_together.py",
}


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for place in sorted(flat):  # a block comes before its keys
        *blocks, key = place.split(".")
        block = made
        for name in blocks:
            block = block.setdefault(name, {})
        block[key] = {} if flat[place] == {} else flat[place]
    return made


def observed(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a job and return all that it leaves, except for what a clock says."""
    try:
        run = train(VerticalJob.model_validate(nested(settings)), folder)
    except FedveilError as refusal:
        return {"refused": str(refusal)}
    timeless = [
        {key: value for key, value in record.items() if not key.startswith("seconds")}
        for records in run.records.values()
        for record in records
    ]
    logs = [folder / run.leader / name for name in (EVENTS, PRIVATE)]
    lines = [line for log in logs if log.exists() for line in log.read_text("utf-8").splitlines()]
    said = [line.partition(" ")[2] for line in lines]
    state = run.model.state_dict()
    return {
        "records": json.dumps(timeless, default=repr),
        "weights": {name: tensor.numpy().tobytes() for name, tensor in state.items()},
        "accounts": str(run.figures),
        "events": [text for text in said if " s" not in text],
        "name": run.job.name,
    }


def named(place: str) -> str:
    """Return the part or party at which a key of several is changed."""
    if place.startswith(FILES):
        return "lead" if place.endswith(("label", "class_weights")) else "bank"
    return "left" if "privacy" in place else "shared"


@cache
def base_of(under: str, folder: Path) -> dict[str, Any]:
    return observed(BASE | json.loads(under), folder / str(abs(hash(under))))


def write_tables(folder: Path) -> None:
    """Write the tables of a leader and a bank, and others with the same columns."""
    draw = Seeded(5, "tables").generator()
    for suffix, ids in (("", range(60)), ("-test", range(100, 121))):
        lead = ["id,second,income,bought,sold"]
        bank = {name: ["id,second,balance,age,city"] for name in ("bank", "other")}
        for number in ids:
            income, balance = draw.normal(size=2)
            labels = f"{int(income + balance > 0)},{int(income > 0.3)}"
            lead.append(f"{number},{number + 2},{income:.4f},{labels}")
            for rows in bank.values():
                age = "" if number % 9 == 0 else f"{draw.integers(18, 80)}"
                rows.append(f"{number},{number + 1},{balance:.4f},{age},{'abcde'[number % 5]}")
        for name, rows in {"lead": lead, **bank}.items():
            (folder / f"{name}{suffix}.csv").write_text("\n".join(rows) + "\n", "utf-8")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    write_tables(folder)
    return folder


def test_every_key_has_a_case_or_a_test_elsewhere_that_sets_it() -> None:
    places = [dotted(key) for key in keys(VerticalJob)]
    for place in places:
        if place in CASES:
            continue
        (known,) = (key for key in ELSEWHERE if place == key or place.startswith(f"{key}"))
        name = place.rpartition(".")[2]
        assert name in (ROOT / ELSEWHERE[known]).read_text("utf-8"), place
    assert set(CASES) <= set(places)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", CASES)
def test_a_key_that_changes_alone_changes_something(
    place: str, bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bases)
    value, under, refused = CASES[place]
    here = place.replace("NAME", named(place))
    base = base_of(json.dumps(dict(under), sort_keys=True), bases)
    assert "refused" not in base, base
    changed = observed(BASE | dict(under) | {here: value}, tmp_path / "changed")
    assert (refused or "") in changed.get("refused", "")
    assert refused is not None or "refused" not in changed, changed
    different = [name for name in base if changed.get(name) != base[name]]
    assert different, f"{here} = {value!r} changes nothing"


def test_a_run_that_is_repeated_changes_nothing(bases: Path, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    assert observed(BASE, tmp_path / "again") == base_of("{}", bases)
