"""NumPy archives of data sets, read without running anything that they hold."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedveil._arrays import Array
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid


def read_npz(path: Path, *names: str) -> list[Array]:
    """The arrays called `names`; raises `DataInvalid` where one is missing or cannot be read."""
    try:
        with reading(path):
            archive = np.load(path, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataInvalid(f"{path} is one array, an .npz archive is needed")
            with archive:
                missing = [name for name in names if name not in archive]
                if missing:
                    raise DataInvalid(
                        f"{path} holds {', '.join(archive) or 'nothing'}, "
                        f"an array {missing[0]} is needed"
                    )
                return [archive[name] for name in names]
    except DataInvalid:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataInvalid(f"{path} is not an .npz archive of plain arrays: {error}") from None
