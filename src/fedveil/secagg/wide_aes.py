"""Simulated clients' masks by the processor's own AES instructions, without a buffer.

The keystream of `masking`, byte for byte: AES-256 in counter mode from zero on, equal to that of
`cryptography`, for processors with AVX-512 and VAES, if numba is installed. Only simulations use
it, where the keys are no secrets and are not wiped. Data that leaves a machine is masked only by
`cryptography`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedveil.base.arrays import Array, Bools, Uint32s
from fedveil.base.kernels import compiled
from fedveil.secagg.wide_code import has_instructions, instruction

AVAILABLE = has_instructions("vaes", "avx512f", "avx512bw", "aes")
_ROUNDS, _WORDS = 14, 60
_GROUP_BYTES, _STRETCH_BYTES = 256, 1 << 15

_INT, _HALF = ir.IntType(64), ir.IntType(32)
_BLOCK, _FOUR = ir.VectorType(_INT, 2), ir.VectorType(_INT, 8)


def _substitution(typing: Any, word: Any) -> Any:
    """Apply the S-box to each byte of a word. Rows of four equal columns need no shift."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.Constant(ir.VectorType(_HALF, 4), ir.Undefined)
        for place in range(4):
            wide = builder.insert_element(wide, arguments[0], _HALF(place))
        block = builder.bitcast(wide, _BLOCK)
        zero = ir.Constant(_BLOCK, None)
        block = instruction(builder, "llvm.x86.aesni.aesenclast", _BLOCK, block, zero)
        return builder.extract_element(builder.bitcast(block, wide.type), _HALF(0))

    return types.uint32(types.uint32), code


def _addition(typing: Any, vector: Any, at: Any, keys: Any, key: Any, first: Any, plus: Any) -> Any:
    """Add a group of keystream to the lanes from `at` on, or subtract them.

    `first` is the number of the group's first block. The round keys are the row `key` of `keys`.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        lane = context.get_value_type(vector.dtype)
        lanes = ir.VectorType(lane, 512 // lane.width)
        arrays = [
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2)
        ]
        place = builder.gep(arrays[0].data, [arguments[1]])
        word = builder.gep(arrays[1].data, [builder.mul(arguments[3], _INT(_WORDS))])

        def round_key(number: int) -> Any:
            pointer = builder.bitcast(builder.gep(word, [_INT(4 * number)]), _BLOCK.as_pointer())
            one = builder.load(pointer, align=4, typ=_BLOCK)
            order = ir.Constant(ir.VectorType(_HALF, 8), [0, 1] * 4)
            return builder.shuffle_vector(one, one, order)

        nowhere = ir.Constant(_FOUR, ir.Undefined)
        number = builder.insert_element(nowhere, arguments[4], _HALF(0))
        halves = ir.Constant(
            ir.VectorType(_HALF, 8), [1, 0] * 4
        )  # the second half is the block's number
        number = builder.insert_element(number, _INT(0), _HALF(1))
        number = builder.shuffle_vector(number, nowhere, halves)

        def counters(start: int) -> Any:
            behind = [n for i in range(4) for n in (0, start + i)]
            numbers = builder.add(number, ir.Constant(_FOUR, behind))
            return instruction(builder, "llvm.bswap.v8i64", _FOUR, numbers)

        key = round_key(0)
        blocks = [builder.xor(counters(4 * i), key) for i in range(_GROUP_BYTES // 64)]
        for number in range(1, _ROUNDS + 1):
            key = round_key(number)
            name = "llvm.x86.aesni.aesenc" + ("last" if number == _ROUNDS else "") + ".512"
            blocks = [instruction(builder, name, _FOUR, block, key) for block in blocks]
        for i, block in enumerate(blocks):
            mask = builder.bitcast(block, lanes)
            minus = builder.sub(ir.Constant(lanes, None), mask)
            pointer = builder.gep(place, [_INT(i * lanes.count)])
            pointer = builder.bitcast(pointer, lanes.as_pointer())
            old = builder.load(pointer, align=1, typ=lanes)
            new = builder.add(old, builder.select(arguments[5], mask, minus))
            builder.store(new, pointer, align=1)

    signature = types.void(vector, types.int64, keys, types.int64, types.int64, types.boolean)
    return signature, code


# Compiled code sees these as untyped.
_substituted: Any = intrinsic(_substitution)
_add_group: Any = intrinsic(_addition)


@compiled()
def _schedules(seeds: Uint32s, keys: Uint32s) -> None:
    """Expand the round keys of AES-256 (FIPS 197, 5.2), words with their first byte lowest."""
    for row in range(len(seeds)):
        for i in range(_WORDS):
            if i < 8:
                keys[row, i] = seeds[row, i]
                continue
            word = keys[row, i - 1]
            if i % 8 == 0:
                turned = np.uint32(word >> np.uint32(8)) | np.uint32(word << np.uint32(24))
                word = _substituted(np.uint32(turned)) ^ np.uint32(1 << (i // 8 - 1))
            elif i % 8 == 4:
                word = _substituted(word)
            keys[row, i] = keys[row, i - 8] ^ word


@compiled()
def _add_all(vector: Array, keys: Uint32s, plus: Bools) -> None:
    """Add all masks to one stretch of the vector after another. The end is done in a copy."""
    group = _GROUP_BYTES // vector.itemsize
    stretch = _STRETCH_BYTES // vector.itemsize
    whole = len(vector) // group * group
    for begin in range(0, whole, stretch):
        for key in range(len(keys)):
            for at in range(begin, min(begin + stretch, whole), group):
                _add_group(vector, at, keys, key, at * vector.itemsize // 16, plus[key])
    rest = np.zeros(group, vector.dtype)
    rest[: len(vector) - whole] = vector[whole:]
    for key in range(len(keys)):
        _add_group(rest, 0, keys, key, whole * vector.itemsize // 16, plus[key])
    vector[whole:] = rest[: len(vector) - whole]


def add_keystreams(vector: Array, seeds: Sequence[tuple[bytes, bool]]) -> None:
    """Add the keystream of each seed to a vector of lanes, or subtract it, as `add_masks` does."""
    words = np.frombuffer(b"".join(seed for seed, _ in seeds), np.uint32).reshape(-1, 8)
    keys = np.empty((len(seeds), _WORDS), np.uint32)
    _schedules(words, keys)
    _add_all(vector, keys, np.array([plus for _, plus in seeds], np.bool_))
