"""Your own text and model: the class `Net` and the function `data`, which job.yaml names."""

from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn

LENGTH = 48


class Net(nn.Module):
    """Scores the next letter, given the letters before it. A letter is a byte."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, width)
        self.before = nn.GRU(width, width, batch_first=True)
        self.scores = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [examples, tokens] to scores [examples, tokens, 256]."""
        scores: torch.Tensor = self.scores(self.before(self.letters(x))[0])
        return scores


def data() -> dict[str, np.ndarray]:
    """Return texts from Python's own help. Each help page belongs to one client.

    `x` has pieces of the texts, and `y` the letter that follows each letter of `x`.
    """
    pieces: list[bytes] = []
    owners: list[int] = []
    for owner, page in enumerate(list(topics.values())[:24]):
        text = page.encode()[: 40 * (LENGTH + 1)]
        starts = range(0, len(text) - LENGTH, LENGTH)
        pieces += [text[start : start + LENGTH + 1] for start in starts]
        owners += [owner] * len(starts)
    tokens = np.array([list(piece) for piece in pieces])
    x, y, test = tokens[:, :-1], tokens[:, 1:], np.arange(len(tokens)) % 10 == 0
    return {
        "x_train": x[~test],
        "y_train": y[~test],
        "client_ids": np.array(owners)[~test],
        "x_test": x[test],
        "y_test": y[test],
    }
