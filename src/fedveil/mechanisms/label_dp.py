"""LabelDP: randomised response on labels, which keeps a label or replaces it by another class."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np

from fedveil.base.array_types import Array, Int64s, Uint8s
from fedveil.base.validate import integer, within
from fedveil.entropy import Entropy, Secure, source
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.real_probabilities import MAX_EXPONENT, ExactDraw
from fedveil.mechanisms.report_memory import ReportMemory
from fedveil.mechanisms.tensor_kinds import same_kind, values_of
from fedveil.privacy.loss import PrivacyLoss

Classes = Int64s
Tensor = TypeVar("Tensor")

#: Largest number of classes. More is surely a mistake.
MAX_CLASSES = 1 << 32


class LabelDP:
    """Replaces a label by randomised response over k classes.

    Output: each label independently stays with probability e^eps / (e^eps + k - 1), and becomes
    each of the other k - 1 classes with probability 1 / (e^eps + k - 1). Draws are exact for these
    real numbers. eps = 0 gives pure noise, uniform over the classes.

    Privacy: eps per example at delta = 0, if its label is replaced. Nothing is guaranteed for the
    features. If the label of an example is drawn once and reused (`remembered`), further epochs
    cost nothing.

        >>> import numpy as np
        >>> from fedveil.entropy import Seeded
        >>> from fedveil.mechanisms import LabelDP
        >>> label_dp = LabelDP(eps=3.0)
        >>> round(label_dp.keep_probability(classes=10), 3)
        0.691
        >>> label_dp(np.eye(10)[[1, 2, 3]], Seeded(0)).sum(axis=1).tolist()  # still one-hot rows
        [1.0, 1.0, 1.0]
    """

    def __init__(self, eps: float) -> None:
        self.eps = within("eps", eps, 0, MAX_EXPONENT)
        self.loss = PrivacyLoss(self.eps, per="example")

    def keep_probability(self, classes: int) -> float:
        """Return the probability that a label is kept, if there are `classes` classes."""
        k = integer("classes", classes, 2, MAX_CLASSES)
        return float(1 / (1 + (k - 1) * np.exp(-self.eps)))

    def __call__(self, labels: Tensor, entropy: Entropy | None = None) -> Tensor:
        """Return randomised labels with the type, shape and dtype of `labels`, without gradients.

        `labels` is a NumPy array, a torch tensor or a MindSpore Tensor. With at least two columns,
        its rows are one-hot. With shape [n] or [n, 1], its entries are binary labels, 0 and 1.
        Without `entropy`, secure randomness is used.
        """
        values = values_of("labels", labels)
        if values.ndim == 2 and values.shape[1] >= 2:
            width = values.shape[1]
            classes = self.perturb_classes(_hot_places(values), width, entropy)
            told = classes[:, np.newaxis] == np.arange(width)
        elif values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
            if not np.isin(values, (0, 1)).all():
                raise InvalidValue(
                    "labels holds other values than 0 and 1: class numbers go to "
                    "perturb_classes, with how many classes there are"
                )
            told = self.perturb_classes(values.reshape(-1).astype(np.int64), 2, entropy)
        else:
            raise InvalidValue(
                f"labels has shape {values.shape}: binary labels [n] or [n, 1], or one-hot rows "
                f"[n, classes] are needed"
            )
        result: Tensor = same_kind(labels, told.astype(values.dtype).reshape(values.shape))
        return result

    def perturb_classes(
        self, labels: Array, classes: int, entropy: Entropy | None = None
    ) -> Classes:
        """Return `labels` after randomised response. A label is a number from 0 to classes - 1.

        Without `entropy`, secure randomness is used.
        """
        k = integer("classes", classes, 2, MAX_CLASSES)
        truth = _class_numbers(labels, k)
        stream = Secure() if entropy is None else source(entropy)
        if self.eps == 0:
            return stream.integers(k, truth.size).reshape(truth.shape)
        lies = np.flatnonzero(_lies(self.eps, k).draw(truth.size, stream) == 0)
        told = truth.reshape(-1).copy()
        told[lies] = (told[lies] + 1 + stream.integers(k - 1, len(lies))) % k
        return told.reshape(truth.shape)

    def remembered(
        self,
        keys: Sequence[int | str] | Array,
        labels: Array,
        classes: int,
        entropy: Entropy | None,
        memory: ReportMemory,
    ) -> Classes:
        """Return `labels` after randomised response, drawn only once for each key.

        A label is a number from 0 to classes - 1, and `keys` has one key (an example's number or
        id) for each label. If a key was used before, the result repeats the label that `memory` has
        stored for it. The `width` of the memory must be `LABEL_BYTES`. If `entropy` is None, secure
        randomness is used.
        """
        truth = _class_numbers(labels, integer("classes", classes, 2, MAX_CLASSES))
        if truth.shape != (len(keys),):
            raise InvalidValue(f"labels has shape {truth.shape}, {(len(keys),)} is needed")

        def draw(places: Int64s) -> Uint8s:
            told = self.perturb_classes(truth[places], classes, entropy)
            return told.astype("<i8").view(np.uint8).reshape(-1, LABEL_BYTES)

        rows = np.ascontiguousarray(memory.reports(keys, draw))
        return rows.view("<i8").reshape(-1).astype(np.int64)


#: Bytes that a `ReportMemory` stores per label.
LABEL_BYTES = 8


@lru_cache(maxsize=32)
def _lies(eps: float, classes: int) -> ExactDraw:
    """Return a sampler that decides if a label is replaced: it draws 0 for yes and 1 for no.

    The probability of 0 is (k - 1) / (e^eps + k - 1), where k is `classes`.
    """

    def floors(e: Fraction, bits: int) -> list[int]:
        others = (classes - 1) * e.denominator
        return [(others << bits) // (e.numerator + others)]

    return ExactDraw(eps, floors)


def _class_numbers(labels: Array, classes: int) -> Classes:
    truth = values_of("labels", labels)
    if truth.dtype.kind not in "iub":
        raise InvalidValue(f"labels has dtype {truth.dtype}, whole numbers are needed")
    if truth.size and not 0 <= int(truth.min()) <= int(truth.max()) < classes:
        raise InvalidValue(
            f"labels holds {int(truth.min())} to {int(truth.max())}, which is outside "
            f"[0, {classes - 1}]"
        )
    return truth.astype(np.int64)


def _hot_places(rows: Array) -> Classes:
    wrong = ~np.isin(rows, (0, 1)).all(axis=1) | ((rows == 1).sum(axis=1) != 1)
    if wrong.any():
        raise InvalidValue(f"row {int(wrong.argmax())} of labels is not one-hot: a 1 and zeros")
    places: Classes = rows.argmax(axis=1).astype(np.int64)
    return places
