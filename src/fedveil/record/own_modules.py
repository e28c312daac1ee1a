"""Where a job's own functions were imported from, so that a resumed run finds them again."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from fedveil.record.run_folder import IMPORTS, RunFolder


def keep_import_roots(folder: RunFolder, names: Iterable[str]) -> None:
    """Write down the folders that hold the modules of `package.module:function` names, once each.

    Other names are left aside.
    """
    roots: dict[Path, None] = {}
    for name in names:
        module_name, is_own, _ = name.partition(":")
        file = getattr(sys.modules.get(module_name), "__file__", None)
        if is_own and file is not None:
            path = Path(file).resolve()
            depth = module_name.count(".") + (path.name == "__init__.py")
            roots[path.parents[depth]] = None
    folder.write_atomically(IMPORTS, "".join(f"{root}\n" for root in roots).encode())


def make_importable(folder: RunFolder) -> None:
    """Look for modules where the run's own were found too, after everywhere else."""
    path = folder.path / IMPORTS
    roots = path.read_text().splitlines() if path.exists() else []
    sys.path += [root for root in roots if root not in sys.path]
