"""The numeric check of a lowered program: computed in fp32 and its own dtypes, against fp64.

Nothing runs on a GPU and nothing needs torch: the evaluator of `superopt.verify` runs the tile programs block
by block and trip by trip, in the order of their loops, with fp32 arithmetic and a rounding wherever they
store to device memory or feed a matrix product. What it cannot see is the order of the sums inside one tile,
and the approximations of a GPU's exp and sqrt; a bundle's `run.py` checks the kernels themselves.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from superopt.errors import UnsupportedProgram
from superopt.numerics.checking import (
    DISTRIBUTIONS,
    Comparison,
    Input,
    compare,
    compared,
    drawn,
    table,
)
from superopt.numerics.externs import Player, Recorder
from superopt.numerics.rounding import RoundingModel
from superopt.operators import OPERATORS, is_contraction, nest_of, normalize_attrs
from superopt.program import BlockGraph, KernelGraph, Node, NodeKind, ThreadGraph, Value, is_conversion
from superopt.verify.domains import Array, FloatDomain, round_to
from superopt.verify.evaluate import evaluate
from superopt.verify.hashing import canonical_text, program_hash
from superopt.verify.pieces import CUT_WORK, Piece, cut, finest_first
from superopt.verify.primes import drawn as primes_of
from superopt.verify.reduce import fewer_blocks, fewer_trips, ways_to_reduce, work

INTEGERS_SCALE = 100.0  # of integers that only become numbers
# Beyond this many scalar operations of one evaluation, loops are shortened, except on these inputs; and to what.
WHOLE_WORK = 150_000_000
WHOLE = "ordinary"
TRIPS = (32, 16, 8, 4)
# Beyond this many, programs are compared piece by piece, each once: networks of equal layers.
PIECES_WORK = 8_000_000_000
# Beyond this many, a program with opaque operations, which cannot be shortened, is not tried.
OPAQUE_WORK = 2_000_000_000


@dataclass(frozen=True)
class NumericsReport:
    """What the gate found: one comparison per output and distribution.

    `blocks` says how many blocks of each kernel were computed, and where sums were shorter than they are.
    `nonce` repeats the run, of the same programs (`gate`).
    `skipped` is the reason where nothing was tried (a program with opaque operations that is too large), which
    counts as passed: such a program's kernels are still checked by `superopt-run`.
    """

    rows: tuple[Comparison, ...]
    nonce: str
    skipped: str = ""
    blocks: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every output was compared on every distribution, and none leaves its tolerance."""
        return all(row.passed for row in self.rows)

    @property
    def summary(self) -> str:
        """One line: the worst comparison, and on how many elements each distribution was compared."""
        if self.skipped:
            return f"not checked: {self.skipped}"
        if not self.rows:
            return "no outputs"
        worst = max(self.rows, key=lambda r: r.ratio if r.compared else math.inf)
        counts: Counter[str] = Counter()
        for row in self.rows:
            counts[row.distribution] += row.compared
        on = ", ".join(f"{name} ({count})" for name, count in counts.items())
        if not worst.compared:
            said = f"nothing compared: '{worst.output}' is nowhere finite on '{worst.distribution}' inputs"
        else:
            verdict = "within tolerance" if self.passed else "out of tolerance"
            share = f"{worst.ratio:.2f} of it" if math.isfinite(worst.ratio) else "not finite"
            said = f"{verdict}: error {worst.error:.2e} ({share}) at worst, on '{worst.distribution}' inputs"
        return f"{said}; elements compared: {on}; {self.blocks}; nonce {self.nonce}"

    def __str__(self) -> str:
        return table(self.rows) if self.rows else self.summary


