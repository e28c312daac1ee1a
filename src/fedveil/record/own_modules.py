"""Where a job's own functions were imported from, so that a resumed run finds them again."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def import_roots(names: Iterable[str]) -> list[str]:
    """The folders that hold the modules of `package.module:function` names, once each."""
    roots = []
    for name in names:
        module_name, is_own, _ = name.partition(":")
        file = getattr(sys.modules.get(module_name), "__file__", None)
        if is_own and file is not None:
            path = Path(file).resolve()
            depth = module_name.count(".") + (path.name == "__init__.py")
            roots.append(str(path.parents[depth]))
    return list(dict.fromkeys(roots))


def make_importable(folders: Iterable[str]) -> None:
    """Look for modules in `folders` too, after everywhere else."""
    sys.path += [folder for folder in folders if folder not in sys.path]
