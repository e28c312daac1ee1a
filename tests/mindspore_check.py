"""EmbeddingDP and LabelDP on MindSpore Tensors, in an environment of their own: `make mindspore`.

MindSpore needs NumPy 1.26 and is 800 MB to install, so that the suite does without it. Prints a
line for every check that holds; ends at the first that does not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.common.initializer import Normal
from scipy.stats import binomtest

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms import EmbeddingDP, LabelDP

ERROR_RATE = 1e-6
TRIALS = 200_000
DTYPES = (
    ms.float16, ms.bfloat16, ms.float32, ms.float64, ms.int8, ms.int32, ms.int64, ms.uint8, ms.bool_
)  # fmt: skip


def the_source_s_example_runs_with_its_import_changed() -> None:
    ori_tensor = Tensor(shape=(2, 3), dtype=ms.float32, init=Normal())
    print(ori_tensor)
    dp_tensor = EmbeddingDP(eps=1)(ori_tensor)
    print(dp_tensor)
    assert (dp_tensor.shape, dp_tensor.dtype) == ((2, 3), ms.float32)
    assert set(dp_tensor.asnumpy().reshape(-1).tolist()) <= {0.0, 1.0}


def kind_shape_and_dtype_are_kept() -> None:
    for dtype in DTYPES:
        for shape in ((2, 3), (6,), (1, 2, 3), (6, 1)):
            given = Tensor(np.array([1, 0, 1, 0, 0, 1], np.float32).reshape(shape)).astype(dtype)
            told = EmbeddingDP()(given)
            assert type(told) is Tensor
            assert (told.shape, told.dtype) == (given.shape, given.dtype), (told.dtype, dtype)
            assert (told.astype(ms.float32).asnumpy() == given.astype(ms.float32).asnumpy()).all()


def a_tensor_and_an_array_have_the_same_bits() -> None:
    values = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    told = EmbeddingDP(2.0)(Tensor(values), Seeded(1))
    assert (told.asnumpy() == EmbeddingDP(2.0)(values, Seeded(1))).all()


def a_bit_is_kept_with_the_source_probability() -> None:
    for eps in (0, 0.5, 5):
        told = EmbeddingDP(eps)(Tensor(np.ones(TRIALS, np.float32)), Seeded(2))
        kept = 1 / (1 + math.exp(-eps / 2))
        assert binomtest(int(told.asnumpy().sum()), TRIALS, kept).pvalue > ERROR_RATE


def one_hot_labels_stay_one_hot_and_have_the_law() -> None:
    rows = Tensor(np.eye(4, dtype=np.float32)[np.full(TRIALS, 2)])
    told = LabelDP(1.0)(rows, Seeded(3))
    assert (type(told), told.shape, told.dtype) == (Tensor, rows.shape, rows.dtype)
    assert (told.asnumpy().sum(axis=1) == 1).all()
    kept = math.e / (math.e + 3)
    assert binomtest(int(told.asnumpy()[:, 2].sum()), TRIALS, kept).pvalue > ERROR_RATE


def what_is_wrong_is_one_sentence() -> None:
    nan = Tensor(np.array([0.0, np.nan], np.float32))
    for call in (
        lambda: EmbeddingDP(-1),
        lambda: EmbeddingDP(math.nan),
        lambda: EmbeddingDP(1)(nan),
        lambda: EmbeddingDP()(nan.astype(ms.bfloat16)),
        lambda: EmbeddingDP(1)(Tensor(np.array([1j], np.complex64))),
        lambda: LabelDP(1)(Tensor(np.array([0, 2]))),
    ):
        assert "\n" not in _refusal(call)


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except InvalidValue as error:
        return str(error)
    raise AssertionError("wrong input was taken")


def torch_was_not_imported() -> None:
    assert "torch" not in sys.modules


def checks() -> Iterator[Callable[[], None]]:
    """All of them, in order."""
    yield the_source_s_example_runs_with_its_import_changed
    yield kind_shape_and_dtype_are_kept
    yield a_tensor_and_an_array_have_the_same_bits
    yield a_bit_is_kept_with_the_source_probability
    yield one_hot_labels_stay_one_hot_and_have_the_law
    yield what_is_wrong_is_one_sentence
    yield torch_was_not_imported


def main() -> None:
    """Run the checks."""
    print(f"MindSpore {ms.__version__}, NumPy {np.__version__}")
    for check in checks():
        check()
        print(f"holds: {check.__name__.replace('_', ' ')}")


if __name__ == "__main__":
    main()
