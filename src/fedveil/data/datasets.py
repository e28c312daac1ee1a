"""The data sets that a job can name: loads, downloads and lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedveil.base.example_arrays import Targets
from fedveil.data import (
    cifar10,
    digits,
    femnist,
    image_folder,
    location30,
    mnist,
    own_dataset,
    purchase100,
    shakespeare,
    text_folder,
)
from fedveil.data.data_folders import cache_folder, find
from fedveil.data.download import Progress, fetch_files, target
from fedveil.data.examples import Dataset, Examples
from fedveil.data.idx import IdxSet, read_idx
from fedveil.data.lone_records import without_a_fault
from fedveil.errors import DataInvalid, DataUnavailable
from fedveil.federated.blocks import DATASETS

__all__ = ["Available", "Dataset", "Examples", "Progress", "available", "fetch", "load"]


@dataclass(frozen=True)
class Available:
    """A data set, as a line in the list of `fedveil data list`.

    `how` says how to get its files, and `origin` where they come from. `read` loads the data set.
    `here` returns True if the files are on this machine, without verifying them.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    origin: str
    how: str
    read: Callable[[], Dataset]
    here: Callable[[], bool]
    downloads: tuple[IdxSet, ...] = ()
    targets: Targets = "class"


def _idx(source: IdxSet, origin: str, *more: IdxSet) -> Available:
    return Available(
        source.name,
        mnist.SHAPE,
        mnist.CLASSES,
        origin,
        mnist.how(source),
        lambda: mnist.read(source),
        lambda: not source.missing(),
        (source, *more),
    )


(_DIGITS, _, _, _CIFAR10, _FEMNIST, _SHAKESPEARE, _PURCHASE100, _LOCATION30, _SYNTHETIC) = DATASETS
_SETS = (
    Available(
        _DIGITS,
        digits.SHAPE,
        digits.CLASSES,
        "scans of handwritten digits, UCI",
        "it is included in scikit-learn, which the extra torch installs",
        digits.read,
        lambda: True,
    ),
    _idx(mnist.MNIST, "handwritten digits, LeCun et al.", mnist.WRITERS),
    _idx(mnist.FASHION_MNIST, "articles of clothing, Zalando Research"),
    Available(
        _CIFAR10,
        cifar10.SHAPE,
        cifar10.CLASSES,
        "small colour photographs, Krizhevsky",
        cifar10.HOW,
        cifar10.read,
        cifar10.here,
    ),
    Available(
        _FEMNIST,
        femnist.SHAPE,
        femnist.CLASSES,
        "handwritten digits and letters by writer, LEAF",
        femnist.HOW,
        femnist.read,
        lambda: all(find(femnist.FOLDER, part) for part in ("train", "test")),
    ),
    Available(
        _SHAKESPEARE,
        (shakespeare.LENGTH,),
        shakespeare.LETTERS,
        "letters of Shakespeare's plays by speaker",
        shakespeare.HOW,
        shakespeare.read,
        lambda: find(shakespeare.FOLDER, shakespeare.FILE) is not None,
        targets="tokens",
    ),
    Available(
        _PURCHASE100,
        (purchase100.FEATURES,),
        purchase100.CLASSES,
        "shopping histories, from Kaggle's Acquire Valued Shoppers",
        purchase100.HOW,
        purchase100.read,
        lambda: find(purchase100.FOLDER, purchase100.ARCHIVE, purchase100.TEXT_FILE) is not None,
    ),
    Available(
        _SYNTHETIC,
        (purchase100.FEATURES,),
        purchase100.CLASSES,
        "synthetic, with the shape of Purchase-100",
        "it is generated when it is loaded",
        purchase100.synthesize,
        lambda: True,
    ),
    Available(
        _LOCATION30,
        (location30.FEATURES,),
        location30.CLASSES,
        "check-ins of Foursquare users in Bangkok",
        location30.HOW,
        location30.read,
        lambda: find(location30.FOLDER, location30.FILE) is not None,
    ),
)
#: For each kind of a built-in set's targets: their name, and the task that learns them.
_LEARNT = {"class": ("classes", "classification"), "tokens": ("tokens", "next_token")}
_CATALOGUE = {entry.name: entry for entry in _SETS}


def load(
    name: str,
    targets: Targets = "class",
    *,
    apart: bool = False,
    writers: bool = False,
    folder: str | None = None,
    texts: text_folder.TextForm | None = None,
) -> Dataset:
    """Return the data set `name`: a built-in one, or a user's `package.module:function`.

    `targets` is the kind of target that an example has, such as a class or the next tokens. If
    `apart` is True, the training records of a user's data are read one by one if possible, so that
    an invalid record has no effect on the others. If `writers` is True (only for MNIST), each
    example belongs to the person who wrote it. `folder` is the user's folder, which the data sets
    "image_folder" and "text_folder" need. `texts` says how "text_folder" reads its texts. Never
    uses the network. Raises `DataUnavailable` if files are missing or cannot be read, and
    `DataInvalid` if their content is invalid or does not fit the arguments.
    """
    if ":" in name:
        return own_dataset.read_apart(name, targets) if apart else own_dataset.read(name, targets)
    if name == text_folder.NAME:
        if folder is None or texts is None:
            raise DataInvalid(
                f"data.name = {name} needs data.folder, the folder of your texts, and model = "
                "hf:FOLDER, whose tokeniser reads them"
            )
        return text_folder.read(folder, texts, apart=apart)
    known = "class" if name == image_folder.NAME else _entry(name).targets
    if targets != known:
        what, task = _LEARNT[known]
        raise DataInvalid(
            f"data.name = {name} has {what}, which only task = {task} can learn: for another task "
            "use a function of yours"
        )
    if name == image_folder.NAME:
        if folder is None:
            raise DataInvalid(f"data.name = {name} needs data.folder, the folder of your images")
        return image_folder.read(folder, apart=apart)
    found = mnist.read(mnist.MNIST, mnist.WRITERS) if writers else _entry(name).read()
    return replace(found, train=without_a_fault(found.train)) if apart else found


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Download the missing files of the data set `name` to the user's cache. Returns their folder.

    Also verifies the files that are already on this machine. A damaged one is downloaded again if
    an earlier download put it into the cache, and otherwise raises `DataInvalid`. `progress` is
    called with the bytes received and the bytes of all files. Raises `DataUnavailable` if the data
    set has no download, or if the download fails.
    """
    entry = _entry(name)
    if not entry.downloads:
        raise DataUnavailable(f"data.name = {name} has no download: {entry.how}")
    folder = cache_folder() / entry.downloads[0].name
    for source in entry.downloads:
        wanted = []
        for file in source.files:
            path = source.path(file)
            if path is None or path == target(folder, file):
                wanted.append(file)
            else:
                read_idx(path, file)
        fetch_files(source, wanted, folder, progress)
    return folder


def available() -> list[Available]:
    """Return all data sets that a job can name. Reads no files."""
    return list(_CATALOGUE.values())


def _entry(name: str) -> Available:
    if name not in _CATALOGUE:
        raise DataInvalid(
            f"data.name = {name!r} is not one of {', '.join(DATASETS)} and not of the form "
            f"package.module:function"
        )
    return _CATALOGUE[name]
