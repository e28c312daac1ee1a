"""Where the project's folders are, for the tests, and what a run has left in its own."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
#: Known inputs with what must come of them.
DATA = TESTS / "vectors"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"


def records_of(run: Path) -> list[dict[str, Any]]:
    """The records of a run's rounds, whether or not the run has a result."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
