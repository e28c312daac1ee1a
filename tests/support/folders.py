"""Where the project's folders are, for the tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
#: Known inputs with what must come of them.
DATA = TESTS / "vectors"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
