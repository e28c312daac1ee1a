"""Your own model and data: the functions `net` and `data`, which job.yaml names."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the model: any torch module that maps a batch of examples to one score per class."""
    return nn.Sequential(nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, classes))


def data() -> dict[str, np.ndarray]:
    """Return training and test examples.

    If the data has owners, add "client_ids" (one for each training example) and set `split:
    by_client` in the job. You can also return a pair of torch Datasets (train, test).
    Scale private data by public constants: no epsilon covers a mean over all examples.
    """
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    test = np.arange(len(y)) % 5 == 0
    return {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}
