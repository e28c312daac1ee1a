"""EmbeddingDP: the law of its bits, what it keeps, what it costs, and what it refuses."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import binomtest, chisquare

from fedveil.base import message
from fedveil.base.packing import packed_size
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms import EmbeddingDP
from fedveil.mechanisms.embedding_dp import MAX_EPS, _lie_probability
from fedveil.mechanisms.exact import alias_table
from fedveil.mechanisms.report_memory import ReportMemory
from fedveil.privacy import Ledger, PrivacyLoss, audit, compose
from statistical_checks import ERROR_RATE

TRIALS = 400_000


def truth_probability(eps: float) -> float:
    """The source's p, from its formula at 50 digits."""
    with localcontext() as context:
        context.prec = 50
        half = (Decimal(repr(eps)) / 2).exp()
        return float(half / (half + 1))


# The law


@pytest.mark.parametrize("eps", [0, 1e-3, 0.5, 1, 2, 5, 20])
@pytest.mark.parametrize("value", [-0.25, 3.0])
def test_a_bit_is_kept_with_the_source_probability(eps: float, value: float) -> None:
    told = EmbeddingDP(eps)(np.full(TRIALS, value), Seeded(1, "law", str(eps), str(value)))
    kept = int((told == float(value > 0)).sum())
    assert binomtest(kept, TRIALS, truth_probability(eps)).pvalue > ERROR_RATE


@pytest.mark.parametrize("eps", [5.0, 35.46920610007823, 1080.752262248781])
def test_two_bits_of_a_one_hot_row_cost_at_most_the_stated_epsilon(eps: float) -> None:
    """Half of the last two floats stands for more than half of their decimals."""
    lie = _lie_probability(eps)
    with localcontext() as context:
        context.prec = 60
        row = 2 * (Decimal(lie.denominator - lie.numerator) / Decimal(lie.numerator)).ln()
    assert row <= Decimal(repr(EmbeddingDP(eps).loss.per_row.epsilon))
    assert float(row) == pytest.approx(eps, rel=1e-12)


def test_bits_are_independent_within_a_byte_and_across_it() -> None:
    """All 512 patterns of nine neighbouring bits against the product of their laws."""
    eps = 1.0
    truth = np.tile([1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0], (TRIALS // 4, 1))
    told = EmbeddingDP(eps)(truth, Seeded(2, "joint")).astype(np.int64)
    patterns = told @ (1 << np.arange(9))
    p = truth_probability(eps)
    kept = np.array([
        sum(int(pattern >> i & 1) == int(truth[0, i] > 0) for i in range(9))
        for pattern in range(512)
    ])  # fmt: skip
    expected = len(truth) * p**kept * (1 - p) ** (9 - kept)
    counts = np.bincount(patterns, minlength=512)
    assert chisquare(counts, expected).pvalue > ERROR_RATE


def test_a_planted_bias_would_be_found() -> None:
    """Bits that are drawn with 1.25 times the stated eps fail the test."""
    told = EmbeddingDP(1.25)(np.ones(TRIALS), Seeded(3, "bias"))
    assert binomtest(int(told.sum()), TRIALS, truth_probability(1.0)).pvalue < ERROR_RATE


@pytest.mark.parametrize("eps", [1e-9, 0.3, 5, 100, MAX_EPS])
def test_the_lie_is_never_rarer_than_stated_and_nearly_as_rare(eps: float) -> None:
    """q as drawn against 1/(e^(eps/2) + 1) at 400 digits: at or above it, within one double."""
    [(loss, _)] = EmbeddingDP(eps).loss.charges(1)
    assert loss.release is not None
    from fedveil.mechanisms.embedding_dp import _lie_probability

    with localcontext() as context:
        context.prec = 400
        stated = 1 / ((Decimal(repr(eps / 2))).exp() + 1)
        drawn = Decimal(_lie_probability(eps).numerator) / Decimal(
            _lie_probability(eps).denominator
        )
        assert stated <= drawn <= stated * Decimal("1.0000000000000003")
        assert ((1 - drawn) / drawn).ln() <= Decimal(repr(eps / 2))


def test_eps_zero_is_pure_noise() -> None:
    told = EmbeddingDP(0)(np.r_[np.ones(TRIALS), -np.ones(TRIALS)], Seeded(4))
    ones = [int(half.sum()) for half in np.split(told, 2)]
    assert all(binomtest(n, TRIALS, 0.5).pvalue > ERROR_RATE for n in ones)
    assert EmbeddingDP(0).loss.per_vector(1000).epsilon == 0


def test_without_eps_it_only_quantises() -> None:
    values = np.array([-np.inf, -1.0, -0.0, 0.0, 5e-324, 2.0, np.inf])
    assert EmbeddingDP()(values).tolist() == [0, 0, 0, 0, 1, 1, 1]


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, min_side=0, max_side=40),
                  elements=st.floats(-10, 10, width=32)))  # fmt: skip
