"""Every job that a newcomer meets takes every protection, or names the line to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from doc_blocks import blocks
from fedveil.engine.assembly import (
    ModelShape,
    check_buffers,
    load_data,
    make_model,
    make_shares,
    make_trainer,
)
from fedveil.engine.budget import check_limit
from fedveil.engine.job_protection import make_protection
from fedveil.errors import FedveilError
from fedveil.federated.job import Job
from fedveil.learning.own_layers import whole
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.ledger import Ledger
from fedveil.protections.catalog import POSITIONS
from fedveil.starter import DEFAULT_JOB, TEMPLATES, write_starter

ROOT = Path(__file__).parents[2]
FEDERATED = [name for name, template in TEMPLATES.items() if "model.py" in template.files]
EXAMPLES = [
    str(file.relative_to(ROOT))
    for file in sorted((ROOT / "examples").glob("*/*.yaml"))
    if file.parent.name != "vertical" and file.stem != "question"
]
JOBS = [*FEDERATED, *EXAMPLES, "the default job", "an empty job", "docs/job-files.md"]
#: Images of CIFAR-10's shape.
FEW_PHOTOS = """
import numpy as np

def load():
    x, y = np.zeros((20, 3, 32, 32), "f4"), np.arange(20) % 10
    return x, y, x, y
"""
#: The line that a refusal tells the user to write.
LINE = re.compile(r"[Ww]rite `(\w+): ([^`]+)`")


def found(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """Write the job `name` and return its file. Returns None for the empty job."""
    if name in EXAMPLES:
        monkeypatch.syspath_prepend((ROOT / name).parent)
        return ROOT / name
    if name in FEDERATED:
        write_starter(folder, name)
        monkeypatch.syspath_prepend(folder)
        return folder / "job.yaml"
    if name == "docs/job-files.md":
        text = (ROOT / name).read_text()
        (block,) = [b for b in blocks(text, name) if b.text.startswith("name: first")]
        (folder / "job.yaml").write_text(block.text)
        return folder / "job.yaml"
    return DEFAULT_JOB if name == "the default job" else None


def assembled(job: Job) -> None:
    """Put the job together up to its first round. Raises FedveilError if it cannot run."""
    dataset = load_data(job)
    split, _ = make_shares(job, dataset)
    job = job if job.clients.number is not None else job.with_clients(split.clients)
    shape = ModelShape.of(dataset)
    model = whole(make_model(job, shape))
    layout = Layout(model)
    check_buffers(job, layout)
    make_trainer(job, model, shape.example_shape)
    protection = make_protection(job, layout.dimension)
    spent = protection.spending(protection.initial_state())
    check_limit(job, Ledger(adaptive=protection.adaptive), spent, range(split.clients), 1)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_takes_every_protection_or_names_the_line_to_write(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    path = found(name, tmp_path, monkeypatch)
    here, clients = [], Job.load(path).clients.number
    if "mnist" in name:  # the digits are on every machine
        number = min(clients or 539, 1000)
        here = ["data.name=digits", "data.split=iid", f"clients.number={number}"]
    if "cifar" in name:
        (tmp_path / "few_photos.py").write_text(FEW_PHOTOS)
        monkeypatch.syspath_prepend(tmp_path)
        here = ["data.name=few_photos:load"]
    refused = list[tuple[str, str]]()
    for protection in POSITIONS:
        asked = [*here, f"protection={protection}"]
        try:
            Job.load(path, asked[-1:])
            assembled(Job.load(path, asked))
        except FedveilError as error:
            refused.append((protection, str(error)))
    for protection, sentence in refused:
        line = LINE.search(sentence)
        assert line is not None, f"{protection}: {sentence}"
        assembled(Job.load(path, [*here, f"protection={protection}", f"{line[1]}={line[2]}"]))
    by_client = ["pw_encrypt", "central_gaussian", "signds", "rr", "oue"]
    wanted = {
        "examples/private_cifar/examples-5.yaml": by_client,
        "examples/private_mnist/examples-5.yaml": by_client,
        "docs/job-files.md": ["not_encrypt", "pw_encrypt", "rr", "oue"],
    }  # fmt: skip
    assert [protection for protection, _ in refused] == wanted.get(name, [])
