"""Runs a Triton kernel, all its program instances side by side, over any domain.

Addresses, masks, bounds and counters are integers and concrete; floating-point numbers are elements of the
domain, in which conversions between floating-point types change nothing. This module has integers, numbers and
control flow; `shapes` has operations that only arrange elements, `accesses` those that touch memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.verify.domains import Array, Domain, FloatDomain, Shape
from superopt.verify.infinities import Number
from superopt.verify.ttir.accesses import ACCESSES
from superopt.verify.ttir.batch import Batch, Watch
from superopt.verify.ttir.integers import computed, is_integer
from superopt.verify.ttir.lines import Lines
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import ASSEMBLY, Function, Operation, Region
from superopt.verify.ttir.shapes import SHAPES
from superopt.verify.ttir.types import check_types
from superopt.verify.ttir.values import (
    Descriptor,
    Held,
    Pointer,
    ShapeDomain,
    Truth,
    Whole,
    integers,
    joined,
    moved,
    number,
    wrapped,
)
from superopt.verify.ttir.waits import KNOWN, OPERATIONS
from superopt.verify.ttir.work import A_NUMBER, AN_OPERATION, Meter, widest

LANES = 1 << 20  # elements of one value held at once
MOST_TRIPS = 1 << 20


def launch(
    kernel: Function,
    grid: tuple[int, int, int],
    arguments: Sequence[Buffer | int],
    domain: Domain,
    programs: Sequence[int] | None = None,
    watch: Watch | None = None,
    lines: Lines | None = None,
) -> None:
    """Run `kernel` for every instance of `grid`, or those numbered `programs` (x fastest), on its arguments.

    `watch` is told what integers do to numbers and memory. With `lines`, `programs` are the rows of those.
    Raises IllegalProgram for an access out of bounds, a race, an overlapping store, a load of what was never
    stored, or a missing barrier; UnsupportedProgram for operations that this evaluator does not know.
    """
    if len(arguments) != len(kernel.params):
        raise IllegalProgram(f"'{kernel.name}' expected {len(kernel.params)} arguments, got {len(arguments)}")
    for given, kind in zip(arguments, kernel.types, strict=True):
        if isinstance(given, Buffer) and (not kind.pointer or kind.element != given.dtype):
            raise IllegalProgram(f"'{kernel.name}' expected '{given.name}' ({given.dtype}), got {kind}")
        if isinstance(given, int) and kind.pointer:
            raise IllegalProgram(f"'{kernel.name}' expected a buffer, got {given}")
    check_types(kernel)
    for given in arguments:
        if isinstance(given, Buffer):
            given.begin_launch()
    if (elements := widest(kernel.body)) > LANES:  # as Triton has it
        raise UnsupportedProgram(
            f"kernel '{kernel.name}': expected tensors of at most {LANES} elements, got {elements}"
        )
    numbers = np.arange(math.prod(grid)) if programs is None else np.asarray(programs, np.int64)
    size = len(numbers) if lines is not None else max(1, LANES // elements)
    meter = Meter()
    for start in range(0, len(numbers), size):
        run = _Run(kernel, grid, numbers[start : start + size], domain, watch, lines)
        run.meter = meter
        run.run(arguments)
    for given in arguments:
        if isinstance(given, Buffer):
            given.end_launch()


_BINARY = {
    "arith.addf": "add", "arith.subf": "sub", "arith.divf": "div", "tt.precise_divf": "div",
    "arith.maxnumf": "max", "arith.maximumf": "max", "arith.minnumf": "min", "arith.minimumf": "min",
}  # fmt: skip
_UNARY = {
    "arith.negf": "neg", "math.exp": "exp", "math.log": "log", "math.sqrt": "sqrt", "tt.precise_sqrt": "sqrt",
    "math.erf": "erf", "math.sin": "sin", "math.cos": "cos",
}  # fmt: skip
_COMBINERS = {"arith.addf": "add", **{k: v for k, v in _BINARY.items() if v in ("max", "min")}}
_SAME = frozenset({"arith.extf", "arith.truncf", "tt.fp_to_fp"})
# Comparisons as a > b, b > a, or one of these negated; both kinds treat NaN alike, which no program stores.
_STRICT = {"gt": (False, False), "lt": (True, False), "le": (False, True), "ge": (True, True)}
_COMPARE_FLOATS: Mapping[str, Callable[[Array, Array], Array]] = {
    "oeq": np.equal, "une": np.not_equal, "olt": np.less, "ole": np.less_equal, "ogt": np.greater,
    "oge": np.greater_equal,
}  # fmt: skip


# What numpy and our own indexing raise on ill-typed text: TTIR is data here, and need not come from a compiler.
_ILL_TYPED = (ValueError, IndexError, KeyError, TypeError, AssertionError, OverflowError)


class _Run(Batch):
    """A batch that is being run."""

    meter: Meter

    def run(self, arguments: Sequence[Buffer | int]) -> None:
        for param, given in zip(self.kernel.params, arguments, strict=True):
            offset = np.zeros(1, np.int64)
            self.env[param] = (
                Pointer(given, offset) if isinstance(given, Buffer) else np.asarray([given], np.int64)
            )
        self.region(self.kernel.body, ())

    def region(self, region: Region, args: Sequence[Held]) -> list[Held]:
        """Run a region; returns the operands of its terminator."""
        self.env.update(zip(region.args, args, strict=True))
        for op in region.ops:
            self.line = op.line
            if op.name in ("scf.yield", "tt.reduce.return", "tt.scan.return", "tt.return"):
                return [self.env[v] for v in op.operands]
            self.meter.spend(self.work(op), self.where)
            try:
                results = self.operation(op)
            except _ILL_TYPED as error:
                raise IllegalProgram(
                    f"{self.where}: expected well-typed TTIR, got '{op.name}': {error}"
                ) from None
            if len(results) != len(op.results):
                raise self.unsupported(f"'{op.name}' with {len(op.results)} results")
            if len(results) == 1 and op.types and not op.regions:
                self.fits(results[0], op)
            self.env.update(zip(op.results, results, strict=True))
        return []

    def work(self, op: Operation) -> int:
        """What an operation takes, by its types."""
        count = len(self.programs)
        size = count * op.widest
        if isinstance(self.domain, ShapeDomain):
            return size + AN_OPERATION
        if op.name == "tt.dot":
            size = max(size, count * math.prod(op.types[0].shape) * op.types[1].shape[-1] // A_NUMBER)
        return A_NUMBER * size + AN_OPERATION

    def fits(self, value: Held, op: Operation) -> None:
        """Check that a result has the shape stated in the text (an extent of 1 stands for any)."""
        if isinstance(value, Descriptor):
            return
        shape = value.offsets.shape if isinstance(value, Pointer) else value.shape
        wanted = op.result_type.shape
        if shape and shape[1:] == wanted:
            return
        if len(shape) != len(wanted) + 1 or any(
            s not in (1, w) for s, w in zip(shape[1:], wanted, strict=True)
        ):
            got = f"'{op.name}' of shape {shape[1:]}"
            raise IllegalProgram(f"{self.where}: expected a result of shape {wanted}, got {got}")

    def operation(self, op: Operation) -> list[Held]:
        if hints := [k for k in op.attrs if k in ("tt.divisibility", "tt.contiguity", "tt.constancy")]:
            raise self.unsupported(f"the unchecked hint '{hints[0]}'")
        handler = _HANDLERS.get(op.name)
        if handler is not None:
            return handler(self, op)
        xs = [self.env[v] for v in op.operands]
        if is_integer(op):
            if isinstance(x := xs[0], Whole) and op.name == "arith.cmpi":
                return [self.as_bits(op, x, integers(xs[1]))]
            a, b = integers(xs[0]), integers(xs[1])
            made = computed(op, a, b, self.where)
            if self.lines is not None:
                self.lines.follow(op, a, b, made)
            return [made]
        if op.name in _SAME:
            x = number(xs[0])
            return [replace(x, tensor=self.domain.stored(x.tensor, op.result_type.element))]
        if op.name in _BINARY:
            return [self.numbers.apply(_BINARY[op.name], number(xs[0]), number(xs[1]))]
        if op.name in _UNARY:
            return [self.numbers.apply(_UNARY[op.name], number(xs[0]))]
        raise self.unsupported(f"'{op.name}'")

    # --- integers

    def program_id(self, op: Operation) -> list[Held]:
        x, y, _ = self.grid
        axis = "xyz".index(op.words[0])
        return [
            np.asarray([self.programs, self.programs // x, self.programs // (x * y)][axis] % self.grid[axis])
        ]

    def num_programs(self, op: Operation) -> list[Held]:
        return [np.asarray([self.grid["xyz".index(op.words[0])]], np.int64)]

    def make_range(self, op: Operation) -> list[Held]:
        start, end = (int(op.attrs[k].split(":")[0]) for k in ("start", "end"))
        return [np.arange(start, end, dtype=np.int64)[None]]

    def as_bits(self, op: Operation, x: Whole, other: Array) -> Held:
        """Zeros and ones that were loaded, compared with zero."""
        if op.words[0] != "ne" or not x.truth or other.any():
            raise self.unsupported("a comparison of loaded integers")
        return replace(x, element="i1")

    def to_float(self, op: Operation) -> list[Held]:
        held = self.env[op.operands[0]]
        if isinstance(held, Whole):
            # One bit with a sign is 0 or -1; without a sign, what is below zero is another number.
            if held.element == "i1" if op.name == "arith.sitofp" else not held.truth:
                raise self.unsupported(f"'{op.name}' of loaded {held.element}")
            if held.truth:
                self.domain.truths_given(held.of.tensor)
            return [replace(held.of, tensor=self.domain.stored(held.of.tensor, op.result_type.element))]
        if op.name == "arith.uitofp":
            raise self.unsupported("'arith.uitofp' of integers that are not loaded")
        x = integers(held)
        if x.size > LANES or np.abs(x).max(initial=0) >= 1 << 24:
            raise self.unsupported("integers that fp32 does not hold")
        self.told(x)
        tensor = self.domain.constant(x.astype(np.float64))
        return [Number(tensor, known=float(x.reshape(-1)[0]) if x.size == 1 else None)]

    def same_integer(self, op: Operation) -> list[Held]:
        x = self.env[op.operands[0]]
        x = integers(x)
        if op.name == "arith.extsi" and x.dtype == np.bool_:
            return [-x.astype(np.int64)]
        if op.name == "arith.extui" and (x.astype(np.int64) < 0).any():
            raise self.unsupported("zero extension of a negative number")
        made = wrapped(x.astype(np.int64), op.result_type)
        if self.lines is not None:
            if op.name == "arith.extui":
                self.lines.order(np.zeros_like(x), x, or_equal=True)
            self.lines.fits(op.result_type, made)
        return [made]

    # --- numbers

    def multiply(self, op: Operation) -> list[Held]:
        a, b = (number(self.env[v]) for v in op.operands)
        return [self.numbers.multiply(a, b)]

    def fma(self, op: Operation) -> list[Held]:
        a, b, c = (number(self.env[v]) for v in op.operands)
        return [self.numbers.apply("add", self.numbers.apply("mul", a, b), c)]

    def reciprocal_root(self, op: Operation) -> list[Held]:
        x = self.numbers.apply("sqrt", number(self.env[op.operands[0]]))
        return [self.numbers.apply("div", self.numbers.constant(1.0, len(x.shape)), x)]

    def exp2(self, op: Operation) -> list[Held]:
        return [self.numbers.exp2(number(self.env[op.operands[0]]))]

    def log2(self, op: Operation) -> list[Held]:
        return [self.numbers.log2(number(self.env[op.operands[0]]))]

    def clamp(self, op: Operation) -> list[Held]:
        x, low, high = (number(self.env[v]) for v in op.operands)
        return [self.numbers.apply("min", self.numbers.apply("max", x, low), high)]

    def external(self, op: Operation) -> list[Held]:
        symbol = op.attrs.get("symbol", "").strip('"')
        xs = [number(self.env[v]) for v in op.operands]
        primitive = {"__nv_powf": "pow", "__nv_erff": "erf", "__nv_expf": "exp", "__nv_logf": "log"}.get(
            symbol
        )
        if primitive is None:
            raise self.unsupported(f"the library function '{symbol}'")
        return [self.numbers.apply(primitive, *xs)]

    def compare(self, op: Operation) -> list[Held]:
        a, b = (number(self.env[v]) for v in op.operands)
        if not isinstance(self.domain, FloatDomain) and op.words[0][1:] in _STRICT:
            swapped, negated = _STRICT[op.words[0][1:]]
            if swapped:
                a, b = b, a
            t = a if b.known == 0.0 else self.numbers.apply("sub", a, b)
            return [self.decided(Truth(t, negated))]
        if not isinstance(self.domain, FloatDomain) or op.words[0] not in _COMPARE_FLOATS:
            raise self.unsupported("a comparison of floating-point numbers")
        x, y = (
            p if n.infinite is None else np.where(n.infinite != 0, n.infinite * np.inf, p)
            for n, p in ((a, a.tensor.planes[0]), (b, b.tensor.planes[0]))
        )
        return [_COMPARE_FLOATS[op.words[0]](x, y)]

    def decided(self, truth: Truth) -> Held:
        """The outcomes as bits where all are known."""
        known = self.numbers.truth(truth.of.tensor)
        if (known < 0).any() or truth.of.infinite is not None or truth.of.undefined is not None:
            return truth
        return (known > 0) != truth.negated

    def select(self, op: Operation) -> list[Held]:
        mask, a, b = (self.env[v] for v in op.operands)
        if isinstance(mask, Truth):
            if mask.negated:
                a, b = b, a
            return [self.numbers.apply("where", mask.of, number(a), number(b))]
        return [self.merge(integers(mask).astype(np.bool_), a, b)]

    def dot(self, op: Operation) -> list[Held]:
        a, b, c = (number(self.env[v]) for v in op.operands)
        count = max(a.shape[0], b.shape[0])
        left, right, result = (op.types[i].shape for i in (0, 1, -1))

        def matrices(x: Array, shape: Shape) -> Array:
            return np.broadcast_to(x, (count, *shape)).reshape(-1, *shape[-2:])

        product = self.numbers.contract(
            self.numbers.move(lambda x: matrices(x, left), a),
            self.numbers.move(lambda x: matrices(x, right), b),
        )
        product = self.numbers.move(lambda x: x.reshape(count, *result), product)
        return [product if c.known == 0.0 else self.numbers.apply("add", c, product)]

    def reduce(self, op: Operation) -> list[Held]:
        axis = 1 + int(op.attrs["axis"].split(":")[0])
        region, shapes = op.regions[0], [op.types[i].shape for i in range(len(op.operands))]
        xs = [self.last(v, shape, axis) for v, shape in zip(op.operands, shapes, strict=True)]
        combiner = _combiner(region)
        if combiner is not None and isinstance(xs[0], Number):
            return [self.numbers.reduce(combiner, xs[0])]
        extent = shapes[0][axis - 1]
        while extent > 1:
            half = extent // 2
            low = [self.pick(x, slice(0, half)) for x in xs]
            high = [self.pick(x, slice(half, 2 * half)) for x in xs]
            joined = self.region(region, [*low, *high])
            rest = [self.pick(x, slice(2 * half, extent)) for x in xs]
            xs = [self.concatenate(j, r) for j, r in zip(joined, rest, strict=True)] if extent % 2 else joined
            extent -= half
        return [self.pick(x, 0) for x in xs]

    def scan(self, op: Operation) -> list[Held]:
        if len(op.operands) != 1 or op.attrs.get("reverse", "false").split(":")[0].strip() != "false":
            raise self.unsupported("a scan of several values, or from the end")
        axis, shape = 1 + int(op.attrs["axis"].split(":")[0]), op.types[0].shape
        x = self.last(op.operands[0], shape, axis)
        total = self.pick(x, slice(0, 1))
        out = total
        for i in range(1, shape[axis - 1]):
            (total,) = self.region(op.regions[0], [total, self.pick(x, slice(i, i + 1))])
            out = self.concatenate(out, total)
        self.env[op.results[0]] = out
        return [self.moved(lambda a: a.transpose(*moved(a.ndim, axis)), op.results[0])]

    def last(self, value: int, shape: Shape, axis: int) -> Held:
        """A value with `axis` last and of its full extent."""

        def arrange(x: Array) -> Array:
            full = list(x.shape)
            full[axis] = shape[axis - 1]
            return np.moveaxis(np.broadcast_to(x, full), axis, -1)

        return self.moved(arrange, value)

    def pick(self, x: Held, part: slice | int) -> Held:
        if isinstance(x, Number):
            return self.numbers.move(lambda a: a[..., part], x)
        return integers(x)[..., part]

    def concatenate(self, a: Held, b: Held) -> Held:
        if isinstance(a, Number) and isinstance(b, Number):
            return self.numbers.merge(lambda x, y: joined(x, y), a, b)
        return np.concatenate([integers(a), integers(b)], axis=-1)

    # --- control

    def assembly(self, op: Operation) -> list[Held]:
        if op.literal not in KNOWN:
            raise self.unsupported(f"the assembly '{op.literal}'")
        return []

    def nothing(self, op: Operation) -> list[Held]:
        """What changes neither numbers nor memory."""
        return []

    def barrier(self, op: Operation) -> list[Held]:
        if op.name == "ttg.barrier" and op.words != ("all",):  # Triton 3.7 on; others leave memory out
            raise self.unsupported(f"'{' '.join((op.name, *op.words))}'")
        if not self.active.all():
            raise self.unsupported("a barrier that not every instance reaches")
        self.epoch += 1
        return []

    def loop(self, op: Operation) -> list[Held]:
        low, high, step = (integers(self.env[v]) for v in op.operands[:3])
        carried = [self.env[v] for v in op.operands[3:]]
        if (step <= 0).any():
            raise IllegalProgram(f"{self.where}: expected a loop with a positive step, got {step.min()}")
        entered, index = self.active, low
        for _ in range(MOST_TRIPS):
            self.compared(index, high)
            running = entered & (index < high)
            self.told(running)
            if not running.any():
                break
            uniform = bool((running == entered).all())
            self.active = running
            results = self.region(op.regions[0], [index, *carried])
            if uniform:
                carried = results
            else:
                carried = [self.masked(running, new, old) for new, old in zip(results, carried, strict=True)]
            index = index + step
        else:
            raise self.unsupported(f"a loop of more than {MOST_TRIPS} trips")
        self.active = entered
        return carried

    def branch(self, op: Operation) -> list[Held]:
        condition = integers(self.env[op.operands[0]]).astype(np.bool_)
        self.told(condition)
        entered = self.active
        outcomes: list[list[Held]] = []
        for taken, region in zip((condition, ~condition), op.regions, strict=False):
            self.active = entered & taken
            outcomes.append(self.region(region, ()) if self.active.any() else [])
        self.active = entered
        if not op.results:
            return []
        if not all(outcomes):
            return outcomes[0] or outcomes[1]
        return [self.masked(condition, a, b) for a, b in zip(*outcomes, strict=True)]

    def masked(self, instances: Array, new: Held, old: Held) -> Held:
        """`new` in the instances marked, `old` in the others."""
        if isinstance(new, Descriptor) or isinstance(old, Descriptor):
            raise self.unsupported("a descriptor that a loop or a branch chooses")
        ranks = [x.offsets.ndim if isinstance(x, Pointer) else len(x.shape) for x in (new, old)]
        return self.merge(instances.reshape(-1, *(1,) * (max(ranks) - 1)), new, old)


def _combiner(region: Region) -> str | None:
    """The combiner of a region that consists of one sum, maximum or minimum of its two arguments."""
    if len(region.args) != 2 or len(region.ops) != 2 or set(region.ops[0].operands) != set(region.args):
        return None
    if region.ops[1].operands != region.ops[0].results:
        return None
    return _COMBINERS.get(region.ops[0].name)


_HANDLERS: Mapping[str, Callable[[_Run, Operation], list[Held]]] = {
    **SHAPES, **ACCESSES,
    "arith.sitofp": _Run.to_float, "arith.uitofp": _Run.to_float,
    "arith.extsi": _Run.same_integer, "arith.extui": _Run.same_integer,
    "arith.trunci": _Run.same_integer, "arith.index_cast": _Run.same_integer, "arith.mulf": _Run.multiply,
    "arith.cmpf": _Run.compare, "arith.select": _Run.select, "math.fma": _Run.fma,
    "math.rsqrt": _Run.reciprocal_root, "math.exp2": _Run.exp2, "math.log2": _Run.log2,
    "tt.clampf": _Run.clamp, "tt.extern_elementwise": _Run.external, "tt.get_program_id": _Run.program_id,
    "tt.get_num_programs": _Run.num_programs, "tt.make_range": _Run.make_range, "tt.dot": _Run.dot,
    "tt.reduce": _Run.reduce, "tt.scan": _Run.scan, "gpu.barrier": _Run.barrier,
    "ttg.barrier": _Run.barrier, "scf.for": _Run.loop, "scf.if": _Run.branch,
    ASSEMBLY: _Run.assembly, **dict.fromkeys(OPERATIONS, _Run.nothing),
}  # fmt: skip
