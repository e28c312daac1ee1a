"""Every block of code and every command of the docs: run, or put to what would take it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from doc_blocks import Block, all_blocks, blocks, commands, in_sentences, is_command, pages, problem
from fedveil import errors
from fedveil.federated.job import Job
from fedveil.settings.checked_job import CheckedJob
from fedveil.site.policy import Policy
from fedveil.statistics.question import QuestionFile
from fedveil.vertical.job import VerticalJob
from folders import DOCS

pytest.importorskip("flwr")
Command = Callable[..., tuple[int, str, str]]
ALL = all_blocks()

#: Blocks of Python that are not run here -> why. Their imports are.
NOT_RUN = {
    "from fedveil.language.generation": "a trained language model takes minutes",
    "strategy.ledger.epsilon": "it looks at a strategy after a run of Flower",
    '"""Clients that are ready': "run in tests/flower/test_own_protection.py",
    "report):                             # in Ready": "run in tests/flower/test_own_protection.py",
    'return {\n        "x_train"': "loaded in tests/data/test_datasets.py",
    "loot, sent = stealing.steal(target)": "minutes; run in tests/attacks",
    "for attacker in (features, labels):": "minutes; run in tests/attacks/split",
    "return TensorDataset": "loaded in tests/data/test_datasets.py",
}
#: Blocks of YAML that are no job -> what they are.
NO_JOB = {
    'client-0: "29e8': "a roster of public keys",
    "password_file: password": "a party's tls.yaml, read in tests/link/test_own_pki.py",
}

#: What blocks of Python take as given.
GIVEN = """
import numpy as np, torch
from torch import nn
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from fedveil.flower import ProtectMod, ProtectedStrategy
update = np.linspace(-1, 1, 70_000, dtype=np.float32)
values = update[:50]
clients = [values, values / 2]
a, b, c, d = (np.full(5, n, np.float32) for n in range(4))
embedding = np.linspace(-1, 1, 12).reshape(3, 4)
labels, class_numbers = np.eye(10)[[1, 2, 3]], np.array([1, 2, 3])
"""
QUESTION = """
data: digits
protection: oue
epsilon: 1
questions: {old: {ask: count}}
"""
JOB = """
rounds: 1
clients: {number: 3, fraction: 1.0}
model: logistic
training: {epochs: 1}
simulation: {workers: 0}
"""


def of(*languages: str) -> list[Block]:
    return [block for block in ALL if block.language in languages]


def not_run(block: Block) -> bool:
    return any(mark in block.text for mark in NOT_RUN)


PYTHON = [b for b in of("python") if ">>> " not in b.text]


@pytest.mark.parametrize("block", [b for b in PYTHON if not not_run(b)], ids=str)
def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: Block) -> None:
    monkeypatch.chdir(tmp_path)
    vertical = "VerticalJob" in block.text
    (tmp_path / "job.yaml").write_text("epochs: 1" if vertical else JOB)
    (tmp_path / "question.yaml").write_text(QUESTION)
    text = re.sub(r"rounds=\d+\)", "rounds=2)", block.text)
    small = '["rounds=1", "simulation.workers=0", "clients.number=60"]'
    text = text.replace('["rounds=2"]', small)
    text = text.replace("Target.of(Job(", "Target.of(Job(rounds=2, ")
    names: dict[str, object] = {"__name__": "a_page"}
    exec(GIVEN, names)
    exec(compile(text, str(block), "exec"), names)


@pytest.mark.parametrize("block", [b for b in PYTHON if not_run(b)], ids=str)
def test_python_that_is_not_run_can_be_read_and_imports_what_there_is(block: Block) -> None:
    for statement in ast.parse(block.text).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            exec(ast.unparse(statement), {})


def test_what_is_not_run_is_there_with_its_reason() -> None:
    for mark, reason in {**NOT_RUN, **NO_JOB}.items():
        assert len(reason) > 10
        assert sum(mark in block.text for block in ALL) == 1, mark


def test_doctests_are_run_beside_the_ledger() -> None:
    """`tests/privacy/test_ledger.py` runs those of two pages, and there are no others."""
    pages = {b.page for b in of("python") if ">>> " in b.text}
    assert pages == {"docs/privacy.md", "docs/audits/mechanism.md"}


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: Block) -> None:
    assert yaml.safe_load(block.text)
    if any(mark in block.text for mark in NO_JOB):
        return
    kind: type[CheckedJob] = VerticalJob if "vertical" in block.page else Job
    kind = QuestionFile if "questions:" in block.text else kind
    kind = Policy if {"servers", "code"} & set(yaml.safe_load(block.text)) else kind
    if "ready:Ready" in block.text:
        page = (DOCS / "own-protection.md").read_text()
        (tmp_path / "ready.py").write_text(next(blocks(page, "")).text)
        monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "job.yaml").write_text(block.text)
    kind.load(tmp_path / "job.yaml")


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_is_what_an_app_is_told(block: Block) -> None:
    from fedveil.flower.app.options import parse

    settings = tomllib.loads(block.text)["tool"]["flwr"]["app"]["config"]["fedveil"]
    parse(settings)


