"""The statements of a file, without the expressions, of which there are ten times as many."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the module and every statement in it, however deep."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from statements(child)
