"""Run folders for the tests of their pages."""

import json
from pathlib import Path
from typing import Any

from fedveil.federated.job import Job

#: A text that tries to inject markup into a page.
EVIL = "</script><script>window.evil=1</script><img src=x onerror=window.evil=1>'\"&\u2028]]>"


def small_job(**blocks: Any) -> Job:
    """Return a job that runs in an instant."""
    base: dict[str, Any] = {
        "name": "small",
        "rounds": 3,
        "clients": {"number": 8, "fraction": 0.5},
        "data": {"name": "parts:data"},
        "model": "logistic",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "simulation": {"workers": 0},
    }
    for key, value in blocks.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return Job(**base)


def edit_last(folder: Path, **fields: Any) -> None:
    """Change the last record, as anyone with access to the folder can."""
    path = folder / "metrics.jsonl"
    *lines, last = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | fields)]) + "\n", "utf-8")
