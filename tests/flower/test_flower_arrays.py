"""The arrays of a Flower record as one vector: every shape and every type, by name."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from fedveil.base.array_digest import digest
from fedveil.errors import ModelInvalid, RoundVoid
from fedveil.flower.app.arrays import ArrayLayout, read
from flower_app_parts import arrays_of, record_of

SHAPES = st.sampled_from([(), (1,), (0,), (3,), (2, 3), (4, 0, 2), (1, 1, 1, 2)])
TYPES = st.sampled_from(["float16", "float32", "float64"])


@given(st.lists(st.tuples(SHAPES, TYPES), min_size=1, max_size=6), st.integers(0, 99))
def test_every_shape_and_type_is_in_the_vector_and_comes_back(specs, seed):
    generator = np.random.default_rng(seed)
    old = {f"a{i}": generator.standard_normal(s).astype(t) for i, (s, t) in enumerate(specs)}
    new = {
        name: (a + generator.standard_normal(a.shape)).astype(a.dtype) for name, a in old.items()
    }
    if not sum(a.size for a in old.values()):
        with pytest.raises(ModelInvalid, match="nothing in them to send"):
            ArrayLayout(old)
        return
    layout = ArrayLayout(old)
    update = layout.update(old, new)
    assert update.dtype == np.float32
    assert update.size == layout.dimension == sum(a.size for a in old.values())
    wide = [(new[n].astype("f8") - old[n].astype("f8")).ravel() for n in old]
    np.testing.assert_allclose(update, np.concatenate(wide), rtol=1e-6, atol=1e-6)
    moved = arrays_of(layout.moved(record_of(old), update.astype(np.float64)))
    for name, array in moved.items():
        assert (array.dtype, array.shape) == (old[name].dtype, old[name].shape)
        tolerance = 1e-3 if array.dtype == np.float16 else 1e-6
        np.testing.assert_allclose(array, new[name], rtol=tolerance, atol=tolerance)


def test_a_difference_is_taken_in_the_arrays_own_type_if_that_is_wider():
    """In float32 the two weights would be equal."""
    old = {"w": np.array([1.0, -3.0])}
    new = {"w": old["w"] + [1e-9, -5e-10]}
    update = ArrayLayout(old).update(old, new)
    np.testing.assert_allclose(update, [1e-9, -5e-10], rtol=1e-6)


def test_the_order_of_an_array_in_memory_changes_nothing():
    """Sender and receiver may hold the same array by rows and by columns."""
    rows = {"w": np.arange(6.0).reshape(2, 3), "b": np.float16([7, 8])}
    columns = {name: array.copy(order="F") for name, array in rows.items()}
    moves = np.arange(8) / 4
    for old in (rows, columns):
        layout = ArrayLayout(old)
        assert layout.vector(old).tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
        for new in (rows, columns):
            doubled = {name: 2 * array for name, array in new.items()}
            assert layout.update(old, doubled).tolist() == layout.vector(rows).tolist()
        moved = arrays_of(layout.moved(record_of(old), moves))
        assert moved["w"].tolist() == [[0, 1.25, 2.5], [3.75, 5, 6.25]]
        assert moved["b"].tolist() == [8.5, 9.75]


def test_a_sum_is_rounded_once_to_the_arrays_own_type():
    """An update may exceed the type where the sum does not."""
    old = {"w": np.float16([-60000.0, 1.0, 2048.0])}
    moved = arrays_of(ArrayLayout(old).moved(record_of(old), np.array([90000.0, 3e-4, 1.001])))
    assert moved["w"].tolist() == [30000.0, 1.0, 2050.0]


def test_a_sum_beyond_the_arrays_own_type_voids_the_round():
    old = {"h": np.float16([-65504.0, 1.0]), "w": np.float64([1e300, 2.0])}
    layout = ArrayLayout(old)
    fits = arrays_of(layout.moved(record_of(old), np.array([-8.0, 65503.0, 1e300, 0.5])))
    assert fits["h"].tolist() == [-65504.0, 65504.0]
    assert fits["w"].tolist() == [2e300, 2.5]
    for moves, name in (
        ([-32.0, 0, 0, 0], "h"), ([0, 65600.0, 0, 0], "h"), ([0, 0, 1.79e308, 0], None),
        ([0, 0, 0, np.inf], "w"), ([0, np.nan, 0, 0], "h"),
    ):  # fmt: skip
        expected = nullcontext() if name is None else pytest.raises(
            RoundVoid, match=f"the resulting {name} is not finite"
        )  # fmt: skip
        with expected:
            layout.moved(record_of(old), np.array(moves))


def test_a_reply_may_have_another_type_of_float():
    """Training in float64 turns a model of float32 into one of float64."""
    old = {"w": np.ones(3, np.float32), "h": np.ones(2, np.float16)}
    new = {"w": np.array([1.5, 2.0, 3.0]), "h": np.float32([1.25, 1.0])}
    assert ArrayLayout(old).update(old, new).tolist() == [0.5, 1.0, 2.0, 0.25, 0.0]


def test_a_zero_update_moves_nothing_not_even_a_last_bit():
    old = {"w": np.array([0.1, 1 / 3, 1e300]), "h": np.float16(0.1).reshape(())}
    layout = ArrayLayout(old)
    moved = arrays_of(layout.moved(record_of(old), np.zeros(layout.dimension)))
    assert all(moved[name].tobytes() == old[name].tobytes() for name in old)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_other_types_are_refused_by_name_and_can_be_kept(dtype, shape):
    arrays = {"w": np.ones(3, np.float32), "bn.counter": np.ones(shape, dtype)}
    with pytest.raises(ModelInvalid, match=rf"bn.counter has type {dtype}.*`keep`"):
        ArrayLayout(arrays)
    layout = ArrayLayout(arrays, ["*.counter"])
    assert layout.kept == ["bn.counter"]
    assert layout.dimension == 3
    changed = {"w": np.zeros(3, np.float32), "bn.counter": np.zeros(shape, dtype)}
    assert layout.update(arrays, changed).tolist() == [-1, -1, -1]
    record = record_of(arrays)
    assert layout.moved(record, np.ones(3))["bn.counter"] == record["bn.counter"]


def test_bfloat16_which_numpy_holds_as_bytes_without_a_type_is_refused_by_name():
    raw = Array(np.zeros(4, "V2"))
    record = ArrayRecord({"w": Array("bfloat16", (4,), raw.stype, raw.data)})
    with pytest.raises(ModelInvalid, match="w has type bfloat16"):
        read(record)


def test_bytes_that_are_no_array_are_refused_by_name():
    for data, stype in ((b"", "numpy.ndarray"), (b"junk", "numpy.ndarray"), (b"", "pickle")):
        with pytest.raises(ModelInvalid, match="the array w of type float32 cannot be read"):
            read(ArrayRecord({"w": Array("float32", (4,), stype, data)}))


@pytest.mark.parametrize("name", ["running_mean", "layer1.0.bn.running_var"])
def test_statistics_of_batchnorm_are_refused_where_they_would_be_perturbed(name):
    arrays = {"w": np.ones(3, np.float32), name: np.ones(2, np.float32)}
    with pytest.raises(ModelInvalid, match=f"{name} is a statistic of BatchNorm"):
        ArrayLayout(arrays, perturbed=True)
    assert ArrayLayout(arrays).dimension == 5
    assert ArrayLayout(arrays, ["*running_*"], perturbed=True).dimension == 3


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"w": np.ones(3, np.float32)}, "not those received: s"),
        ({"w": np.ones(3, np.float32), "s": np.float32(1), "x": np.ones(1)}, "received: x"),
        ({"w": np.ones((3, 1), np.float32), "s": np.array(1.0)}, "array w has type .* shape"),
        ({"w": np.ones(3, np.int32), "s": np.array(1.0)}, "array w has type int32"),
    ],
)
def test_a_reply_with_other_arrays_than_were_received_is_refused(new, words):
    old = {"w": np.zeros(3, np.float32), "s": np.zeros((), np.float32)}
    with pytest.raises(ModelInvalid, match=words):
        ArrayLayout(old).update(old, {name: np.asarray(a) for name, a in new.items()})


def test_a_digest_is_of_names_types_shapes_and_values():
    base = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2)}
    others = [
        {"v": base["w"], "b": base["b"]},
        {"w": base["w"].reshape(3, 2), "b": base["b"]},
        {"w": base["w"].view(np.int32), "b": base["b"]},
        {"w": base["w"] + 1, "b": base["b"]},
        {"w": base["w"].reshape(6), "b": base["b"]},
        {"w": base["w"]},
    ]
    assert digest({name: array.copy(order="F") for name, array in base.items()}) == digest(base)
    assert len({digest(arrays) for arrays in (base, *others)}) == 7
