"""Checks the Triton IR of a lowered program against the program, so that `ptxas` gets what was proved.

Every kernel passes four checks, in this order; the record says on how many instances:

1. *addresses*, all instances, at full extents: the integers of the TTIR alone are evaluated. Every access is
   within its buffer, no two instances touch what one of them stores, barriers separate the stores and loads of
   one instance, nothing is loaded that was not stored, and every element of every output is stored.
2. *values*, at full extents: the instances are run over a prime field of 61 bits. Where all of the program's can
   be, each kernel runs on what the ones before it stored, and the outputs must be the original program's.
   Otherwise each kernel runs by itself, on its own operands, with some of its instances where all take too
   long (`sampling`): they must store what its node of the lowered program computes.
3. *floats*: some instances in fp64 on three kinds of inputs (`floats`), to catch overflow and
   cancellation.
4. *values, formally*, at reduced extents, where the caller can compile: the lowered program is shrunk,
   compiled again and all of its instances run with exponentials kept formal.

Constants are read as fp32, as Triton holds them. Conversions between floating-point types change nothing:
the numeric check deals with rounding.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from superopt.computed import computed_node
from superopt.diagnostics import counted
from superopt.errors import IllegalProgram, NotEquivalent, UnsupportedProgram
from superopt.program import KernelGraph, Node, TileProgram, Value
from superopt.verify.certificate import Record
from superopt.verify.certifier import certify
from superopt.verify.demand import feeds_exponential
from superopt.verify.domains import Array, Domain, Shape, Tensor
from superopt.verify.drawn import drawn as drawn_input
from superopt.verify.evaluate import evaluate
from superopt.verify.evaluate_tile import evaluate_written
from superopt.verify.hashing import canonical_text
from superopt.verify.infinities import Extended
from superopt.verify.maxima import Maxima, said_of
from superopt.verify.primes import Primes, drawn
from superopt.verify.ptx.record import PtxRecord
from superopt.verify.reduce import elements, reduce_extents, work
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.floats import check_floats
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import Function, at_extents, parse
from superopt.verify.ttir.points import at_some_point
from superopt.verify.ttir.ran import Evaluated, Ran, Stores, stores_of
from superopt.verify.ttir.sampling import blocks_of, instances_of, some_blocks
from superopt.verify.ttir.values import ShapeDomain
from superopt.verify.ttir.waits import check_wait
from superopt.verify.ttir.work import instance_work

# Elements computed, over all instances of all kernels, up to which all instances run over the field.
FULL_WORK = 200_000_000
# The same for one kernel, where the program is larger.
KERNEL_WORK = 10_000_000
FORMAL_WORK = 100_000
# Operations of the programs that kernels are compared with, for each element of theirs: most are of products.
OF_PROGRAMS = 64
# Where a kernel is compared with its whole node, or with some blocks of it: operations, minutes, and elements.
MOST_WORK, MOST_ELEMENTS = 1 << 37, 1 << 29
FEWEST_SAMPLED = 4


@dataclass(frozen=True)
class KernelText:
    """A compiled kernel as data: its TTIR, its grid, and the types of its arguments in order.

    `arguments` are those of the kernel's tile program (`TileProgram.arguments`), then scratch: (name, elements,
    dtype). `extents` are the numbers that a launch passes last to a kernel for ranges of extents. One that is
    `early` may be launched while the kernel before it still runs (`superopt.early`).
    """

    name: str
    ttir: str
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, int, str], ...]
    extents: tuple[int, ...] = ()
    early: bool = False

    def function(self) -> Function:
        """The TTIR, read.

        Raises BadInput for text that is not TTIR, IllegalProgram for a kernel that is launched early and does not
        wait for the one before it.
        """
        function = at_extents(parse(self.ttir, f"{self.name}.ttir"), self.extents)
        if self.early:
            check_wait(function)
        return function


class KernelRecord(Record):
    """What was checked on one kernel; `maxima` says how maxima and minima were compared at full extents."""

    name: str
    ttir_sha256: str
    grid: tuple[int, int, int]
    instances: int
    addressed: int
    evaluated: int
    maxima: Maxima


class Drawn(NamedTuple):
    """By kernel, how many blocks of TTIR and of PTX ran, how many the latter prove, and the maxima of both."""

    instances: list[int]
    blocks: list[int]
    proved: list[int]
    maxima: list[Maxima]


class ArtifactRecord(Record):
    """States that the TTIR of every kernel computes what its node in the lowered program says.

    `formal` says whether the kernels, compiled at reduced extents, were also run with exponentials kept
    formal. `ptx` is the record of the target's PTX, which is checked after the TTIR.
    """

    version: Literal[1] = 1
    seed: Annotated[int, Field(ge=0, lt=1 << 63)]
    kernels: list[KernelRecord]
    formal: bool
    end_to_end: bool
    notes: list[str]
    ptx: PtxRecord | None = None

    @property
    def drawn(self) -> Drawn:
        """What depends on the blocks that are drawn."""
        blocks = self.ptx.kernels if self.ptx else []
        return Drawn(
            [k.evaluated for k in self.kernels],
            [k.evaluated for k in blocks],
            [k.addressed for k in blocks],
            [k.maxima for k in (*self.kernels, *blocks)],
        )

    @property
    def ptx_verified(self) -> bool:
        """Whether the PTX of every kernel was verified, too."""
        return self.ptx is not None and self.ptx.verified

    @property
    def summary(self) -> str:
        """A summary in one line."""
        count = sum(k.instances for k in self.kernels)
        values = sum(k.evaluated for k in self.kernels)
        how = "exponentials formal" if self.formal else "exponentials as powers of a random root"
        how += said_of(k.maxima for k in self.kernels)
        against = "against the program" if self.end_to_end else "against the lowered program"
        done = f"addresses of {count} instances, values of {values} {against}, {how}"
        ptx = f"; {self.ptx.summary}" if self.ptx else ""
        return f"TTIR of {counted(len(self.kernels), 'kernel')}: {done}{ptx}"


Compile = Callable[[KernelGraph], Sequence[KernelText]]


def verify_ttir(
    original: KernelGraph,
    lowered: KernelGraph,
    kernels: Sequence[KernelText],
    *,
    seed: int = 0,
    compile_again: Compile | None = None,
    full_work: int = FULL_WORK,
    ran: Ran | None = None,
) -> ArtifactRecord:
    """Check the TTIR of `kernels`, one for each `tiled` node of `lowered` in order, as the module describes.

    `ran` gets instances that the check of the PTX may need, of kernels that are checked by themselves.
    Raises NotEquivalent where a kernel computes something else, IllegalProgram where one accesses memory
    illegally, UnsupportedProgram for TTIR that cannot be verified, BadInput for text that is not TTIR.
    """
    nodes = [n for n in lowered.nodes if isinstance(n.body, TileProgram)]
    if len(nodes) != len(kernels):
        raise NotEquivalent(f"expected {len(nodes)} kernels, got {len(kernels)}")
    for node, kernel in zip(nodes, kernels, strict=True):
        _interface(node, kernel)
    first = firsts(nodes, kernels)
    functions = {k: k.function() for k in dict.fromkeys(kernels)}
    programs = {n: (functions[k], k) for n, k in zip(nodes, kernels, strict=True)}
    stored: dict[Node, list[Buffer]] = {}
    for n, (f, k) in programs.items():
        stored[n] = stored[first[n]] if first[n] in stored else _addresses(f, n, k)
    # Numbers come last: by then all addresses are known to be legal, and which instance stores what.
    whole = sum(math.prod(k.grid) * instance_work(f, k.grid) for f, k in programs.values()) <= full_work
    whole = whole and all(_fits(g, full_work, OF_PROGRAMS * full_work) for g in (original, lowered))
    evaluated = {n: math.prod(k.grid) for n, (_, k) in programs.items()}
    maxima: dict[Node, Maxima] = {}
    below = sorted(ran.below) if ran is not None else []
    primes = drawn(canonical_text(original), canonical_text(lowered), *(k.ttir for k in kernels), *below)
    formal, notes = whole and work(lowered) <= FORMAL_WORK, list[str]()
    end_to_end = whole
    if whole:
        end_to_end, how = _values(original, lowered, programs, seed, primes, formal=formal)
        maxima = dict.fromkeys(programs, how)
    else:
        limit = min(full_work, KERNEL_WORK)
        for n, (f, k) in programs.items():
            if first[n] is n:
                evaluated[n], maxima[n], found = _alone(
                    n, f, k, stored[n], (seed, primes), limit, keep=ran is not None
                )
                if ran is not None and found is not None:
                    ran.kernels[n, k] = found
            else:
                evaluated[n], maxima[n] = evaluated[first[n]], maxima[first[n]]
    texts = {n: (f, k.grid, k.arguments) for n, (f, k) in programs.items()}
    if reason := check_floats(lowered, texts, stored, first, seed):
        notes.append(reason)
    if not formal and compile_again is not None:
        pair = reduce_extents(original, lowered)
        if pair is not None:
            again = compile_again(pair[1])
            smaller = [n for n in pair[1].nodes if isinstance(n.body, TileProgram)]
            parsed = [k.function() for k in again]
            table = dict(zip(smaller, zip(parsed, again, strict=True), strict=True))
            _values(None, pair[1], table, seed, primes, formal=True)
            formal = True
            notes.append("the formal test was of the kernels compiled at reduced extents")
    records = [
        KernelRecord(
            name=k.name,
            ttir_sha256=hashlib.sha256(k.ttir.encode()).hexdigest(),
            grid=k.grid,
            instances=math.prod(k.grid),
            addressed=math.prod(k.grid),
            evaluated=evaluated[n],
            maxima=maxima[n],
        )
        for n, k in zip(nodes, kernels, strict=True)
    ]
    return ArtifactRecord(seed=seed, kernels=records, formal=formal, end_to_end=end_to_end, notes=notes)


def firsts(nodes: Sequence[Node], kernels: Sequence[Hashable]) -> dict[Node, Node]:
    """For each node the first that computes the same by the same kernel, as those of equal layers do.

    What is found for that one, by itself, holds for the others.
    """
    known: dict[tuple[str, Hashable], Node] = {}
    texts = ((canonical_text(graph_of(node)), kernel) for node, kernel in zip(nodes, kernels, strict=True))
    return {node: known.setdefault(text, node) for node, text in zip(nodes, texts, strict=True)}


def _interface(node: Node, kernel: KernelText) -> None:
    assert isinstance(node.body, TileProgram)
    wanted = [(b.type.elements, b.type.dtype) for b in node.body.arguments]
    got = [(size, dtype) for _, size, dtype in kernel.arguments[: len(wanted)]]
    if wanted != got:
        raise NotEquivalent(f"kernel '{kernel.name}': expected arguments {wanted}, got {got}")
    if any(g < 1 for g in kernel.grid) or math.prod(kernel.grid) > 1 << 31:
        raise IllegalProgram(f"kernel '{kernel.name}': expected a grid, got {kernel.grid}")


def _addresses(function: Function, node: Node, kernel: KernelText) -> list[Buffer]:
    """Run all instances without numbers; every output must be stored whole. Returns the outputs' memory."""
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
    return stored


