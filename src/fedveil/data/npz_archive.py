"""Reads data sets from NumPy archives, without running any code in them.

The array sizes that an archive states are checked before memory is allocated.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.untrusted import MALFORMED, MOST_DATA_BYTES, opened
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid

#: NumPy reads no longer header, and at most 12 bytes precede it.
_MOST_HEADER_BYTES = 10_000 + 12
_SHOWN = 20
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path, *names: str) -> list[Array]:
    """Return the arrays `names` of an archive. Raises `DataInvalid` if one cannot be read."""
    try:
        with reading(path), opened(path, MOST_DATA_BYTES) as file:
            if file.peek().startswith(np.lib.format.MAGIC_PREFIX):
                raise DataInvalid(f"{path} is one array, but an .npz archive is needed")
            with zipfile.ZipFile(file) as archive:
                held = [name.removesuffix(".npy") for name in archive.namelist()]
                missing = [name for name in names if name not in held]
                if missing:
                    raise DataInvalid(
                        f"{path} holds {', '.join(held[:_SHOWN]) or 'nothing'}"
                        f"{', ...' if len(held) > _SHOWN else ''}, "
                        f"but an array {missing[0]} is needed"
                    )
                return [_array(archive, f"{name}.npy") for name in names]
    except DataInvalid:
        raise
    except (RuntimeError, *MALFORMED) as error:  # RuntimeError: the archive needs a password
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataInvalid(f"{path} is not an .npz archive of plain arrays: {reason}") from None


def _array(archive: zipfile.ZipFile, member: str) -> Array:
    entry = archive.getinfo(member)
    with archive.open(entry) as stream:
        start = stream.read(_MOST_HEADER_BYTES)
        header = io.BytesIO(start)
        version = np.lib.format.read_magic(header)
        if version not in _HEADERS:
            raise ValueError(f"{member} is an array of format {version}")
        shape, is_fortran, dtype = _HEADERS[version](header)
        if dtype.hasobject:
            raise ValueError(f"{member} holds Python objects")
        begun = start[header.tell() :]
        size = math.prod(shape) * dtype.itemsize
        if size != entry.file_size - header.tell():
            raise ValueError(
                f"{member} has {entry.file_size - header.tell():,} bytes of data, but its header "
                f"announces {size:,}"
            )
        if size > MOST_DATA_BYTES:
            raise ValueError(f"{member} has {size:,} bytes; the limit is {MOST_DATA_BYTES:,}")
        data = np.empty(size, np.uint8)
        data[: len(begun)] = np.frombuffer(begun, np.uint8)
        filled = len(begun)
        while got := stream.readinto(data[filled:]):  # type: ignore[attr-defined]
            filled += got
        if filled < size:
            raise EOFError(f"{member} ends after {filled:,} bytes of data")
    return data.view(dtype).reshape(shape, order="F" if is_fortran else "C")
