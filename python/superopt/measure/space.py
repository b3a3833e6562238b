"""The parameter points of a lowered program: tile sizes, warps, stages; compiled, filtered, ranked, proved.

    tiles, split as `superopt.transforms.schedule.tilings` finds them
    warps        as many as the largest tile occupies with at least one element a thread
    stages       as many as keep what a trip loads within shared memory
    hints        whether loads say which tiles are read again
    descriptors  whether the copy engine fetches the tiles of loops, where the target has one that can
    separate     whether what products and other operators use is loaded once for each

What the compiler reports removes points (shared memory beyond the target's, spilled registers); the model
ranks the rest; the verifier has the last word: a point that is not proved equal to the program is dropped.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt import cost
from superopt.cost import Target
from superopt.cost.features import program_features
from superopt.errors import IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.operators import OPERATORS, is_contraction, normalize_attrs
from superopt.program import Compute, KernelGraph, TileProgram, executions, within_loops
from superopt.transforms.emit.compile import CompilationFailed, Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.schedule.choose_launch import LAUNCH, launched, other_launches
from superopt.transforms.schedule.tilings import Tilings, with_nodes
from superopt.verify import certify
from superopt.verify.ttir import verify_compiled


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


class Space(Tilings):
    """The points of one lowered candidate; `funnel` counts what fell out, by reason."""

    def __init__(self, original: KernelGraph, lowered: KernelGraph, target: Target) -> None:
        super().__init__(lowered, target)
        self.original = original
        self._proofs: dict[str, dict[str, Any] | None] = {}
        self._artifacts: dict[tuple[str, ...], str] = {}

    # --- enumeration -----------------------------------------------------------------------------------------

    def at(self, parameters: Mapping[str, int]) -> KernelGraph | None:
        """The program with these parameters, named as `points` names them; None if they do not exist."""
        launch = {name: value for name, value in parameters.items() if name in LAUNCH}
        graph = super().at({name: value for name, value in parameters.items() if name not in LAUNCH})
        if graph is None or not launch:
            return graph
        return next((g for p, g in self.launches(graph) if launch.items() <= p.items()), None)

    def launches(self, graph: KernelGraph) -> Iterator[tuple[dict[str, int], KernelGraph]]:
        """The default launch of every kernel first, then other warps and stages of the slowest kernel."""
        bodies = {i: n.body for i, n in enumerate(graph.nodes) if isinstance(n.body, TileProgram)}
        slowest = max(bodies, key=lambda i: cost.kernel_cost(graph.nodes[i], self.target).seconds)
        body = bodies[slowest]
        for launch in other_launches(body, self.target):
            nodes = list(graph.nodes)
            nodes[slowest] = dataclasses.replace(nodes[slowest], body=launched(body, launch))
            yield dict(zip(LAUNCH, map(int, launch), strict=True)), with_nodes(graph, nodes)

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
            launch, first = next(self.launches(graph))
            if known == {**parameters, **launch}:
                continue
            if (point := self._point({**parameters, **launch}, first, model)) is not None:
                made.append(point)
                tilings.append((parameters, graph))
        turns = [(p, itertools.islice(self.launches(g), 1, None)) for p, g in tilings]
        while turns and len(made) < count and time.monotonic() < end:
            parameters, rest = turns.pop(0)
            if (found := next(rest, None)) is None:
                continue
            turns.append((parameters, rest))
            launch, other = found
            if (point := self._point({**parameters, **launch}, other, model)) is not None:
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
    for node in graph.nodes:
        if not isinstance(node.body, TileProgram):
            continue
        for s, around in within_loops(node.body.body):
            if isinstance(s, Compute) and is_contraction(s) and s.operands[0].dtype != "f32":
                entry = OPERATORS[s.op]
                flops = entry.flops([v.shape for v in s.operands], normalize_attrs(entry, s.attrs))
                total += executions(around) * flops
    return total