def _fits(graph: KernelGraph, most_elements: int, most_work: int) -> bool:
    """Whether a program can be evaluated over a field with so many elements and operations."""
    return elements(graph) <= most_elements and work(graph) <= most_work


def _affordable(kernel: KernelText, graph: KernelGraph) -> None:
    if not _fits(graph, MOST_ELEMENTS, MOST_WORK):
        raise UnsupportedProgram(
            f"kernel '{kernel.name}': expected a program that it can be compared with, of at most "
            f"{MOST_ELEMENTS:,} elements and {MOST_WORK:,} operations, got {elements(graph):,} and "
            f"{work(graph):,}"
        )


_Programs = Mapping[Node, tuple[Function, KernelText]]


# --- all instances ----------------------------------------------------------------------------------------


def _values(
    original: KernelGraph | None,
    lowered: KernelGraph,
    programs: _Programs,
    seed: int,
    primes: Primes,
    *,
    formal: bool,
) -> tuple[bool, Maxima]:
    """Run all instances of all kernels; compare with `original`, or else with each node alone.

    False where the kernels compute `lowered`, and this field does not show that it equals `original`; and how
    maxima were compared.
    """
    found: list[bool] = []
    maxima = at_some_point(
        formal, seed, primes, lambda domain: found.append(_at_point(original, lowered, programs, domain))
    )
    return found[-1], maxima


