"""Runs a Triton kernel, all its program instances side by side, over any domain.

Addresses, masks, bounds and counters are integers and concrete; floating-point numbers are elements of the
domain, in which conversions between floating-point types change nothing. Every access is checked (`memory`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.verify.domains import Array, Domain, FloatDomain, Shape
from superopt.verify.infinities import Number, Numbers
from superopt.verify.ttir.descriptors import boxed, described
from superopt.verify.ttir.integers import computed, is_integer
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import Function, Operation, Region
from superopt.verify.ttir.types import check_types
from superopt.verify.ttir.values import (
    Descriptor,
    Held,
    Pointer,
    float_literal,
    integers,
    joined,
    moved,
    number,
    wrapped,
)
from superopt.verify.ttir.work import widest

LANES = 1 << 20  # elements of one value held at once
MOST_TRIPS = 1 << 20


def launch(
    kernel: Function,
    grid: tuple[int, int, int],
    arguments: Sequence[Buffer | int],
    domain: Domain,
    programs: Sequence[int] | None = None,
) -> None:
    """Run `kernel` for every instance of `grid`, or those numbered `programs` (x fastest), on its arguments.

    Raises IllegalProgram for an access out of bounds, a race, an overlapping store, a load of what was never
    stored or a missing barrier; UnsupportedProgram for operations that this evaluator does not know.
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
    numbers = np.arange(math.prod(grid)) if programs is None else np.asarray(programs, np.int64)
    size = max(1, LANES // widest(kernel.body))
    for start in range(0, len(numbers), size):
        _Run(kernel, grid, numbers[start : start + size], domain).run(arguments)


_BINARY = {
    "arith.addf": "add", "arith.subf": "sub", "arith.divf": "div", "tt.precise_divf": "div",
    "arith.maxnumf": "max", "arith.maximumf": "max", "arith.minnumf": "min", "arith.minimumf": "min",
}  # fmt: skip
_UNARY = {
    "arith.negf": "neg", "math.exp": "exp", "math.log": "log", "math.sqrt": "sqrt", "tt.precise_sqrt": "sqrt",
    "math.erf": "erf", "math.sin": "sin", "math.cos": "cos",
}  # fmt: skip
_COMBINERS = {"arith.addf": "add", **{k: v for k, v in _BINARY.items() if v in ("max", "min")}}
_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
_SAME = frozenset({"arith.extf", "arith.truncf", "tt.fp_to_fp"})
_COMPARE_FLOATS: Mapping[str, Callable[[Array, Array], Array]] = {
    "oeq": np.equal, "une": np.not_equal, "olt": np.less, "ole": np.less_equal, "ogt": np.greater,
    "oge": np.greater_equal,
}  # fmt: skip


# What numpy and our own indexing raise on text that no compiler wrote: TTIR is data here, and then ill-typed.
_ILL_TYPED = (ValueError, IndexError, KeyError, TypeError, AssertionError, OverflowError)


class _Run:
    """One batch of instances; `active` are those that take part in the region being run."""

    def __init__(self, kernel: Function, grid: tuple[int, int, int], programs: Array, domain: Domain) -> None:
        self.kernel, self.grid, self.programs, self.domain = kernel, grid, programs, domain
        self.numbers = Numbers(domain)
        self.env: dict[int, Held] = {}
        self.active = np.ones(len(programs), np.bool_)
        self.epoch = 0
        self.line = 0

    def run(self, arguments: Sequence[Buffer | int]) -> None:
        for param, given in zip(self.kernel.params, arguments, strict=True):
            offset = np.zeros(1, np.int64)
            self.env[param] = (
                Pointer(given, offset) if isinstance(given, Buffer) else np.asarray([given], np.int64)
            )
        self.region(self.kernel.body, ())

    @property
    def where(self) -> str:
        return f"kernel '{self.kernel.name}', line {self.line} of its TTIR"

    def region(self, region: Region, args: Sequence[Held]) -> list[Held]:
        """Run a region; the operands of its terminator."""
        self.env.update(zip(region.args, args, strict=True))
        for op in region.ops:
            self.line = op.line
            if op.name in ("scf.yield", "tt.reduce.return", "tt.scan.return", "tt.return"):
                return [self.env[v] for v in op.operands]
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

    def fits(self, value: Held, op: Operation) -> None:
        """Whether a result has the shape that the text says (extents of 1 stand for any)."""
        if isinstance(value, Descriptor):
            return
        shape = value.offsets.shape if isinstance(value, Pointer) else value.shape
        wanted = op.result_type.shape
        if len(shape) != len(wanted) + 1 or any(
            s not in (1, w) for s, w in zip(shape[1:], wanted, strict=True)
        ):
            got = f"'{op.name}' of shape {shape[1:]}"
            raise IllegalProgram(f"{self.where}: expected a result of shape {wanted}, got {got}")

    def unsupported(self, what: str) -> UnsupportedProgram:
        return UnsupportedProgram(f"{self.where}: expected an operation that can be verified, got {what}")

    def operation(self, op: Operation) -> list[Held]:
        if hints := [k for k in op.attrs if k in ("tt.divisibility", "tt.contiguity", "tt.constancy")]:
            raise self.unsupported(f"the unchecked hint '{hints[0]}'")
        handler = _HANDLERS.get(op.name)
        if handler is not None:
            return handler(self, op)
        xs = [self.env[v] for v in op.operands]
        if is_integer(op):
            return [computed(op, integers(xs[0]), integers(xs[1]), self.where)]
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

    def to_float(self, op: Operation) -> list[Held]:
        x = integers(self.env[op.operands[0]])
        if x.size > LANES or np.abs(x).max(initial=0) >= 1 << 24:
            raise self.unsupported("integers that fp32 does not hold")
        tensor = self.domain.constant(x.astype(np.float64))
        return [Number(tensor, known=float(x.reshape(-1)[0]) if x.size == 1 else None)]

    def same_integer(self, op: Operation) -> list[Held]:
        x = self.env[op.operands[0]]
        x = integers(x)
        if op.name == "arith.extsi" and x.dtype == np.bool_:
            return [-x.astype(np.int64)]
        if op.name == "arith.extui" and (x.astype(np.int64) < 0).any():
            raise self.unsupported("zero extension of a negative number")
        return [wrapped(x.astype(np.int64), op.result_type)]

    # --- shapes

    def constant(self, op: Operation) -> list[Held]:
        kind, literal = op.types[0], op.literal
        if literal.startswith("dense<") and literal.endswith(">"):
            literal = literal[6:-1]
        rank = 1 + len(kind.shape)
        try:
            if kind.floating:
                return [self.numbers.constant(float_literal(literal, kind.element), rank)]
            number = {"true": 1, "false": 0}.get(literal)
            value = int(literal, 0) if number is None else number
        except ValueError:
            raise self.unsupported(f"the constant {literal[:40]}") from None
        return [wrapped(np.full((1,) * rank, value, np.int64), kind)]

    def splat(self, op: Operation) -> list[Held]:
        rank = len(op.result_type.shape)
        return [self.moved(lambda x: x.reshape(x.shape[0], *(1,) * rank), op.operands[0])]

    def unsplat(self, op: Operation) -> list[Held]:
        return [self.moved(lambda x: x.reshape(x.shape[0]), op.operands[0])]

    def expand_dims(self, op: Operation) -> list[Held]:
        axis = 1 + int(op.attrs["axis"].split(":")[0])
        return [self.moved(lambda x: np.expand_dims(x, axis), op.operands[0])]

    def broadcast(self, op: Operation) -> list[Held]:
        source, target = op.types[0].shape, op.result_type.shape
        if len(source) != len(target) or any(s not in (1, t) for s, t in zip(source, target, strict=True)):
            raise IllegalProgram(f"{self.where}: expected shapes that broadcast, got {source} and {target}")
        return [self.env[op.operands[0]]]  # extents of 1 are held as such

    def reshape(self, op: Operation) -> list[Held]:
        if "allow_reorder" in op.words or "allow_reorder" in op.attrs:
            raise self.unsupported("a reshape that may reorder elements")
        source, target = op.types[0].shape, op.result_type.shape

        def arrange(x: Array) -> Array:
            return np.broadcast_to(x, (x.shape[0], *source)).reshape(x.shape[0], *target)

        return [self.moved(arrange, op.operands[0])]

    def transpose(self, op: Operation) -> list[Held]:
        order = [int(i) for i in op.attrs["order"].partition(":")[2].rstrip(">").split(",")]
        return [self.moved(lambda x: x.transpose(0, *(1 + i for i in order)), op.operands[0])]

    def join(self, op: Operation) -> list[Held]:
        shape = op.types[0].shape
        a, b = (number(self.env[v]) for v in op.operands)
        count = max(a.shape[0], b.shape[0])
        full = [
            self.numbers.move(lambda x: np.broadcast_to(x, (count, *shape))[..., None], v) for v in (a, b)
        ]
        return [self.numbers.select(np.asarray([True, False]), full[0], full[1])]

    def split(self, op: Operation) -> list[Held]:
        shape = op.types[0].shape

        def half(x: Array, i: int) -> Array:
            return np.broadcast_to(x, (x.shape[0], *shape))[..., i]

        return [self.moved(lambda x, i=i: half(x, i), op.operands[0]) for i in (0, 1)]

    def moved(self, arrange: Callable[[Array], Array], value: int) -> Held:
        x = self.env[value]
        if isinstance(x, Pointer):
            return Pointer(x.buffer, arrange(x.offsets))
        if isinstance(x, Descriptor):
            raise self.unsupported("an operation on a descriptor")
        return self.numbers.move(arrange, x) if isinstance(x, Number) else arrange(x)

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
        if not isinstance(self.domain, FloatDomain) or op.words[0] not in _COMPARE_FLOATS:
            raise self.unsupported("a comparison of floating-point numbers")
        a, b = (number(self.env[v]) for v in op.operands)
        x, y = (
            p if n.infinite is None else np.where(n.infinite != 0, n.infinite * np.inf, p)
            for n, p in ((a, a.tensor.planes[0]), (b, b.tensor.planes[0]))
        )
        return [_COMPARE_FLOATS[op.words[0]](x, y)]

    def select(self, op: Operation) -> list[Held]:
        mask, a, b = (self.env[v] for v in op.operands)
        return [self.merge(integers(mask).astype(np.bool_), a, b)]

    def merge(self, mask: Array, a: Held, b: Held) -> Held:
        if isinstance(a, Number) and isinstance(b, Number):
            return self.numbers.select(mask, a, b)
        if isinstance(a, Pointer) and isinstance(b, Pointer):
            if a.buffer is not b.buffer:
                raise self.unsupported("a choice between pointers to two buffers")
            return Pointer(a.buffer, np.where(mask, a.offsets, b.offsets))
        return np.where(mask, integers(a), integers(b))

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

    # --- memory

    def addptr(self, op: Operation) -> list[Held]:
        pointer, offset = (self.env[v] for v in op.operands)
        assert isinstance(pointer, Pointer)
        return [Pointer(pointer.buffer, pointer.offsets + integers(offset))]

    def access(self, op: Operation, mask: int | None) -> tuple[Pointer, Shape, Array, Array]:
        """Pointer, full shape, which lanes are active (in the common shape of pointer and mask), instances."""
        pointer = self.env[op.operands[0]]
        assert isinstance(pointer, Pointer)
        shape = (len(self.programs), *op.types[0].shape)
        rank = len(shape) - 1
        lanes = self.active.reshape(-1, *(1,) * rank)
        if mask is not None:
            lanes = lanes & integers(self.env[mask]).astype(np.bool_)
        common = np.broadcast_shapes(pointer.offsets.shape, lanes.shape)
        instances = np.broadcast_to(self.programs.reshape(-1, *(1,) * rank), common)
        return pointer, shape, np.broadcast_to(lanes, common), instances

    def load(self, op: Operation) -> list[Held]:
        mask = op.operands[1] if len(op.operands) > 1 else None
        if op.types[0].element not in _BYTES:
            raise self.unsupported(f"a load of {op.types[0].element}")
        pointer, _, lanes, instances = self.access(op, mask)
        other = number(self.env[op.operands[2]]) if len(op.operands) > 2 else None
        return [self.read(pointer, lanes, instances, other)]

    def read(self, pointer: Pointer, lanes: Array, instances: Array, other: Number | None) -> Number:
        """What stands in memory in the `lanes` that are marked; `other`, or nothing known, elsewhere."""
        buffer = pointer.buffer
        offsets = np.broadcast_to(pointer.offsets, lanes.shape)
        whole = bool(lanes.all())
        used, by = (
            (offsets.reshape(-1), instances.reshape(-1)) if whole else (offsets[lanes], instances[lanes])
        )
        buffer.load(used, by, self.epoch, self.where)
        if not lanes.any() or buffer.contents is None:
            read = self.numbers.unknown(lanes.shape)
        else:
            places = offsets if whole else np.where(lanes, offsets, 0)
            read = Number(self.domain.move(lambda x: x[places], buffer.contents))
        if whole:
            return read
        return self.numbers.select(lanes, read, other or self.numbers.unknown(lanes.shape))

    def make_descriptor(self, op: Operation) -> list[Held]:
        base, *numbers = (self.env[v] for v in op.operands)
        assert isinstance(base, Pointer)
        return [described(op, base, numbers, _BYTES.get(base.buffer.dtype), self.where)]

    def descriptor_load(self, op: Operation) -> list[Held]:
        """The box at some coordinates, zero past the tensor's edges."""
        first, *at = (self.env[v] for v in op.operands)
        assert isinstance(first, Descriptor)
        pointer, lanes = boxed(op, first, at, self.active, self.where)
        rank = len(first.box)
        instances = np.broadcast_to(self.programs.reshape(-1, *(1,) * rank), lanes.shape)
        return [self.read(pointer, lanes, instances, self.numbers.constant(0.0, rank + 1))]

    def store(self, op: Operation) -> list[Held]:
        _, stored, *mask = op.operands
        pointer, shape, lanes, instances = self.access(op, mask[0] if mask else None)
        value = number(self.env[stored])
        lanes = np.broadcast_to(lanes, shape)
        if value.infinite is not None and (np.broadcast_to(value.infinite != 0, shape) & lanes).any():
            raise self.unsupported("a store of infinity")
        if value.undefined is not None and (np.broadcast_to(value.undefined, shape) & lanes).any():
            raise IllegalProgram(f"{self.where}: expected a number to be stored, got one that is undefined")
        offsets = np.broadcast_to(pointer.offsets, shape)[lanes]
        values = self.domain.move(lambda x: np.broadcast_to(x, shape)[lanes], value.tensor)
        pointer.buffer.store(
            offsets, values, np.broadcast_to(instances, shape)[lanes], self.epoch, self.where, self.domain
        )
        return []

    def barrier(self, op: Operation) -> list[Held]:
        if not self.active.all():
            raise self.unsupported("a barrier that not every instance reaches")
        self.epoch += 1
        return []

    # --- control

    def loop(self, op: Operation) -> list[Held]:
        low, high, step = (integers(self.env[v]) for v in op.operands[:3])
        carried = [self.env[v] for v in op.operands[3:]]
        if (step <= 0).any():
            raise IllegalProgram(f"{self.where}: expected a loop with a positive step, got {step.min()}")
        entered, index = self.active, low
        for _ in range(MOST_TRIPS):
            running = entered & (index < high)
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
    """The combiner of a region that is one sum, maximum or minimum of its two arguments."""
    if len(region.args) != 2 or len(region.ops) != 2 or set(region.ops[0].operands) != set(region.args):
        return None
    if region.ops[1].operands != region.ops[0].results:
        return None
    return _COMBINERS.get(region.ops[0].name)


_HANDLERS: Mapping[str, Callable[[_Run, Operation], list[Held]]] = {
    "arith.constant": _Run.constant, "arith.sitofp": _Run.to_float,
    "arith.extsi": _Run.same_integer, "arith.extui": _Run.same_integer, "arith.trunci": _Run.same_integer,
    "arith.index_cast": _Run.same_integer, "arith.mulf": _Run.multiply, "arith.cmpf": _Run.compare,
    "arith.select": _Run.select, "math.fma": _Run.fma, "math.rsqrt": _Run.reciprocal_root, "math.exp2": _Run.exp2,
    "math.log2": _Run.log2, "tt.clampf": _Run.clamp, "tt.extern_elementwise": _Run.external,
    "tt.get_program_id": _Run.program_id, "tt.get_num_programs": _Run.num_programs,
    "tt.make_range": _Run.make_range, "tt.splat": _Run.splat, "tt.unsplat": _Run.unsplat,
    "tt.expand_dims": _Run.expand_dims, "tt.broadcast": _Run.broadcast, "tt.reshape": _Run.reshape,
    "tt.trans": _Run.transpose, "tt.join": _Run.join, "tt.split": _Run.split, "tt.dot": _Run.dot,
    "tt.reduce": _Run.reduce, "tt.scan": _Run.scan, "tt.addptr": _Run.addptr, "tt.load": _Run.load,
    "tt.make_tensor_descriptor": _Run.make_descriptor, "tt.descriptor_load": _Run.descriptor_load,
    "tt.store": _Run.store, "gpu.barrier": _Run.barrier, "scf.for": _Run.loop, "scf.if": _Run.branch,
}  # fmt: skip
