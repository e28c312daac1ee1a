"""Run folders for the tests of their pages."""

import hashlib
import json
from pathlib import Path
from typing import Any

from fedveil.federated.job import Job
from fedveil.record.sealed_message import sealed, unsealed

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


def vouch_again(folder: Path) -> None:
    """Make the checkpoint vouch for the metrics that are in the folder now."""
    path, metrics = folder / "checkpoint" / "latest", (folder / "metrics.jsonl").read_bytes()
    digest = hashlib.sha256(metrics).hexdigest()
    held = unsealed(path.read_bytes())
    path.write_bytes(sealed({**held, "metrics_bytes": len(metrics), "metrics_digest": digest}))


def new_log(log: Path, text: str) -> None:
    """Replace the event log `log` by `text`. It then has no chain, as in an earlier version."""
    log.write_text(text, "utf-8")
    log.with_name("events.chain").unlink(missing_ok=True)


def edit_all(folder: Path, **fields: Any) -> None:
    """Change the last record and the checkpoint's digest of it."""
    edit_last(folder, **fields)
    vouch_again(folder)
