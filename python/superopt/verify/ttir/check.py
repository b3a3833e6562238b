"""Checks the Triton IR of a lowered program against the program: what `ptxas` gets is what was proved.

Four things are done for every kernel, in this order, and the record says on how many instances:

1. *addresses*, all instances, at full extents: integers are followed through the TTIR alone. Every access is
   within its buffer, no two instances touch what one of them stores, stores and loads of one instance are
   divided by barriers, nothing is loaded that was not stored, and every element of every output is stored.
2. *values*, at full extents: the instances are run over a prime field of 61 bits on the operands that the
   lowered program gives the kernel, all of them or (where that takes too long) a random sample, and what they
   store must be what the lowered program's kernel computes. Where all instances ran, the outputs of the last
   kernels are also compared with the original program's.
3. *floats*: some instances in fp64 on ordinary inputs (`floats`), for what overflows or cancels.
4. *values, formally*, at reduced extents, where the caller can compile: the lowered program is shrunk,
   compiled again and all of its instances run with exponentials kept formal.

Constants are read as fp32, as Triton holds them. Conversions between floating-point types change nothing:
rounding is the business of the numeric check.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from superopt.errors import IllegalProgram, NotEquivalent
from superopt.program import KernelGraph, Node, TileProgram, Value
from superopt.verify.certificate import Record
from superopt.verify.demand import feeds_exponential
from superopt.verify.domains import Array, Domain, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import FormalField, ImageField
from superopt.verify.reduce import reduce_extents, work
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.floats import check_floats
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.parser import Function, parse
from superopt.verify.ttir.values import ShapeDomain
from superopt.verify.ttir.work import instance_work

# Elements computed, over all instances of a kernel, up to which all of them are run over the field.
FULL_WORK = 200_000_000
FORMAL_WORK = 100_000
FEWEST_SAMPLED = 4
ATTEMPTS = 4


@dataclass(frozen=True)
class KernelText:
    """A compiled kernel as data: its TTIR, its grid, and the types of its arguments in order.

    `arguments` are those of the kernel's tile program (`TileProgram.arguments`), then scratch: (name, elements,
    dtype).
    """

    name: str
    ttir: str
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, int, str], ...]


class KernelRecord(Record):
    """What was done with one kernel."""

    name: str
    ttir_sha256: str
    grid: tuple[int, int, int]
    instances: int
    addressed: int
    evaluated: int


class ArtifactRecord(Record):
    """That the TTIR of every kernel computes what its node in the lowered program says.

    `formal` says whether the kernels, compiled at reduced extents, were also run with exponentials kept
    formal.
    """

    version: Literal[1] = 1
    seed: int
    kernels: list[KernelRecord]
    formal: bool
    end_to_end: bool
    notes: list[str]

    @property
    def summary(self) -> str:
        """One line for people."""
        count = sum(k.instances for k in self.kernels)
        values = sum(k.evaluated for k in self.kernels)
        how = "exponentials formal" if self.formal else "exponentials as powers of a random root"
        against = "against the program" if self.end_to_end else "against the lowered program"
        done = f"addresses of {count} instances, values of {values} {against}, {how}"
        return f"TTIR of {len(self.kernels)} kernels: {done}"


Compile = Callable[[KernelGraph], Sequence[KernelText]]


def verify_ttir(
    original: KernelGraph,
    lowered: KernelGraph,
    kernels: Sequence[KernelText],
    *,
    seed: int = 0,
    compile_again: Compile | None = None,
    full_work: int = FULL_WORK,
) -> ArtifactRecord:
    """Check the TTIR of `kernels`, one for each `tiled` node of `lowered` in order, as the module says.

    Raises NotEquivalent where a kernel computes something else, IllegalProgram where one accesses memory as
    it must not, UnsupportedProgram for TTIR that cannot be verified, BadInput for text that is no TTIR.
    """
    functions = [parse(k.ttir, f"{k.name}.ttir") for k in kernels]
    nodes = [n for n in lowered.nodes if isinstance(n.body, TileProgram)]
    if len(nodes) != len(kernels):
        raise NotEquivalent(f"expected {len(nodes)} kernels, got {len(kernels)}")
    for node, kernel in zip(nodes, kernels, strict=True):
        _interface(node, kernel)
    for function, node, kernel in zip(functions, nodes, kernels, strict=True):
        _addresses(function, node, kernel)
    evaluated = {n: _sample(f, k, seed, full_work) for f, n, k in zip(functions, nodes, kernels, strict=True)}
    whole = all(v is None for v in evaluated.values())
    programs = dict(zip(nodes, zip(functions, kernels, strict=True), strict=True))
    _values(original, lowered, programs, evaluated, seed, formal=work(lowered) <= FORMAL_WORK)
    formal, notes = work(lowered) <= FORMAL_WORK, list[str]()
    texts = {n: (f, k.grid, k.arguments) for n, (f, k) in programs.items()}
    if reason := check_floats(lowered, texts, seed):
        notes.append(reason)
    if not formal and compile_again is not None:
        pair = reduce_extents(original, lowered)
        if pair is not None:
            again = compile_again(pair[1])
            smaller = [n for n in pair[1].nodes if isinstance(n.body, TileProgram)]
            parsed = [parse(k.ttir, f"{k.name}.ttir") for k in again]
            table = dict(zip(smaller, zip(parsed, again, strict=True), strict=True))
            _values(None, pair[1], table, dict.fromkeys(smaller), seed, formal=True)
            formal = True
            notes.append("the formal test was of the kernels compiled at reduced extents")
    records = [
        KernelRecord(
            name=k.name,
            ttir_sha256=hashlib.sha256(k.ttir.encode()).hexdigest(),
            grid=k.grid,
            instances=math.prod(k.grid),
            addressed=math.prod(k.grid),
            evaluated=math.prod(k.grid) if (some := evaluated[n]) is None else len(some),
        )
        for n, k in zip(nodes, kernels, strict=True)
    ]
    return ArtifactRecord(seed=seed, kernels=records, formal=formal, end_to_end=whole, notes=notes)


def _interface(node: Node, kernel: KernelText) -> None:
    assert isinstance(node.body, TileProgram)
    wanted = [(b.type.elements, b.type.dtype) for b in node.body.arguments]
    got = [(elements, dtype) for _, elements, dtype in kernel.arguments[: len(wanted)]]
    if wanted != got:
        raise NotEquivalent(f"kernel '{kernel.name}': expected arguments {wanted}, got {got}")
    if any(g < 1 for g in kernel.grid) or math.prod(kernel.grid) > 1 << 31:
        raise IllegalProgram(f"kernel '{kernel.name}': expected a grid, got {kernel.grid}")


def _addresses(function: Function, node: Node, kernel: KernelText) -> None:
    """Run all instances on no numbers; every output must be stored whole."""
    domain = ShapeDomain()
    operands = [domain.shaped((v.type.elements,)) for v in node.operands]
    buffers, stored = launch_buffers(node, kernel.arguments, operands)
    launch(function, kernel.grid, buffers, domain)
    for buffer in stored:
        if not buffer.initialised.all():
            at = int(np.argmin(buffer.initialised))
            raise NotEquivalent(
                f"kernel '{kernel.name}': expected all of '{buffer.name}' to be stored, got nothing at {at}"
            )


def _sample(function: Function, kernel: KernelText, seed: int, full_work: int) -> list[int] | None:
    """The numbers of the instances to evaluate; None for all."""
    count = math.prod(kernel.grid)
    fit = max(FEWEST_SAMPLED, full_work // max(1, instance_work(function)))
    if fit >= count:
        return None
    # The first and the last instance are where offsets and tails go wrong.
    drawn = random.Random(f"{seed} {kernel.name}").sample(range(count), fit)
    return sorted({0, count - 1, *drawn})


_Programs = Mapping[Node, tuple[Function, KernelText]]


def _values(
    original: KernelGraph | None,
    lowered: KernelGraph,
    programs: _Programs,
    evaluated: Mapping[Node, Sequence[int] | None],
    seed: int,
    *,
    formal: bool,
) -> None:
    """One random point; another where a denominator happens to vanish."""
    for attempt in range(ATTEMPTS):
        point = ("ttir", seed, attempt)
        field = _FormalTriton(point) if formal else _ImageTriton(point, lattice="order")
        try:
            _at_point(original, lowered, programs, evaluated, field)
        except ZeroDivisionError:
            continue
        return
    raise NotEquivalent(f"expected denominators that do not vanish, got zero at {ATTEMPTS} random points")


class _Fp32Constants(ImageField):
    """Constants as Triton holds them."""

    def constant(self, value: float | Array) -> Tensor:
        return super().constant(np.asarray(value, np.float32).astype(np.float64))


class _ImageTriton(_Fp32Constants, ImageField):
    pass


class _FormalTriton(_Fp32Constants, FormalField):
    pass


def _at_point(
    original: KernelGraph | None,
    lowered: KernelGraph,
    programs: _Programs,
    evaluated: Mapping[Node, Sequence[int] | None],
    field: ImageField,
) -> None:
    demand = feeds_exponential(lowered)
    inputs = [
        field.random(i, v.shape, exponent=e)
        for i, (v, e) in enumerate(zip(lowered.inputs, demand, strict=True))
    ]
    env: dict[Value, Tensor] = dict(zip(lowered.inputs, inputs, strict=True))
    whole = all(v is None for v in evaluated.values())
    for node in lowered.nodes:
        operands = [env[v] for v in node.operands]
        # The reference is the node alone, so that a difference is found at the kernel that makes it.
        if node not in programs or not (whole and original is not None):
            alone = KernelGraph("node", list(node.operands), [node], list(node.results))
            results = evaluate(alone, [env[v] for v in alone.inputs], field)
        else:
            results = None
        if node in programs:
            results = _kernel(*programs[node], node, operands, results, evaluated[node], field)
        assert results is not None
        env.update(zip(node.results, results, strict=True))
    if original is None or not whole:
        return
    expected = evaluate(original, inputs, field)
    for i, (value, wanted) in enumerate(zip(lowered.outputs, expected, strict=True)):
        different = field.differs(wanted, env[value])
        if different.any():
            at = [int(n) for n in np.argwhere(different)[0]]
            raise NotEquivalent(
                f"expected the kernels to compute the program, got another output {i} at {at}"
            )


def _kernel(
    function: Function,
    kernel: KernelText,
    node: Node,
    operands: Sequence[Tensor],
    expected: Sequence[Tensor] | None,
    instances: Sequence[int] | None,
    field: ImageField,
) -> list[Tensor]:
    """Run the instances; what they stored, compared with `expected` where that is given."""
    buffers, stored = launch_buffers(node, kernel.arguments, [_flat(t, field) for t in operands])
    launch(function, kernel.grid, buffers, field, instances)
    results: list[Tensor] = []
    for i, (buffer, value) in enumerate(zip(stored, node.results, strict=True)):
        contents = buffer.contents
        if contents is None:
            raise NotEquivalent(f"kernel '{kernel.name}': expected stores to '{buffer.name}', got none")
        if expected is None:
            results.append(field.move(lambda x, s=value.shape: x.reshape(s), contents))
            continue
        places = np.flatnonzero(buffer.initialised if instances is None else buffer.stored)
        wanted = field.move(lambda x, at=places: x.reshape(-1)[at], expected[i])
        got = field.move(lambda x, at=places: x[at], contents)
        different = field.differs(wanted, got)
        if different.any():
            at = _position(int(places[np.argmax(different)]), value.shape)
            raise NotEquivalent(
                f"kernel '{kernel.name}': expected '{buffer.name}' as the lowered program computes it, "
                f"got another value at {at}"
            )
        results.append(expected[i])
    return results


def _flat(tensor: Tensor, domain: Domain) -> Tensor:
    return domain.move(lambda x: np.ascontiguousarray(x).reshape(-1), tensor)


def _position(flat: int, shape: tuple[int, ...]) -> list[int]:
    """The indices of element number `flat` of a tensor."""
    indices: list[int] = []
    for extent in reversed(shape):
        flat, index = divmod(flat, extent)
        indices.append(index)
    return indices[::-1]