def gate(
    original: KernelGraph,
    lowered: KernelGraph,
    *,
    nonce: str | None = None,
    distributions: Sequence[str] = tuple(DISTRIBUTIONS),
    rounded: bool = True,
    most_work: float = math.inf,
) -> NumericsReport:
    """Compare `lowered`, computed as its kernels will (where not `rounded`: in fp64), with `original` in fp64.

    Inputs are drawn by the hash of both programs and `nonce`, which is drawn where it is not given, so that
    nobody who wrote a program knows them; the report holds it. The tolerance is that of `numerics.checking`.
    Grids are cut down to two blocks along each dimension where both programs allow it; the work of a block is
    not. Where that is still more than WHOLE_WORK, sums are whole on `WHOLE` inputs, and loops have fewer trips on
    the others, 4 at least. Programs of more than PIECES_WORK are cut at values that both compute, and their
    pieces compared, on inputs drawn for each; where one does not pass, the whole decides. What is given to an
    opaque operation is compared as outputs are (`superopt.numerics.externs`). What is then still more than
    `most_work` is not compared.
    """
    start = time.perf_counter()
    nonce = nonce or secrets.token_hex(8)
    text = f"{program_hash(original)} {program_hash(lowered)} {nonce}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    opaque = any(node.op == NodeKind.EXTERN and not is_conversion(node) for node in original.nodes)
    if opaque and max(map(work, (original, lowered))) > OPAQUE_WORK:
        return NumericsReport((), nonce, "it has opaque operations, and is too large")
    specs = input_specs(original)
    # An opaque operation is one of its own shapes, unless it converts each element alone.
    pair = (original, lowered)
    whole, short, blocks = (pair, pair, "all blocks") if opaque else _affordable(original, lowered)
    if max(map(work, short)) > most_work:
        return NumericsReport((), nonce, "it is too large")
    if not opaque and max(map(work, whole)) > PIECES_WORK:
        found = _in_pieces(original, lowered, nonce, distributions, rounded=rounded)
        if found and found.passed:
            return replace(found, seconds=time.perf_counter() - start)
    outputs = [v.name or f"out{i}" for i, v in enumerate(original.outputs)]

    def tried(name: str) -> list[Comparison]:
        first, second = whole if name == WHOLE else short
        shaped = tuple(replace(s, shape=v.shape) for s, v in zip(specs, first.inputs, strict=True))

        def judge(made: list[Array]) -> list[Comparison]:
            inputs = [round_to(x, s.dtype) for x, s in zip(made, shaped, strict=True)]
            recorder = Recorder(first, name, seed)
            reference = run(first, inputs, FloatDomain(extern=recorder))
            if not recorder.order and not any(np.isfinite(x).any() for x in reference):
                # Nothing is compared, whatever the candidate gives.
                same = zip(outputs, original.outputs, reference, strict=True)
                return [compare(name, output, v.dtype, x, x, x) for output, v, x in same if x.size]
            player = Player(recorder)
            found = run(second, inputs, FloatDomain(faithful=rounded, extern=player))
            named = [(output, v.dtype) for output, v in zip(outputs, original.outputs, strict=True)]
            # What opaque operations are given is compared, too.
            for call in recorder.order:
                target = call.node.attrs.get("target")
                named += [(f"operand {i} of {target}", v.dtype) for i, v in enumerate(call.node.operands)]
                reference += call.operands
                found += player.operands(call)

            def model(draw: int) -> list[Array]:
                known = Player(recorder)
                arrays = run(first, inputs, RoundingModel(draw=draw, extern=known))
                return [*arrays, *(x for call in recorder.order for x in known.operands(call))]

            def against(models: Sequence[Array]) -> list[Comparison]:
                return [
                    compare(name, output, dtype, *arrays)
                    for (output, dtype), *arrays in zip(named, found, reference, models, strict=True)
                    if arrays[0].size
                ]

            return drawn(against, reference, model)

        return compared(shaped, name, seed, judge)

    try:
        # Tiles are small: threads of the BLAS would mostly wait for each other.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            rows = [row for found in pool.map(tried, distributions) for row in found]
    except UnsupportedProgram as error:
        return NumericsReport((), nonce, error.message, seconds=time.perf_counter() - start)
    return NumericsReport(tuple(rows), nonce, blocks=blocks, seconds=time.perf_counter() - start)