@pytest.mark.parametrize("block", of("diff"), ids=str)
def test_what_a_diff_adds_can_be_imported(block: Block) -> None:
    added = [line[1:] for line in block.text.splitlines() if line.startswith("+from ")]
    assert added
    exec("\n".join(added), {})


TYPED = [block for block in ALL if is_command(block)]


@pytest.mark.parametrize("block", TYPED, ids=str)
def test_commands_can_be_given(block: Block) -> None:
    found = [problem(words) for words in commands(block.text)]
    assert [text for text in found if text] == []


@pytest.mark.parametrize("block", of("sh", "bash"), ids=str)
def test_shell_can_be_read(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_commands_in_sentences_can_be_given(page: Path) -> None:
    found = {text: problem(next(commands(text)), mentioned=True) for text in in_sentences(page)}
    assert {text: why for text, why in found.items() if why} == {}


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_parses_and_names_classes_that_exist(block: Block) -> None:
    named = re.findall(r'"path": "(fedveil\.[\w.]+)"', json.dumps(json.loads(block.text)))
    assert named
    for module, _, name in (path.rpartition(".") for path in named):
        source = DOCS.parent / "src" / f"{module.replace('.', '/')}.py"  # needs no other framework
        assert f"\nclass {name}(" in source.read_text("utf-8")


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    checked = {"python", "yaml", "toml", "diff", "sh", "bash", "json"}
    for block in ALL:
        if block.language in checked or is_command(block):
            continue
        assert block.language in ("text", "plain", "indented"), block
        for line in block.text.splitlines():
            assert not re.match(r"(\$ )?(fedveil|python|pip) ", line), f"{block}: {line}"


def test_there_is_something_to_check() -> None:
    assert len(TYPED) > 20
    assert len(PYTHON) > 15
    assert sum(len(list(in_sentences(page))) for page in pages()) > 30


# The tutorial, command by command, with fewer rounds and clients


def test_the_tutorial_can_be_followed(command: Command, tmp_path: Path) -> None:
    text = (DOCS / "tutorial.md").read_text("utf-8")
    typed = [w for b in blocks(text, "tutorial") if b.language == "sh" for w in commands(b.text)]
    shown = [b.text for b in blocks(text, "tutorial") if b.language == "text"]
    said: dict[str, str] = {}
    for words in typed:
        if words[:2] == ["fedveil", "attack"]:
            continue  # a minute; its options are put to the command above
        keys = ("rounds=1", "simulation.workers=0", "clients.number=600")  # 500 have a canary
        shorter = [word for key in keys for word in ("--set", key)] * (words[1] == "run")
        code, out, err = command(*words[1:], *shorter)
        assert code == 0, err
        said[" ".join(words)] = " ".join(out.split())
    price = said["fedveil budget --target-epsilon 1"]
    assert all(" ".join(line.split()) in price for line in shown[1].splitlines())
    for name in ("model.safetensors", "report.html"):
        assert (tmp_path / "protected" / name).is_file()
    assert (tmp_path / "report.html").is_file()
    assert "not refuted" in said["fedveil run --set audit.canaries=500 --out audited"]


def test_every_error_is_on_the_page_that_says_what_to_do() -> None:
    page = (DOCS / "when-something-fails.md").read_text("utf-8")
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.FedveilError)
    }
    said = set(re.findall(r"`([A-Z]\w+)`", page))
    assert kinds - {"FedveilError"} - said == set()
    assert said <= kinds | {"NAME"}, "an error that is not there"


# The checks themselves


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedveil rum job.yaml", "has no command rum"),
        ("fedveil run job.yaml --rounds 3", "No such option"),
        ("fedveil run --set protection=sign", "is not one of"),
        ("fedveil vertical run --set rounds=3", "is not a known key"),
        ("fedveil budget --target-epsilon high", "is not a valid float"),
        ("fedveil attack labels --effort great", "great"),
        ("make tset", "make has no"),
        ("pip install 'fedveil[tenserboard]'", "no extra"),
        ("python benchmarks/nowhere.py", "there is no benchmarks/nowhere.py"),
        ("python benchmarks/flower.py --nonsense", "has no"),
        ("python -m fedveil.nowhere", "no module"),
        ("flwr run app --streem", "gives no"),
        ("fedviel run", "no program that is known"),
    ],
)
def test_a_command_that_cannot_be_given_is_found(text: str, why: str) -> None:
    assert why in (problem(next(commands(text))) or "nothing was found")


def test_blocks_are_found_where_they_stand() -> None:
    page = "Say:\n\n    fedveil run   # this\n    fedveil \\\n      audit\n\n"
    page += "```sh\nA=1 make test && ls\n```\n"
    first, second = blocks(page, "a.md")
    assert (str(first), first.language, is_command(first)) == ("a.md:3", "indented", True)
    assert list(commands(first.text)) == [["fedveil", "run"], ["fedveil", "audit"]]
    assert (second.line, list(commands(second.text))) == (7, [["make", "test"], ["ls"]])
