"""The project's folders, and the files of a run, for the tests."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
#: Known inputs with their expected results.
DATA = TESTS / "vectors"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"


def records_of(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's rounds, even if the run has no result."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
