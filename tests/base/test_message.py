"""One encoding, and nothing but a clear refusal for every other sequence of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedveil.base import message
from fedveil.base.message import (
    DTYPES,
    MAGIC,
    MOST_CARRIED,
    check_carried,
    decode,
    encode,
    encoded_bytes,
    only_fields,
    prefixed,
    take,
    take_array,
    within,
)
from fedveil.errors import MessageInvalid, MessageTooLong

ARRAYS = st.sampled_from(sorted(DTYPES.values())).flatmap(
    lambda name: npst.arrays(np.dtype(name), npst.array_shapes(min_dims=0, min_side=0, max_side=4))
)
SCALARS = st.one_of(
    st.integers(-(1 << 120), 1 << 120),
    st.floats(),
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=20),
)
MESSAGES = st.dictionaries(st.text(max_size=8), SCALARS | ARRAYS, max_size=6)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and (one.tobytes() == other.tobytes())
        )
    return type(one) is type(other) and (one == other or (one != one and other != other))


@given(MESSAGES)
def test_round_trip(message: dict[str, Any]) -> None:
    data = encode(message)
    back = decode(data)
    assert set(back) == set(message)
    assert all(same(message[name], back[name]) for name in message)
    assert encode(back) == data


def test_known_bytes() -> None:
    message = {"round": 3, "u": np.array([1.0, -2.0], np.float32), "s": "é", "t": True, "z": -1}
    expected = (
        MAGIC
        + b"\x05roundi\x06"
        + b"\x01ss\x02\xc3\xa9"
        + b"\x01t?\x01"
        + b"\x01uaf\x01\x02\x00\x00\x80\x3f\x00\x00\x00\xc0"
        + b"\x01zi\x01"
    )
    assert encode(message) == expected


def test_the_order_of_fields_changes_nothing() -> None:
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})


def test_arrays_are_views_where_they_can_be_and_never_writable() -> None:
    data = encode({"w": np.arange(1000, dtype=np.uint8)})
    array = decode(data)["w"]
    assert isinstance(array, np.ndarray)
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    for padding in range(8):
        shifted = decode(encode({"w" * (padding + 1): np.arange(9.0)}))
        (value,) = shifted.values()
        assert isinstance(value, np.ndarray)
        assert value.flags.aligned
        assert not value.flags.writeable


def test_big_endian_and_strided_arrays_are_encoded_by_value() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    back = decode(encode({"a": array}))["a"]
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "value", [b"ab", bytearray(b"abc"), memoryview(np.array([[1.5, 2.5], [3.5, 4.5]]))]
)
def test_the_bytes_of_any_buffer_are_encoded_by_value(value: Any) -> None:
    assert decode(encode({"b": value, "c": 3})) == {"b": bytes(value), "c": 3}


@given(MESSAGES.filter(bool), st.data())
def test_a_cut_message_is_refused(message: dict[str, Any], data: st.DataObject) -> None:
    whole = encode(message)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        back = decode(cut)
    except MessageInvalid:
        return
    assert len(back) < len(message)  # cut exactly between two fields


@given(st.binary(max_size=60), MESSAGES, st.data())
def test_no_bytes_do_worse_than_being_refused(
    noise: bytes, message: dict[str, Any], data: st.DataObject
) -> None:
    whole = bytearray(encode(message) + noise)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
    try:
        back = decode(bytes(whole))
    except MessageInvalid:
        return
    assert encode(back) == bytes(whole)


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (b"\x01ai\x80\x00", "shortest"),
        (b"\x01ai\x01\x01ai\x01", "repeated"),
        (b"\x01bi\x01\x01ai\x01", "out of order"),
        (b"\x01a?\x02", "truth value"),
        (b"\x01aa?\x01\x01\x02", "truth values"),
        (b"\x01ax", "unknown kind"),
        (b"\x01aaZ\x00", "unknown type"),
        (b"\x01aaf\x09" + b"\x01" * 9, "too many dimensions"),
        (b"\x01aad\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "cut short"),
        (b"\x01aad\x03\x00" + b"\xff" * 18 + b"\x7f\x02", "shape"),
        (b"\x01ai" + b"\xff" * 20 + b"\x01", "too long"),
        (b"\x01\xffi\x01", "UTF-8"),
    ],
)
def test_hostile_bytes_are_refused_with_a_reason(tail: bytes, why: str) -> None:
    with pytest.raises(MessageInvalid, match=why):
        decode(MAGIC + tail)


def test_the_number_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a message takes many times its bytes of the receiver's memory."""
    fields = {f"{number:02}": number for number in range(11)}
    raw = encode(fields)
    monkeypatch.setattr(message, "_MAX_FIELDS", 11)
    assert decode(raw) == fields
    monkeypatch.setattr(message, "_MAX_FIELDS", 10)
    with pytest.raises(MessageInvalid, match="the message has more than 10 fields"):
        decode(raw)
    with pytest.raises(MessageInvalid, match="11 fields do not fit a message"):
        encode(fields)


@pytest.mark.parametrize(
    "value", [None, 1j, [1], np.array(["a"]), np.array([1j]), {}, np.zeros((1,) * 9)]
)
def test_what_a_message_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(MessageInvalid, match="'odd'"):
        encode({"odd": value})


def test_another_version_is_refused() -> None:
    with pytest.raises(MessageInvalid, match="version"):
        decode(b"\xfe\x02")


def test_a_message_may_be_as_long_as_its_limit() -> None:
    data = encode({"a": np.zeros((1,) * 8, np.uint8)})
    assert encoded_bytes(decode(data, len(data))) == len(data)
    with pytest.raises(MessageInvalid, match=f"has {len(data)} bytes, but at most {len(data) - 1}"):
        decode(data, len(data) - 1)
    check_carried("a model", MOST_CARRIED)
    with pytest.raises(MessageTooLong, match="a model is a message of"):
        check_carried("a model", MOST_CARRIED + 1)


def test_fields_of_a_stranger_have_their_very_type_and_shape() -> None:
    message = {"n": True, "a": np.zeros((2, 3), np.float32)}
    for name, kind in (("n", int), ("a", bytes), ("b", int)):
        with pytest.raises(MessageInvalid, match=f"field {name} is missing or malformed"):
            take(message, name, kind)
    assert take_array(message, "a", "f4", (None, 3)).shape == (2, 3)
    for dtype, shape in (("f4", (2,)), ("f4", (2, 3, None)), ("f4", (3, 3)), ("f8", (2, 3))):
        with pytest.raises(MessageInvalid, match="field a has the wrong"):
            take_array(message, "a", dtype, shape)
    only_fields(message, "a", "n")
    for names in (("a",), ("a", "n", "z")):
        with pytest.raises(MessageInvalid, match="fields are missing or unknown"):
            only_fields(message, *names)


def test_groups_whose_names_begin_alike_are_apart() -> None:
    state = {**prefixed("loss", {"a": 1}), **prefixed("losses", {"a": 2}), "loss": 3}
    assert within("loss", state) == {"a": 1}


def test_what_follows_the_last_field_is_ignored() -> None:
    data = encode({"a": 1, "b": b"two", "c": np.arange(3.0), "d": 4})
    assert decode(data, last="b") == {"a": 1, "b": b"two"}
    assert decode(data[:-20], last="b") == {"a": 1, "b": b"two"}
    with pytest.raises(MessageInvalid):
        decode(data[:-20], last="c")
    assert list(decode(data, last="z")) == ["a", "b", "c", "d"]
