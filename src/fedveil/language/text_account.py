"""The privacy cost of a continued text: the token vectors that the leader sent for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedveil.errors import InvalidValue
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import TEXT, UNPROTECTED, read_accounts, write_accounts
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import intact
from fedveil.vertical.split import Crossing, SplitModel

#: The file in the leader's folder with the cost of the text that it now continues.
UNFINISHED_TEXT = "unfinished-text.jsonl"


@dataclass
class SentVectors:
    """Counts the vectors that were sent for one text, over all attempts to continue it.

    If the link breaks or the other party restarts, the leader begins the text again, and sends the
    vectors again with new noise. `vectors` is the number of vectors sent in all attempts. A token's
    vector was sent at most `times` times. `keep` is called after each charge, to save it.
    """

    vectors: int = 0
    times: int = 0
    _earlier: int = 0
    keep: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)

    def begin(self) -> None:
        """Begin an attempt, which may send every token again."""
        self._earlier = self.times

    def charge(self, vectors: int, *, again: bool) -> None:
        """Add `vectors` to the number of vectors sent. Call it before they are sent.

        There is one vector for each token. `again` is True if some of these tokens were already
        sent since the last call of `begin`. Then `times` counts a token as sent twice since that
        call, otherwise once.
        """
        self.vectors += vectors
        self.times = max(self.times, self._earlier + (2 if again else 1))
        self.keep()


@contextmanager
def on_disk(
    sent: SentVectors, split: SplitModel, folder: RunFolder, event: Callable[[str], None]
) -> Iterator[None]:
    """A context in which each charge to `sent` is on disk, in `folder`, before vectors are sent.

    At its end, logs the cost with `event` and removes the file. If an earlier process was killed
    before it did so, first logs what this process had charged.
    """
    path = folder.path / UNFINISHED_TEXT
    with intact(path):
        left = read_accounts(folder.path, UNFINISHED_TEXT)
    for line in left:
        event(f"an earlier text, whose process was killed: {line}")
    folder.remove(UNFINISHED_TEXT)
    sent.keep = lambda: write_accounts(folder, figures(split, sent), UNFINISHED_TEXT)
    try:
        yield
    finally:
        for line in figures(split, sent):
            event(str(line))
        folder.remove(UNFINISHED_TEXT)


def figures(split: SplitModel, sent: SentVectors) -> list[Line]:
    """Return a line for each of three epsilons: of one sent bit, of one token and of the text.

    EmbeddingDP sends a bit for each entry of a token's vector. Without EmbeddingDP, returns one
    line with an infinite epsilon. Returns no lines if no vector was sent.
    """
    if not sent.vectors:
        return []
    crossing = crossings(split)[0]
    part, width = crossing.part, crossing.output[-1]
    whole = f"{TEXT}, {sent.vectors} vectors of {part}"
    if crossing.privacy is None:
        return [Line(math.inf, 0.0, f"{whole}, {UNPROTECTED}")]
    loss = EmbeddingDP(crossing.privacy.eps).loss
    often = "once" if sent.times == 1 else f"{sent.times} times"
    token = loss.per_vector(width * sent.times).epsilon
    text = epsilon(split, sent.vectors)
    return [
        Line(loss.per_bit.epsilon, 0.0, f"a bit of {part}"),
        Line(token, 0.0, f"a token's {width} bits of {part}, sent {often}"),
        Line(text, 0.0, whole),
    ]


def epsilon(split: SplitModel, vectors: int) -> float:
    """Return the epsilon of a text for which `vectors` were sent. Infinite without EmbeddingDP."""
    crossing = crossings(split)[0]
    if crossing.privacy is None:
        return math.inf
    loss = EmbeddingDP(crossing.privacy.eps).loss
    return loss.per_vector(crossing.output[-1] * vectors).epsilon


def crossings(split: SplitModel) -> tuple[Crossing, Crossing]:
    """Return a language model's crossings (connections between parties): to the backbone, and back.

    The backbone is the part of the other party.
    """
    if len(split.parts) != 3 or len(split.crossings) != 2:
        names = ", ".join(part.name for part in split.parts)
        raise InvalidValue(
            f"continuing a text needs an embedding, another party's backbone and a head, "
            f"but the parts are {names}"
        )
    there, back = split.crossings
    return there, back
