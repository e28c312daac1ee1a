"""Shakespeare's plays by speaker: each role in a play is a client, as in LEAF.

The file is the public tinyshakespeare.txt: speeches, each a line `NAME:` and the lines spoken, with
an empty line between two speeches. All speeches of a name are joined to one text, which is cut into
pieces of 81 letters. A piece's first 80 letters are the example, and its last 80 the targets.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.untrusted import MOST_DATA_BYTES, read_bytes
from fedveil.data.data_folders import find, located, reading
from fedveil.data.examples import Dataset, make_dataset
from fedveil.errors import DataInvalid, DataUnavailable

#: The number of letters of an example, as in LEAF.
LENGTH = 80
#: A letter is a byte of ASCII.
LETTERS = 128
FOLDER = "text"
FILE = "tinyshakespeare.txt"
HOW = f"place {FILE} in $FEDVEIL_DATA/{FOLDER}"
#: One in this many pieces of a speaker is for testing. Speakers with fewer pieces are left out.
_TEST_ONE_IN = 5


def read() -> Dataset:
    """Return the plays, owned by the speakers. Omits speakers with fewer than five examples."""
    path = find(FOLDER, FILE)
    if path is None:
        raise DataUnavailable(f"data shakespeare: {FILE} is not on this machine: {located(HOW)}")
    with reading(path):
        content = read_bytes(path, MOST_DATA_BYTES)
    if max(content, default=0) >= LETTERS:
        raise DataInvalid(f"{path} is not ASCII text, as the published file is")
    parts: dict[str, list[Array]] = {"train": [], "test": []}
    owners: list[str] = []
    for speaker, text in sorted(speeches(content.decode("ascii")).items()):
        pieces = _pieces(text)
        tested = len(pieces) // _TEST_ONE_IN
        if tested:
            parts["train"].append(pieces[:-tested])
            parts["test"].append(pieces[-tested:])
            owners += [speaker] * (len(pieces) - tested)
    if not owners:
        raise DataInvalid(f"{path} has no speaker with {_TEST_ONE_IN} pieces of {LENGTH} letters")
    train, test = (np.concatenate(pieces) for pieces in parts.values())
    return make_dataset(
        "shakespeare",
        (train[:, :-1], train[:, 1:]),
        (test[:, :-1], test[:, 1:]),
        classes=LETTERS,
        owners=owners,
        targets="tokens",
    )


def speeches(text: str) -> dict[str, str]:
    """Return each speaker's speeches, joined in the order of the plays."""
    found: dict[str, list[str]] = {}
    for speech in text.replace("\r\n", "\n").split("\n\n"):
        name, colon, said = speech.strip().partition(":\n")
        if colon and "\n" not in name:
            found.setdefault(name, []).append(said)
    return {name: "\n".join(said) for name, said in found.items()}


def _pieces(text: str) -> Array:
    """Cut a text into pieces of an example's length plus one. Consecutive pieces share a letter."""
    letters = np.frombuffer(text.encode("ascii"), np.uint8)
    count = max(len(letters) - 1, 0) // LENGTH
    starts = LENGTH * np.arange(count)
    pieces: Array = letters[starts[:, None] + np.arange(LENGTH + 1)]
    return pieces.astype(np.int64)