def _at_point(
    original: KernelGraph | None, lowered: KernelGraph, programs: _Programs, domain: Extended
) -> bool:
    """Whether the kernels are seen to compute `original`; else they compute `lowered`, which equals it."""
    inputs = random_inputs(lowered, domain)
    env: dict[Value, Tensor] = dict(zip(lowered.inputs, inputs, strict=True))
    for node in lowered.nodes:
        operands = [env[v] for v in node.operands]
        results: list[Tensor] = []
        # The reference is the node alone, so that a difference is found at the kernel that causes it.
        if node not in programs or original is None:
            alone = KernelGraph("node", list(dict.fromkeys(node.operands)), [node], list(node.results))
            results = evaluate(alone, [env[v] for v in alone.inputs], domain)
        if node in programs:
            function, kernel = programs[node]
            buffers, found = launch_buffers(node, kernel.arguments, [flat(t, domain) for t in operands])
            launch(function, kernel.grid, buffers, domain)
            if original is None:
                _compare(kernel, found, node, results, domain)
            else:
                results = [
                    domain.move(lambda x, s=v.shape: x.reshape(s), _contents(b, kernel))
                    for b, v in zip(found, node.results, strict=True)
                ]
        env.update(zip(node.results, results, strict=True))
    if original is None:
        return True
    place = _difference(original, lowered, env, inputs, domain)
    if place is None:
        return True
    # The field lacks the identities of real numbers (`superopt.verify.reals`), which the certifier has.
    if _difference(lowered, lowered, env, inputs, domain) or not certify(original, lowered).equivalent:
        raise NotEquivalent(f"expected the kernels to compute the program, got another {place}")
    return False