def _in_pieces(
    original: KernelGraph, lowered: KernelGraph, nonce: str, distributions: Sequence[str], *, rounded: bool
) -> NumericsReport | None:
    """The comparisons of all pieces; None where the programs have none.

    What a program stores between pieces is rounded there in both, so their errors add up as the original's do.
    """
    primes = primes_of(*map(canonical_text, (original, lowered)))
    cuts: list[list[Piece] | None] = []
    for _, pair in ways_to_reduce(original, lowered, CUT_WORK):
        with suppress(ZeroDivisionError):
            cuts.append(cut(original, lowered, pair, nonce, primes, rounded=True))
    pieces, *_ = [*finest_first(cuts), []]
    if not pieces:
        return None
    rows: list[Comparison] = []
    for number, piece in enumerate(pieces):
        found = gate(piece.first, piece.second, nonce=nonce, distributions=distributions, rounded=rounded)
        rows += [replace(row, output=f"{row.output} of piece {number}") for row in found.rows]
        if found.skipped or not found.passed:
            return None
    return NumericsReport(tuple(rows), nonce, blocks=f"{len(pieces)} pieces, one by one")


_Pair: TypeAlias = tuple[KernelGraph, KernelGraph]


def _affordable(original: KernelGraph, lowered: KernelGraph) -> tuple[_Pair, _Pair, str]:
    """What is computed: with sums as long as they are, with shorter ones, and a text that says so."""
    whole, blocks = (original, lowered), "all blocks"
    if (fewer := fewer_blocks(original, lowered)) is not None:
        # Blocks do the same on other data; sums, loops and tiles are as long as ever.
        whole, blocks = (fewer[0], fewer[1]), "two blocks along each dimension of the grids"
    most = max(map(work, whole))
    if most > WHOLE_WORK:
        for trips in TRIPS:
            shorter = fewer_trips(original, lowered, trips=trips)
            left = max(map(work, shorter)) if shorter else most
            if shorter and (left <= WHOLE_WORK or (trips == TRIPS[-1] and 2 * left <= most)):
                blocks += f"; sums whole on '{WHOLE}' inputs, at most {trips} trips of a loop on others"
                return whole, (shorter[0], shorter[1]), blocks
    return whole, whole, blocks


def run(graph: KernelGraph, inputs: Sequence[Array], domain: FloatDomain) -> list[Array]:
    """The outputs of `graph`; `inputs` are numbers of its inputs' dtypes."""
    tensors = [domain.tensor(x, v.dtype) for x, v in zip(inputs, graph.inputs, strict=True)]
    return [t.planes[0] for t in evaluate(graph, tensors, domain)]


def input_specs(graph: KernelGraph) -> list[Input]:
    """How to draw the inputs: right operands of products are weights, scaled by their contracted extent."""
    depths: dict[Value, int] = {}
    uses: Counter[Value] = Counter()
    for node in graph.nodes:
        _weights(node, dict(zip(node.operands, node.operands, strict=True)), depths)
        uses.update(node.operands)
    names = [v.name or f"arg{i}" for i, v in enumerate(graph.inputs)]
    indices = {v for node in graph.nodes if node.op == NodeKind.EXTERN for v in node.operands}

    def scale(v: Value) -> float:
        if v.dtype in ("i16", "i32", "i64"):
            return 1.0 if v in indices else INTEGERS_SCALE
        return 1.0 if v not in depths else depths[v] ** -0.5

    return [Input(n, v.shape, v.dtype, scale(v)) for n, v in zip(names, graph.inputs, strict=True)]


def _weights(node: Node, outer: dict[Value, Value], depths: dict[Value, int]) -> None:
    """Note the contracted extent of every value that `node`, or a node in its region, multiplies from the
    right."""
    if isinstance(node.body, BlockGraph | ThreadGraph):
        inner = dict(zip(node.body.inputs, (outer.get(v, v) for v in node.operands), strict=True))
        for below in node.body.nodes:
            if below.op == NodeKind.ITERATOR:
                inner[below.result] = inner[below.operands[0]]
            _weights(below, inner, depths)
    elif is_contraction(node):
        entry = OPERATORS[node.op]
        assert entry.nest is not None
        right = outer.get(node.operands[1], node.operands[1])
        transposed = normalize_attrs(entry, node.attrs)["transpose_b"]
        shape = right.shape
        depths[right] = max(depths.get(right, 1), shape[-1] if transposed else shape[-2])
    elif (entry := OPERATORS.get(node.op)) and entry.windowed and len(node.operands) == 2:
        nest, right = nest_of(node), outer.get(node.operands[1], node.operands[1])
        assert nest is not None
        depths[right] = max(depths.get(right, 1), nest.reduced)