def test_packed_bits_are_the_call_s_and_come_back(values: np.ndarray) -> None:
    for eps in (None, 1.5):
        mechanism = EmbeddingDP(eps)
        told = mechanism(values, Seeded(5))
        packed = mechanism.bits(values, Seeded(5))
        assert packed.dtype == np.uint8
        assert len(packed) == math.ceil(values.size / 8)
        unpacked = EmbeddingDP.unpack(packed, values.shape)
        assert unpacked.dtype == np.float32
        assert unpacked.flags.writeable
        np.testing.assert_array_equal(unpacked, told)
    np.testing.assert_array_equal(EmbeddingDP()(values), values > 0)


def test_the_order_of_the_bits_is_fixed() -> None:
    assert EmbeddingDP().bits(np.array([1.0, -1, 1, 1, -1, -1, -1, -1, 1])).tolist() == [13, 1]


def test_the_same_bytes_with_and_without_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal(200_003).astype(np.float32)
    compiled = EmbeddingDP(1.0).bits(values, Seeded(6))
    monkeypatch.setattr(
        alias_table, "_pick", getattr(alias_table._pick, "numpy_path", alias_table._pick)
    )
    np.testing.assert_array_equal(compiled, EmbeddingDP(1.0).bits(values, Seeded(6)))


def test_secure_randomness_is_drawn_where_none_is_given() -> None:
    values = np.ones(512)
    assert len({EmbeddingDP(1.0)(values).tobytes() for _ in range(4)}) == 4


