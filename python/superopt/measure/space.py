"""The parameter points of a lowered program: tile sizes, warps, stages; compiled, filtered, ranked, proved.

    tile sizes   from the loops and windows of each tile program (`retile.py`)
    warps        as many as the largest tile occupies with at least one element a thread
    stages       as many as keep what a trip loads within shared memory
    hints        whether loads say which tiles are read again
    descriptors  whether the copy engine fetches the tiles of loops, where the target has one that can
    split        how many blocks share a reduction whose parts a later kernel joins (`splits.py`)

What the compiler reports removes points (shared memory beyond the target's, spilled registers); the model
ranks the rest; the verifier has the last word: a point that is not proved equal to the program is no point.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt import cost
from superopt.cost import Target
from superopt.cost.features import program_features
from superopt.errors import IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.measure.retile import CannotRetile, Tiling
from superopt.measure.splits import Splits
from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import Compute, KernelGraph, Load, Loop, Node, Statement, TileProgram
from superopt.spec import check_kernel
from superopt.transforms.emit.compile import CompilationFailed, Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.emit.triton_source import emit_kernel
from superopt.transforms.lower.shape import choose_launch, power_of_two, streamed_bytes
from superopt.verify import certify
from superopt.verify.ttir import verify_compiled

# Parameters of a launch; the others are tile extents.
LAUNCH = ("warps", "stages", "hints", "descriptors")
THREADS = 32  # of a warp
MOST_WARPS = 16
MOST_STAGES = 6
# Tilings of one kernel that are kept for combination with those of the others.
_KEPT = 48


@dataclass(frozen=True)
class Point:
    """One finished program: its parameters by name, its kernels, what is predicted and how it was proved."""

    parameters: dict[str, int]
    lowered: KernelGraph
    emitted: EmittedProgram
    compiled: tuple[Compiled, ...]
    features: dict[str, float]
    predicted_seconds: float
    matrix_flops: float
    known: bool = False
    proof: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class _Choice:
    """Tile extents of one kernel, and what they are predicted to take."""

    seconds: float
    order: float  # among equals, how far it is from the tiles as they were
    extents: tuple[tuple[str, int], ...]
    program: TileProgram


class Space:
    """The points of one lowered candidate; `funnel` counts what fell out, by reason."""

    def __init__(self, original: KernelGraph, lowered: KernelGraph, target: Target) -> None:
        self.original, self.lowered, self.target = original, lowered, target
        self.funnel: Counter[str] = Counter()
        self._proofs: dict[str, dict[str, Any] | None] = {}
        self._artifacts: dict[tuple[str, ...], str] = {}
        self._kernels = [i for i, n in enumerate(lowered.nodes) if isinstance(n.body, TileProgram)]
        self._variants = list(Splits(lowered).variants())

    # --- enumeration -----------------------------------------------------------------------------------------

    def tilings(self, only: Collection[int] | None = None) -> Iterator[tuple[dict[str, int], KernelGraph]]:
        """Programs with other splits and tile sizes, fastest predicted first; the parameters that say so.

        With `only`, kernels of other numbers keep their tiles.
        """
        streams = [self._tilings(parameters, graph, only) for parameters, graph in self._variants]
        for _, parameters, graph in heapq.merge(*streams, key=lambda found: found[0]):
            yield parameters, graph

    def _tilings(
        self, split: Mapping[str, int], graph: KernelGraph, only: Collection[int] | None
    ) -> Iterator[tuple[float, dict[str, int], KernelGraph]]:
        """Those of one variant, with their predicted seconds."""
        lists = [
            self._choices(graph, index, free=only is None or number in only)
            for number, index in enumerate(self._kernels)
        ]
        if not all(lists):
            return
        several = len(lists) > 1
        for chosen in _cheapest_sums(lists):
            nodes = list(graph.nodes)
            parameters = dict(split)
            for number, (index, choice) in enumerate(zip(self._kernels, chosen, strict=True)):
                nodes[index] = dataclasses.replace(nodes[index], body=choice.program)
                prefix = f"k{number}." if several else ""
                parameters |= {prefix + name: extent for name, extent in choice.extents}
            yield sum(c.seconds for c in chosen), parameters, _with_nodes(graph, nodes)

    def at(self, parameters: Mapping[str, int]) -> KernelGraph | None:
        """The program with these parameters, named as `points` names them; None where there are none such."""
        left = dict(parameters)
        splits = {name: left.pop(name) for name in self._variants[0][0] if name in left}
        variant = next((g for p, g in self._variants if p == {**self._variants[0][0], **splits}), None)
        if variant is None:
            return None
        nodes = list(variant.nodes)
        launch = {name: left.pop(name) for name in LAUNCH if name in left}
        try:
            for number, index in enumerate(self._kernels):
                body = nodes[index].body
                assert isinstance(body, TileProgram)
                prefix = f"k{number}." if len(self._kernels) > 1 else ""
                tiling = Tiling(body)
                extents = {n: left.pop(prefix + n) for n in tiling.parameters if prefix + n in left}
                moved = tiling.apply(extents)
                choose_launch(moved, self.target, None, None)
                nodes[index] = dataclasses.replace(nodes[index], body=moved)
            graph = _with_nodes(variant, nodes)
            check_kernel(graph)
        except (CannotRetile, IllegalProgram):
            return None
        if left:
            return None
        return next((g for p, g in self.launches(graph) if p == launch), None) if launch else graph

    def _choices(self, graph: KernelGraph, index: int, *, free: bool) -> list[_Choice]:
        """Tile extents of one kernel of a variant, fastest predicted first; where not `free`, those it has."""
        node = graph.nodes[index]
        assert isinstance(node.body, TileProgram)
        tiling = Tiling(node.body)
        names = list(tiling.parameters)
        operands = list(dict.fromkeys(node.operands))  # the other kernels stay as they are
        found: list[_Choice] = []
        now = [tiling.parameters[n].extent for n in names]
        choices = [tiling.parameters[n].choices() for n in names] if free else [[extent] for extent in now]
        for extents in itertools.product(*choices):
            self.funnel["tilings"] += 1
            try:
                program = tiling.apply(dict(zip(names, extents, strict=True)))
                moved = dataclasses.replace(node, body=program)
                check_kernel(KernelGraph("kernel", operands, [moved], list(node.results)))
            except (CannotRetile, IllegalProgram):
                self.funnel["rejected: extents that do not fit"] += 1
                continue
            if not self._holds(program):
                self.funnel["rejected: more than a block holds"] += 1
                continue
            choose_launch(program, self.target, None, None)
            seconds = cost.kernel_cost(moved, self.target).seconds
            if math.isfinite(seconds):
                order = sum(abs(math.log2(e / n)) for e, n in zip(extents, now, strict=True))
                found.append(_Choice(seconds, order, tuple(zip(names, extents, strict=True)), program))
        return sorted(found, key=lambda c: (c.seconds, c.order, c.extents))[:_KEPT]

    def _holds(self, program: TileProgram) -> bool:
        """Whether the tiles of one statement fit in what a block has on chip, in registers and shared memory."""
        most = self.target.shared_per_block + 4 * 65536
        return all(_tile_bytes(s) <= most for s in program.statements())

    def launches(self, graph: KernelGraph) -> Iterator[tuple[dict[str, int], KernelGraph]]:
        """The default launch of every kernel first, then other warps and stages of the slowest kernel."""
        bodies = {i: n.body for i, n in enumerate(graph.nodes) if isinstance(n.body, TileProgram)}
        slowest = max(bodies, key=lambda i: cost.kernel_cost(graph.nodes[i], self.target).seconds)
        body = bodies[slowest]
        default = (body.num_warps, body.num_stages)
        flags = _flags(body, self.target)
        pairs = itertools.product(warp_choices(body), stage_choices(body, self.target))
        near = sorted(pairs, key=lambda p: (abs(math.log2(p[0] / default[0])) + abs(p[1] - default[1]), p))
        for warps, stages in [default, *(p for p in near if p != default)]:
            nodes = list(graph.nodes)
            moved = dataclasses.replace(body, num_warps=warps, num_stages=stages)
            for hints, descriptors in flags:
                changed = dataclasses.replace(moved, cache_hints=hints, descriptors=descriptors)
                nodes[slowest] = dataclasses.replace(nodes[slowest], body=changed)
                parameters = (warps, stages, int(hints), int(descriptors))
                yield dict(zip(LAUNCH, parameters, strict=True)), _with_nodes(graph, list(nodes))

    # --- points ----------------------------------------------------------------------------------------------

    def points(
        self, count: int, seconds: float, model: cost.Model, known: Mapping[str, int] | None = None
    ) -> list[Point]:
        """At most `count` points within about `seconds`, ranked by `model`.

        Half of them are tilings with their default launch, the rest other launches of these. A point with the
        `known` best parameters comes first.
        """
        end = time.monotonic() + seconds
        made: list[Point] = []
        if known and (graph := self.at(known)) is not None:
            point = self._point(dict(known), graph, model)
            made += [dataclasses.replace(point, known=True)] if point is not None else []
        tilings: list[tuple[dict[str, int], KernelGraph]] = []
        wanted = max(count // 2, 1)
        for parameters, graph in self.tilings():
            if len(made) >= wanted or (made and time.monotonic() > end):
                break
            launch, launched = next(self.launches(graph))
            if known == {**parameters, **launch}:
                continue
            if (point := self._point({**parameters, **launch}, launched, model)) is not None:
                made.append(point)
                tilings.append((parameters, graph))
        turns = [(p, itertools.islice(self.launches(g), 1, None)) for p, g in tilings]
        while turns and len(made) < count and time.monotonic() < end:
            parameters, rest = turns.pop(0)
            if (found := next(rest, None)) is None:
                continue
            turns.append((parameters, rest))
            launch, launched = found
            if (point := self._point({**parameters, **launch}, launched, model)) is not None:
                made.append(point)
        return sorted(made, key=lambda p: (not p.known, p.predicted_seconds))

    def _point(self, parameters: dict[str, int], graph: KernelGraph, model: cost.Model) -> Point | None:
        self.funnel["points"] += 1
        try:
            emitted = emit_program(graph)
            compiled = tuple(compile_all(emitted.kernels, [self.target.name]))
        except (CompilationFailed, UnsupportedProgram):
            self.funnel["rejected: does not compile"] += 1
            return None
        if any(k.shared_bytes > self.target.shared_per_block for k in compiled):
            self.funnel["rejected: shared memory"] += 1
            return None
        if any(k.spill_bytes for k in compiled):
            self.funnel["rejected: spills"] += 1
            return None
        proof = self._proof(graph, emitted, compiled)
        if proof is None:
            self.funnel["rejected: not proved"] += 1
            return None
        self.funnel["proved"] += 1
        features = program_features(graph, compiled, self.target)
        return Point(
            parameters,
            graph,
            emitted,
            compiled,
            features,
            model.predict(features).seconds,
            matrix_flops(graph),
            proof=proof,
        )

    def _proof(
        self, graph: KernelGraph, emitted: EmittedProgram, compiled: Sequence[Compiled]
    ) -> dict[str, Any] | None:
        """Certificate of the tile programs against the program, and the check of their TTIR."""
        key = emitted.kernels_source
        if key not in self._proofs:
            self._proofs[key] = self._certified(graph)
        proof = self._proofs[key]
        if proof is None:
            return None
        texts = tuple(k.ttir for k in compiled)
        if texts not in self._artifacts:
            try:
                verify_compiled(self.original, graph, emitted, compiled)
                self._artifacts[texts] = "verified"
            except UnsupportedProgram as error:
                self._artifacts[texts] = f"unverified: {error.message}"
            except (NotEquivalent, IllegalProgram) as error:
                self._artifacts[texts] = ""
                self.funnel[f"TTIR: {error.message[:60]}"] += 1
        if not self._artifacts[texts]:
            return None
        return {**proof, "ttir": self._artifacts[texts]}

    def _certified(self, graph: KernelGraph) -> dict[str, Any] | None:
        try:
            verdict = certify(self.original, graph)
        except SuperoptError:
            return None
        if not verdict.equivalent or verdict.certificate is None:
            return None
        return {"guarantee": verdict.certificate.guarantee, "delta": verdict.certificate.delta}


def matrix_flops(graph: KernelGraph) -> float:
    """Flops of the matrix products of a lowered program, as its tiles are, without padding."""
    total = 0.0

    def visit(body: Sequence[Statement], times: int) -> None:
        nonlocal total
        for s in body:
            if isinstance(s, Loop):
                visit(s.body, times * -(-(s.stop - s.start) // s.step))
            elif isinstance(s, Compute) and s.op == "matmul" and s.operands[0].dtype != "f32":
                entry = OPERATORS[s.op]
                total += times * entry.flops([v.shape for v in s.operands], normalize_attrs(entry, s.attrs))

    for node in graph.nodes:
        if isinstance(node.body, TileProgram):
            visit(node.body.body, 1)
    return total


def _tile_bytes(statement: Statement) -> int:
    if not isinstance(statement, Load | Compute):
        return 0
    return 4 * math.prod(map(power_of_two, statement.result.shape))


def warp_choices(program: TileProgram) -> list[int]:
    """Powers of two up to what the largest tile has elements for."""
    largest = max((_tile_bytes(s) // 4 for s in program.statements()), default=1)
    out = [1]
    while out[-1] < MOST_WARPS and 2 * out[-1] * THREADS <= largest:
        out.append(2 * out[-1])
    return out


def stage_choices(program: TileProgram, target: Target) -> list[int]:
    """As many as keep what a trip loads within shared memory."""
    streamed = streamed_bytes(program.body)
    most = min(MOST_STAGES, target.shared_per_block // streamed) if streamed else 1
    return list(range(1, max(most, 1) + 1))


def _flags(program: TileProgram, target: Target) -> list[tuple[bool, bool]]:
    """The (cache hints, descriptors) that give different kernels, neither of them first."""
    found: dict[str, tuple[bool, bool]] = {}
    for descriptors in (False, True) if target.has_copy_engine else (False,):
        for hints in (False, True):
            changed = dataclasses.replace(program, cache_hints=hints, descriptors=descriptors)
            found.setdefault(emit_kernel(changed).source, (hints, descriptors))
    return list(found.values())


def _with_nodes(graph: KernelGraph, nodes: Sequence[Node]) -> KernelGraph:
    return KernelGraph(graph.name, graph.inputs, list(nodes), graph.outputs, graph.location, graph.aliases)


def _cheapest_sums(lists: Sequence[Sequence[_Choice]]) -> Iterator[tuple[_Choice, ...]]:
    """One of each list, by the sum of their seconds."""

    def at(index: tuple[int, ...]) -> tuple[_Choice, ...]:
        return tuple(choices[i] for choices, i in zip(lists, index, strict=True))

    first: tuple[int, ...] = (0,) * len(lists)
    heap: list[tuple[float, tuple[int, ...]]] = [(sum(c.seconds for c in at(first)), first)]
    seen: set[tuple[int, ...]] = {first}
    while heap:
        _, index = heapq.heappop(heap)
        yield at(index)
        for k in range(len(lists)):
            following = (*index[:k], index[k] + 1, *index[k + 1 :])
            if following not in seen and following[k] < len(lists[k]):
                seen.add(following)
                heapq.heappush(heap, (sum(c.seconds for c in at(following)), following))
