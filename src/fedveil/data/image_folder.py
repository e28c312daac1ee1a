"""A user's images in folders of classes: FOLDER/train/CLASS/*.png and FOLDER/test/CLASS/*.png.

Files are JPEG or PNG, all with equal height and width. The test part determines the size, the
colours and the classes, so that no training image can change them. Pixels are scaled to [-1, 1].
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedveil.base.array_types import Bools, Float32s, Int64s, Uint8s
from fedveil.base.files import from_home
from fedveil.base.untrusted import MALFORMED, MOST_DATA_BYTES, escaped, read_bytes
from fedveil.data.data_folders import reading
from fedveil.data.examples import Dataset, Examples, centred, make_dataset
from fedveil.errors import DataInvalid, DataUnavailable, FedveilWarning, MissingExtra
from fedveil.settings.allowed import shown

NAME = "image_folder"
TRAIN, TEST = "train", "test"
SUFFIXES = (".png", ".jpg", ".jpeg")
#: Limits for one file: its bytes before it is read, and its pixels before it is decoded.
MOST_FILE_BYTES = 1 << 26
MOST_PIXELS = 1 << 24
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK", "YCbCr")

#: A file and its class. The class is -1 if the test part does not have it.
Labelled = tuple[Path, int]


def read(folder: str, *, apart: bool = False) -> Dataset:
    """Return the images in `folder` as a data set.

    If `apart` is True, an invalid training image raises no error and does not affect training. The
    training images are then in the order of their files' names, otherwise class by class. Raises
    `DataUnavailable` if files are missing or cannot be read, and `DataInvalid` if they are invalid.
    """
    root = from_home(folder)
    names = [path.name for path in _folders(root / TEST)]
    test = [*_listed(root / TEST, names)]
    train = [*_listed(root / TRAIN, names)]
    if apart:  # a file's class must not move other files to other places, and so to other clients
        train.sort(key=lambda labelled: (labelled[0].name, labelled[0].parent.name))
    shape = _decoded(test[0][0], None).shape
    x, y, _ = _part(test, shape, apart=False)
    _note_missing_classes(root / TEST, test, names)
    if not apart:  # a warning would tell about the training images
        _note_missing_classes(root / TRAIN, train, names)
    own_x, own_y, usable = _part(train, shape, apart=apart)
    found = make_dataset(NAME, (own_x, own_y), (x, y), classes=len(names))
    if not apart:
        return found
    return replace(found, train=Examples(found.train.x, found.train.y, usable))


def _folders(part: Path) -> list[Path]:
    with reading(part):
        found = sorted(path for path in _visible(part) if path.is_dir())
    if not found:
        raise DataInvalid(f"{part} holds no folders, but one for each class is needed")
    return found


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the contents of `folder` except hidden ones, which other programs leave there.

    Examples are the folder .ipynb_checkpoints of Jupyter and the files ._1.jpg of macOS.
    """
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def _listed(part: Path, names: list[str]) -> Iterator[Labelled]:
    count = 0
    for folder in _folders(part):
        label = names.index(folder.name) if folder.name in names else -1
        with reading(folder):
            files = sorted(path for path in _visible(folder) if path.suffix.lower() in SUFFIXES)
        count += len(files)
        yield from ((path, label) for path in files)
    if not count:
        raise DataInvalid(f"{part} holds no image, but files {', '.join(SUFFIXES)} are needed")


def _note_missing_classes(part: Path, files: list[Labelled], names: list[str]) -> None:
    """Warn if a class, one of `names`, has no image among the `files` of a part."""
    held = {label for _, label in files}
    missing = [shown(name) for label, name in enumerate(names) if label not in held]
    if missing:
        more = f" and of {len(missing) - 1:,} more" if missing[1:] else ""
        warnings.warn(
            f"{part} has no image {', '.join(SUFFIXES)} of the class {missing[0]}{more}",
            FedveilWarning,
            stacklevel=3,
        )


def _part(
    files: list[Labelled], shape: tuple[int, ...], *, apart: bool
) -> tuple[Float32s, Int64s, Bools]:
    """Return the pixels and classes of the image `files`, and a mask of the valid files.

    If `apart` is False, an invalid file raises `DataInvalid` or `DataUnavailable` instead.
    """
    size = 4 * len(files) * math.prod(shape)
    if size > MOST_DATA_BYTES:
        raise DataInvalid(
            f"{files[0][0].parents[1]} holds {len(files):,} images of {shape[1]} x {shape[2]} "
            f"pixels, which need {size:,} bytes; the limit is {MOST_DATA_BYTES:,}"
        )
    pixels = np.full((len(files), *shape), 0, np.uint8)
    labels, usable = np.zeros(len(files), np.int64), np.ones(len(files), np.bool_)
    for row, (path, label) in enumerate(files):
        try:
            if label < 0:
                raise DataInvalid(
                    f"{path.parent} is a class that the test part does not have: add its folder "
                    f"to {TEST}/"
                )
            pixels[row], labels[row] = _decoded(path, shape), label
        except (DataInvalid, DataUnavailable):
            if not apart:
                raise
            usable[row] = False
    x = centred(pixels.astype(np.float32) / 255)
    x[~usable] = 0
    return x, labels, usable


def _decoded(path: Path, shape: tuple[int, ...] | None) -> Uint8s:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("Pillow", "torch", f"data {NAME}") from None
    with reading(path):
        content = read_bytes(path, MOST_FILE_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
                width, height = image.size
                grey = image.mode in _GREY
                if not grey and image.mode not in _COLOUR:
                    raise ValueError(
                        f"its pixels are of the kind {image.mode}, but 8 bits per channel are "
                        "needed, grey or in colour"
                    )
                channels = shape[0] if shape and grey else 1 if grey else 3
                found = (channels, height, width)
                if width * height > MOST_PIXELS:
                    raise ValueError(f"it has {width * height:,} pixels of {MOST_PIXELS:,} allowed")
                if shape is not None and found != shape:
                    raise ValueError(f"it is {_told(found)}, but {_told(shape)} is needed")
                pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    except UnidentifiedImageError:  # Pillow's own message has only an address in memory
        reason = "neither JPEG nor PNG" if content else "empty"
        raise DataInvalid(f"{path} is not usable as an image: it is {reason}") from None
    except (OSError, *MALFORMED, Image.DecompressionBombError, Warning) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataInvalid(f"{path} is not usable as an image: {escaped(reason)}") from None
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _told(shape: tuple[int, ...]) -> str:
    kind = "grey" if shape[0] == 1 else "in colour"
    return f"{shape[2]} x {shape[1]} pixels {kind}"