# Kind, shape and dtype


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", ">f4", "i1", "u2", "i8", "?", np.longdouble]
)  # fmt: skip
def test_numpy_arrays_keep_shape_and_dtype(dtype: str) -> None:
    values = np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype)
    for tensor in (values, values.T, values[:, ::2], values[:0], values[0, 0, ...]):
        told = EmbeddingDP()(tensor)
        assert type(told) is np.ndarray
        assert (told.shape, told.dtype) == (tensor.shape, tensor.dtype)
        np.testing.assert_array_equal(told, tensor)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.uint8,
     torch.bool],
)  # fmt: skip
def test_torch_tensors_keep_shape_and_dtype(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0, 0, 1], [0, 0, 1]]).to(dtype)
    for tensor in (values, values.T, values[:, ::2], values[:0], values[0, 0]):
        told = EmbeddingDP()(tensor)
        assert type(told) is torch.Tensor
        assert (told.shape, told.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(told, tensor)


def test_a_torch_tensor_with_a_gradient_is_read_and_left_alone() -> None:
    values = torch.nn.Parameter(torch.tensor([2.0, -2.0]))
    told = EmbeddingDP()(values)
    assert told.tolist() == [1, 0]
    assert not told.requires_grad
    assert values.tolist() == [2, -2]


# Invalid arguments


@pytest.mark.parametrize("eps", [-1, -1e-300, math.nan, math.inf, 1e5, "1", True, 1j, [1.0]])
def test_a_wrong_eps_is_refused(eps: object) -> None:
    with pytest.raises(InvalidValue, match=r"^eps = .* is (outside|not)"):
        EmbeddingDP(eps)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [0, 7, 70_000, 99_999])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_nan_is_refused_wherever_it_is(at: int, make: object) -> None:
    values = np.zeros(100_000, np.float32)
    values[at] = np.nan
    for eps in (None, 0, 1.0):
        with pytest.raises(InvalidValue, match=f"^value {at} of 100000 is NaN"):
            EmbeddingDP(eps)(make(values))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1.0, 2.0], "tensor is a list, a NumPy array"),
        (1.0, "tensor is a float"),
        (None, "tensor is a NoneType"),
        (np.array([1j]), "tensor has dtype complex128, real numbers"),
        (np.array(["a"]), "tensor has dtype <U1, real numbers"),
        (np.array([object()]), "tensor has dtype object, real numbers"),
        (torch.tensor([1j]), "tensor has dtype complex64"),
        (torch.eye(3).to_sparse(), "tensor cannot be read: "),
        (torch.ones(3, device="meta"), "tensor cannot be read: "),
    ],
)
def test_what_is_no_real_tensor_is_refused(values: object, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        EmbeddingDP(1.0)(values)


@pytest.mark.parametrize(
    ("packed", "shape", "sentence"),
    [
        (np.zeros(2, np.uint8), (3,), "uint8 of shape"),
        (np.zeros(1, np.int8), (3,), "has dtype int8"),
        (np.zeros((1, 1), np.uint8), (3,), "uint8 of shape"),
        (np.full(1, 8, np.uint8), (3,), "a 1 behind its 3 bits"),
        (np.zeros(1, np.uint8), (-3,), "shape = -3 is outside"),
    ],
)
def test_what_is_no_packing_is_refused(packed: np.ndarray, shape: tuple, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        EmbeddingDP.unpack(packed, shape)


# The privacy loss


def test_the_losses_are_the_stated_ones() -> None:
    loss = EmbeddingDP(5).loss
    assert (loss.per_bit.epsilon, loss.per_bit.per) == (2.5, "bit")
    assert (loss.per_row.epsilon, loss.per_row.per) == (5.0, "row")
    assert (loss.per_vector(16).epsilon, loss.per_vector(16).per) == (40.0, "vector")
    assert str(loss) == (
        "epsilon 2.5 (meaningful) per bit, 5 (weak) per one-hot row, m * 2.5 per vector of m values"
    )
    assert all(part.delta == 0 for part in (loss.per_bit, loss.per_row, loss.per_vector(2)))
    assert loss.per_row.part == loss.per_vector(3).part == loss.per_bit


def test_the_bits_behind_the_last_value_are_0_however_many_blocks_there_are() -> None:
    """Whoever unpacks them refuses other bits."""
    values = np.ones((1 << 16) + 3, np.float32)
    packed = EmbeddingDP().bits(values)
    assert (packed[-1], packed[-2]) == (0b111, 0xFF)
    assert EmbeddingDP.unpack(packed, values.shape).all()


def test_without_eps_nothing_is_promised() -> None:
    loss = EmbeddingDP().loss
    assert {loss.per_bit.epsilon, loss.per_row.epsilon, loss.per_vector(3).epsilon} == {math.inf}
    assert "promises nothing" in str(loss)


@given(st.integers(1, 10**6), st.integers(1, 10**5))
def test_a_vector_s_figure_is_never_rounded_down(eps_ten_thousandths: int, values: int) -> None:
    """Read as the decimals that a person sees, against the exact product."""
    eps = eps_ten_thousandths / 10**4 / 1000
    bit = Decimal(repr(eps / 2))
    stated = Decimal(repr(EmbeddingDP(eps).loss.per_vector(values).epsilon))
    assert values * bit <= stated <= values * bit * (1 + Decimal("1e-15"))


def test_the_ledger_composes_every_epoch_of_an_example() -> None:
    eps, values, epochs, delta = 1.0, 64, 3, 1e-5
    ledger = Ledger()
    for epoch in range(epochs):
        ledger.record_many(EmbeddingDP(eps).loss.charges(values), round=epoch, clients=range(10))
    assert ledger.epsilon("bit") == eps / 2
    assert ledger.epsilon("round") == values * eps / 2
    assert ledger.epsilon("run") == epochs * values * eps / 2
    composed = ledger.epsilon("run", delta)
    laws = [[truth_probability(eps), 1 - truth_probability(eps)]]
    laws.append(laws[0][::-1])
    bit = PrivacyLoss.from_laws(laws, epsilon=eps / 2, per="bit")
    assert composed == pytest.approx(compose([(bit, epochs * values)], delta), rel=1e-6)
    assert composed < epochs * values * eps / 2
    restored = Ledger.from_state(message.decode(message.encode(ledger.to_state())))
    assert restored.epsilon("run", delta) == composed


@pytest.mark.parametrize("eps", [0, 1e-6, 5, 100, MAX_EPS])
def test_every_allowed_eps_can_be_composed(eps: float) -> None:
    charges = EmbeddingDP(eps).loss.charges(1000)
    assert compose(charges, 1e-5) <= 500 * eps * (1 + 1e-12)


# The audit: one-hot rows differ in two bits, a vector in all of them


def one_hot(place: int) -> np.ndarray:
    return np.eye(6)[place]


@pytest.fixture(scope="module")
def bound_of_a_row() -> float:
    return bound(EmbeddingDP(1.0), one_hot(0), one_hot(4))


def bound(mechanism: EmbeddingDP, a: np.ndarray, b: np.ndarray) -> float:
    return audit.lower_bound(mechanism, a, b, trials=8_000, entropy=Seeded(7, "audit"))


def test_the_audit_finds_no_more_than_the_claim_and_nearly_that(bound_of_a_row: float) -> None:
    mechanism = EmbeddingDP(1.0)
    assert 0.35 < bound(mechanism, np.array([1.0]), np.array([-1.0])) <= 0.5
    assert 0.7 < bound_of_a_row <= mechanism.loss.per_row.epsilon
    ahead = np.ones(4)
    assert 1.3 < bound(mechanism, ahead, -ahead) <= mechanism.loss.per_vector(4).epsilon


def test_the_audit_refutes_a_per_bit_claim_for_a_row(bound_of_a_row: float) -> None:
    assert bound_of_a_row > EmbeddingDP(1.0).loss.per_bit.epsilon


# Reuse


def test_an_example_is_given_its_report_again() -> None:
    mechanism, values = EmbeddingDP(1.0), np.random.default_rng(1).standard_normal((5, 3, 7))
    memory = ReportMemory(packed_size(21, 1))
    first = mechanism.bits_of(range(5), values, Seeded(8), memory)
    rows = EmbeddingDP.unpack(first, (5, 3, 7))
    again = mechanism.bits_of([3, 1], values[[3, 1]], Seeded(9), memory)
    np.testing.assert_array_equal(EmbeddingDP.unpack(again, (2, 3, 7)), rows[[3, 1]])
    mixed = mechanism.bits_of([4, 77, 0, 77], np.ones((4, 3, 7)), Seeded(10), memory)
    told = EmbeddingDP.unpack(mixed, (4, 3, 7))
    np.testing.assert_array_equal(told[[0, 2]], rows[[4, 0]])
    np.testing.assert_array_equal(told[1], told[3])
    assert len(memory) == 6


def test_what_is_remembered_has_the_same_law() -> None:
    mechanism = EmbeddingDP(1.0)
    packed = mechanism.bits_of(
        range(40_000), np.ones((40_000, 5)), Seeded(11), ReportMemory(packed_size(5, 1))
    )
    ones = int(EmbeddingDP.unpack(packed, (200_000,)).sum())
    assert binomtest(ones, 200_000, truth_probability(1.0)).pvalue > ERROR_RATE


def test_a_memory_survives_being_stored() -> None:
    mechanism, values = EmbeddingDP(1.0), np.ones((300, 16))
    memory = ReportMemory(2)
    keys = [f"customer {i}" for i in range(300)]
    first = mechanism.bits_of(keys, values, Seeded(12), memory)
    stored = message.decode(message.encode(memory.to_state()))
    again = mechanism.bits_of(keys, values, Seeded(13), ReportMemory.from_state(stored))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"keys": "[1]", "rows": np.zeros((2, 1), np.uint8)},
        {"keys": "[1, 1]", "rows": np.zeros((2, 1), np.uint8)},
        {"keys": "[1.5]", "rows": np.zeros((1, 1), np.uint8)},
        {"keys": "[1]", "rows": np.zeros((1, 1), np.int64)},
        {"keys": "[1", "rows": np.zeros((1, 1), np.uint8)},
        {"keys": "[1]", "rows": np.zeros(1, np.uint8)},
    ],
)
def test_a_broken_memory_is_refused(broken: dict) -> None:
    with pytest.raises(InvalidValue):
        ReportMemory.from_state(broken)


def test_a_memory_of_other_values_is_refused() -> None:
    with pytest.raises(InvalidValue, match="memory holds 2 bytes an example, 3 are needed"):
        EmbeddingDP(1.0).bits_of([0], np.ones((1, 17)), None, ReportMemory(2))
    for rows in (1, 3):
        with pytest.raises(InvalidValue, match="2 rows are needed"):
            EmbeddingDP(1.0).bits_of([0, 1], np.ones((rows, 16)), None, ReportMemory(2))


def test_nothing_is_remembered_of_a_draw_that_fails() -> None:
    memory, values = ReportMemory(1), np.full((2, 8), np.nan)
    with pytest.raises(InvalidValue, match="NaN"):
        EmbeddingDP(1.0).bits_of([0, 1], values, None, memory)
    assert len(memory) == 0


def test_bits_of_several_blocks_come_back_each_in_its_place() -> None:
    values = np.random.default_rng(2).standard_normal((3, 50_001)).astype(np.float32)
    packed = EmbeddingDP().bits(values)
    np.testing.assert_array_equal(EmbeddingDP.unpack(packed, values.shape), values > 0)
    np.testing.assert_array_equal(EmbeddingDP()(values), values > 0)