def _difference(
    program: KernelGraph,
    lowered: KernelGraph,
    env: dict[Value, Tensor],
    inputs: Sequence[Tensor],
    domain: Extended,
) -> str | None:
    """The first element of an output that the program computes differently."""
    for i, (value, wanted) in enumerate(zip(lowered.outputs, evaluate(program, inputs, domain), strict=True)):
        if (different := domain.differs(wanted, env[value])).any():
            return f"output {i} at {[int(n) for n in np.argwhere(different)[0]]}"
    return None


def random_inputs(graph: KernelGraph, domain: Extended) -> list[Tensor]:
    """A random point for the inputs of a graph."""
    wanted = feeds_exponential(graph)
    return [
        domain.field.random(i, v.shape, exponent=e)
        for i, (v, e) in enumerate(zip(graph.inputs, wanted, strict=True))
    ]


def graph_of(node: Node) -> KernelGraph:
    """The node of a tile program alone, with the bands that it does not load."""
    assert isinstance(node.body, TileProgram)
    made = {
        value: computed_node(value, buffer.computed)
        for value, buffer in zip(node.operands, node.body.params, strict=False)
        if buffer.computed is not None
    }
    inputs = [v for v in dict.fromkeys(node.operands) if v not in made]
    return KernelGraph("node", inputs, [*made.values(), node], list(node.results))


def flat_operands(node: Node, domain: Extended) -> list[Tensor]:
    """The operands of `graph_of` a node at `random_inputs`, flat; large ones are drawn where they are read."""
    graph = graph_of(node)
    (*made, _), wanted = graph.nodes, feeds_exponential(graph)
    env = {
        v: drawn_input(domain.field, i, v.shape, exponent=e)
        for i, (v, e) in enumerate(zip(graph.inputs, wanted, strict=True))
    }
    bands = list(dict.fromkeys(v for v in node.operands if v not in env))
    found = evaluate(KernelGraph("operands", [], made, bands), [], domain) if bands else []
    env.update(zip(bands, (flat(t, domain) for t in found), strict=True))
    return [env[v] for v in node.operands]


def _shaped(tensor: Tensor, shape: Shape, domain: Domain) -> Tensor:
    """A flat tensor in its shape."""
    return domain.move(lambda x: x.reshape(*shape), tensor)


def _contents(buffer: Buffer, kernel: KernelText) -> Tensor:
    if buffer.contents is None:
        raise NotEquivalent(f"kernel '{kernel.name}': expected stores to '{buffer.name}', got none")
    return buffer.contents


