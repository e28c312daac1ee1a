"""Generates LLVM vector instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

INT, SMALL = ir.IntType(64), ir.IntType(32)
_cgutils: Any = cgutils
_types: Any = types
#: True with AVX-512, whose registers hold four times as many bytes in total.
WIDE = bool(binding.get_host_cpu_features().get("avx512f"))


class Code:
    """Generates LLVM instructions in one block of code.

    A vector has `lanes` floats. Offsets and counts are in array entries, and a `place` is a pointer
    to an entry.
    """

    def __init__(self, context: Any, builder: Any, lanes: int, entry: Any) -> None:
        self.builder = builder
        self.scalar = context.get_value_type(entry)
        self.vector = ir.VectorType(self.scalar, lanes)
        name = f"llvm.fmuladd.v{lanes}f{8 * self._align}"
        function = ir.FunctionType(self.vector, [self.vector] * 3)
        self._fma = _cgutils.get_or_insert_function(builder.module, function, name)

    def number(self, value: int) -> Any:
        return ir.Constant(INT, value)

    def at(self, base: Any, *offsets: Any) -> Any:
        """Return the pointer `base`, moved forward by the sum of `offsets` entries."""
        for offset in offsets:
            base = self.builder.gep(base, [offset])
        return base

    def load(self, place: Any, kind: Any = None) -> Any:
        kind = kind or self.vector
        pointer = self.builder.bitcast(place, kind.as_pointer())
        return self.builder.load(pointer, align=self._align, typ=kind)

    def store(self, value: Any, place: Any) -> None:
        pointer = self.builder.bitcast(place, value.type.as_pointer())
        self.builder.store(value, pointer, align=self._align)

    @property
    def _align(self) -> int:
        return 4 if isinstance(self.scalar, ir.FloatType) else 8

    def fetch(self, place: Any) -> None:
        """Prefetch the memory at the pointer `place`, which may be an invalid address."""
        byte = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [byte, SMALL, SMALL, SMALL])
        fetch = _cgutils.get_or_insert_function(self.builder.module, function, "llvm.prefetch.p0")
        self.builder.call(fetch, [self.builder.bitcast(place, byte), *map(SMALL, (0, 2, 1))])

    def spread(self, place: Any) -> Any:
        """Return a vector that has the entry at the pointer `place` in every lane."""
        value = self.builder.load(place, typ=self.scalar)
        return self.all_lanes(value, self.scalar)

    def part(self, value: Any, count: Any) -> Any:
        """Return a copy of the vector `value` in which the lanes from index `count` on are zero."""
        builder, lanes = self.builder, self.vector.count
        numbers = ir.Constant(ir.VectorType(INT, lanes), list(range(lanes)))
        some = builder.icmp_signed("<", numbers, self.all_lanes(count, INT))
        return builder.select(some, value, ir.Constant(self.vector, None))

    def all_lanes(self, number: Any, kind: Any) -> Any:
        many = self.vector.count
        nowhere = ir.Constant(ir.VectorType(kind, many), ir.Undefined)
        one = self.builder.insert_element(nowhere, number, SMALL(0))
        lanes = ir.Constant(ir.VectorType(SMALL, many), None)
        return self.builder.shuffle_vector(one, nowhere, lanes)

    def sums(self, vectors: Sequence[Any]) -> Any:
        """Return a vector whose entry i is the sum of all lanes of `vectors[i]`.

        The number of vectors must be a power of two.
        """
        builder, width, parts = self.builder, self.vector.count, list(vectors)

        def both(a: Any, b: Any, low: Sequence[int], step: int) -> Any:
            first, second = (
                builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(SMALL, len(low)), which))
                for which in (list(low), [lane + step for lane in low])
            )
            return builder.fadd(first, second)

        while width > len(vectors):
            width //= 2
            parts = [both(part, part, range(width), width) for part in parts]
        step = width
        while len(parts) > 1:
            step //= 2
            low = [lane for lane in range(2 * width) if lane // step % 2 == 0]
            parts = [both(a, b, low, step) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def zeros(self, count: int) -> list[Any]:
        return [ir.Constant(self.vector, None)] * count

    def loop(
        self, count: Any, start: Sequence[Any], body: Callable[[Any, list[Any]], Any]
    ) -> list[Any]:
        """Generate a loop of `count` iterations. Returns the values after the last iteration.

        `start` has the values before the first iteration. `body` generates one iteration: it gets
        the iteration's number and the values before the iteration, and returns the values after it.
        """
        builder = self.builder
        before, head = builder.block, builder.append_basic_block("turn")
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed(">", count, self.number(0)), head, after)
        builder.position_at_end(head)
        turn = builder.phi(INT)
        turn.add_incoming(self.number(0), before)
        values = [builder.phi(value.type) for value in start]
        made = body(turn, list(values))
        following, last = builder.add(turn, self.number(1)), builder.block
        turn.add_incoming(following, last)
        again = builder.cbranch(builder.icmp_signed("<", following, count), head, after)
        again.set_metadata("llvm.loop", self._as_it_is())
        builder.position_at_end(after)
        ends = [builder.phi(value.type) for value in start]
        for value, end, first, new in zip(values, ends, start, made, strict=True):
            for phi in (value, end):
                phi.add_incoming(first, before)
                phi.add_incoming(new, last)
        return ends

    def _as_it_is(self) -> Any:
        """Return metadata that forbids LLVM to unroll a loop. The loops here have large bodies."""
        module = self.builder.module
        told = module.add_metadata(["llvm.loop.unroll.disable"])
        loop = module.add_metadata([told, told])
        loop.operands = (loop, told)  # LLVM requires that a loop's metadata refers to itself
        return loop

    def by_number(self, value: Any, most: int, write: Callable[[int], None]) -> None:
        """Generate a switch that runs the code generated by `write(n)` if `value` is n at run time.

        There is a case for each n in 1..`most`. For other values, no code runs.
        """
        builder = self.builder
        end = builder.append_basic_block("end")
        choice = builder.switch(value, end)
        for number in range(1, most + 1):
            case = builder.append_basic_block(f"case{number}")
            choice.add_case(self.number(number), case)
            builder.position_at_end(case)
            write(number)
            builder.branch(end)
        builder.position_at_end(end)


def vector_code(lanes: int, *, gives: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that generates instructions, so that a compiled loop can call it.

    At run time, such a call executes the generated instructions. The decorated function gets a
    `Code`, whose vectors have `lanes` floats, and then the arrays and integers that the loop
    passes. The first array has floats. If `gives` is True, the call returns an integer, otherwise
    nothing.
    """

    def make(write: Callable[..., Any]) -> Any:
        @intrinsic
        def written(typing: Any, *arguments: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
                values = [
                    context.cast(builder, value, kind, _types.int64)
                    if isinstance(kind, types.Integer)
                    else value
                    for value, kind in zip(
                        _cgutils.unpack_tuple(builder, given[0]), arguments, strict=True
                    )
                ]
                found = write(Code(context, builder, lanes, arguments[0].dtype), *values)
                return found if gives else context.get_dummy_value()

            given_back = _types.int64 if gives else _types.void
            return given_back(_types.StarArgTuple(arguments)), generate

        return written

    return make
