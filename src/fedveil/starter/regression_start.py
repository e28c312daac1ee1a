"""Your own examples and model: the functions `net` and `data`, which job.yaml names."""

import numpy as np
from sklearn.datasets import load_diabetes
from torch import nn


def net(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a model with one output for each target."""
    return nn.Sequential(nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, outputs))


def data() -> dict[str, np.ndarray]:
    """Return examples and targets, both with mean 0 and standard deviation 1.

    Scale private data by public constants: no epsilon covers a mean over all examples.
    """
    x, y = load_diabetes(return_X_y=True)
    x, y = (x / x.std(0)).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)
    test = np.arange(len(y)) % 5 == 0
    return {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}