def _compare(
    kernel: KernelText,
    stored: Sequence[Buffer],
    node: Node,
    expected: Sequence[Tensor],
    domain: Extended,
    places: Sequence[Array] | None = None,
) -> None:
    """Raise NotEquivalent where what was stored differs from what is expected, at given flat places or all."""
    for i, (buffer, value) in enumerate(zip(stored, node.results, strict=True)):
        at = np.arange(value.type.elements) if places is None else places[i]
        wanted = domain.move(lambda x, at=at: x.reshape(-1)[at], expected[i])
        got = domain.move(lambda x, at=at: x[at], _contents(buffer, kernel))
        different = domain.differs(wanted, got)
        if different.any():
            position = _position(int(at[np.argmax(different)]), value.shape)
            raise NotEquivalent(
                f"kernel '{kernel.name}': expected '{buffer.name}' as the lowered program computes it, "
                f"got another value at {position}"
            )


# --- one kernel by itself, and some of its instances --------------------------------------------------------


def _alone(
    node: Node,
    function: Function,
    kernel: KernelText,
    stored: Sequence[Buffer],
    point: tuple[int, Primes],
    limit: int,
    *,
    keep: bool,
) -> tuple[int, Maxima, Evaluated | None]:
    """Compare instances of a kernel with its node, on its own operands; returns how many, and how maxima were.

    `stored` says which instance stores what. What instances stored that the check of the PTX may need comes too
    if it is to be kept.
    """
    count = math.prod(kernel.grid)
    fit = max(FEWEST_SAMPLED, limit // max(1, instance_work(function, kernel.grid)))
    seed, primes = point
    chosen_by = random.Random(f"{seed} {kernel.name}")
    body = node.body
    assert isinstance(body, TileProgram)
    parts = [some_blocks(body, chosen) for chosen in (None, chosen_by)] if fit < count else []
    run: set[int] = set()
    known: Evaluated | None = None

    def test(domain: Extended) -> None:
        nonlocal known
        run.clear()
        operands = flat_operands(node, domain)
        kept: dict[int, Stores] = {}

        def launched(instances: Sequence[int]) -> list[Buffer]:
            nonlocal known
            buffers, results = launch_buffers(node, kernel.arguments, operands)
            launch(function, kernel.grid, buffers, domain, instances)
            if keep:
                one = random.Random(f"{seed} {kernel.name} ptx").choice(instances)
                kept.update(
                    (b, stores_of(b, buffers)) for b in {one, *blocks_of(kernel, seed)} & {*instances}
                )
                known = Evaluated(
                    domain.field.seed, primes, domain.field.lattice, domain.field.seen, kept, one
                )
            return results

        def whole(instances: Sequence[int]) -> None:
            graph = graph_of(node)
            _affordable(kernel, graph)
            found = launched(instances)
            results = evaluate(graph, random_inputs(graph, domain), domain)
            _compare(kernel, found, node, results, domain, [np.flatnonzero(b.stored) for b in found])
            run.update(instances)

        for part in parts:
            if part is None:
                continue
            _affordable(kernel, KernelGraph("blocks", [], [replace(node, body=part)], []))
            shaped = [_shaped(t, v.shape, domain) for t, v in zip(operands, node.operands, strict=True)]
            written = evaluate_written(part, shaped, domain)
            places = [np.flatnonzero(mask) for _, mask in written]
            instances = instances_of(stored, places)
            found = launched(instances)
            if any(np.count_nonzero(b.stored) != len(at) for b, at in zip(found, places, strict=True)):
                whole(instances)  # not blocks of the node: they store other elements, too
            _compare(kernel, found, node, [t for t, _ in written], domain, places)
            run.update(instances)
        if not run:
            # Offsets and tails go wrong in the first and the last instance.
            whole(sorted({0, count - 1, *chosen_by.sample(range(count), min(fit, count))}))

    maxima = at_some_point(False, (seed, kernel.name), primes, test)
    return len(run), maxima, known


def flat(tensor: Tensor, domain: Domain) -> Tensor:
    """Its elements in order."""
    return domain.move(lambda x: np.ascontiguousarray(x).reshape(-1), tensor)


def _position(flat: int, shape: tuple[int, ...]) -> list[int]:
    """The indices of element number `flat` of a tensor."""
    indices: list[int] = []
    for extent in reversed(shape):
        flat, index = divmod(flat, extent)
        indices.append(index)
    return indices[::-1]
