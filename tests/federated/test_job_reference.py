"""The reference of a job's keys is what the settings say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedveil.errors import InvalidValue
from fedveil.federated import rules as job_rules
from fedveil.federated.job import Job
from fedveil.federated.job_reference import reference
from fedveil.settings import allowed as _allowed
from fedveil.settings.reference import keys


def test_a_terminal_is_told_the_keys_of_a_block() -> None:
    page = reference()
    told = keys(page, "clients").split("\n")
    assert told[:2] == ["clients.number: 100", "    a whole number in [1, inf) or null"]
    assert [line.split(":")[0] for line in told if not line.startswith(" ")][:-1] == [
        "clients.number", "clients.fraction", "clients.sampling", "clients.own_layers"
    ]  # fmt: skip
    assert keys(page, "clients.number") == "\n".join(told[:3]) + "\n"
    (one,) = [line for line in keys(page, "training.lr").split("\n") if line[:1].strip()]
    assert one.startswith("training.lr: ")  # and no key that begins alike
    shared = "protection.distributed_dp.active_security"
    assert keys(page, shared) == f"{shared}: as in protection.pw_encrypt\n"
    assert keys(page, None).startswith(keys(page, "name"))
    assert set(rows()) <= {line.split(":")[0] for line in keys(page, None).split("\n")}
    with pytest.raises(InvalidValue, match=r"is traning \(did you mean training\?\)$"):
        keys(page, "traning")


def rows() -> dict[str, list[str]]:
    lines = [line for line in reference().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def told_elsewhere() -> dict[str, str]:
    """The keys that have no row of their own -> the block that has the same one."""
    lines = re.findall(r"^(`[^:\n]*): as in `([\w.]+)`\.$", reference(), re.MULTILINE)
    return {key: place for keys, place in lines for key in re.findall(r"`([\w.]+)`", keys)}


def test_every_key_has_a_row_with_its_meaning():
    expected = [".".join(path) for path in _values_before_blocks(Job, ())]
    assert list(rows()) == [key for key in expected if key not in told_elsewhere()]
    assert set(told_elsewhere()) <= set(expected)
    for allowed, default, meaning in rows().values():
        assert allowed
        assert default.startswith("`")
        assert len(meaning) > 10


def _values_before_blocks(model: type, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
    fields = [(name, _allowed.block_of(field)) for name, field in model.model_fields.items()]
    values = [(*prefix, name) for name, block in fields if block is None]
    for name, block in fields:
        if block is not None:
            values += _values_before_blocks(block, (*prefix, name))
    return values


@pytest.mark.parametrize(
    ("key", "allowed", "default"),
    [
        ("protection.signds.sign_k", "a number in (0, 0.25]", "`0.01`"),
        ("simulation.workers", "auto or a whole number in [0, inf)", "`auto`"),
        ("clients.number", "a whole number in [1, inf) or null", "`100`"),
        ("privacy.max_epsilon", "a number in (0, inf) or null", "`null`"),
        ("record.tensorboard", "true or false", "`false`"),
        ("data.split", "one of iid, shards, dirichlet, by_client, writers", "`iid`"),
    ],
)
def test_rows_that_are_known(key: str, allowed: str, default: str):
    assert rows()[key][:2] == [allowed, default]


def test_every_rule_is_on_the_page():
    rules = reference().partition("## Between keys")[2].strip().splitlines()
    assert len(rules) == len(set(job_rules.RULES.texts()))
    assert all(rule.startswith("- ") and rule.endswith(".") for rule in rules)


def test_the_defaults_on_the_page_are_the_default_job(tmp_path: Path):
    given = [f"{key}={row[1].strip('`')}" for key, row in rows().items()]
    assert len(given) > 80
    assert Job.load(None, given) == Job()


def test_a_key_without_a_row_is_as_in_the_block_that_is_named():
    assert len(told_elsewhere()) >= 5
    for key, place in told_elsewhere().items():
        twin = Job.load(None, [f"{place}.{key.rpartition('.')[2]}={json.dumps(value_of(key))}"])
        assert twin == Job()


def value_of(key: str) -> object:
    """A default, by its key."""
    found: Any = Job().model_dump()
    for part in key.split("."):
        found = found[part]
    return found
