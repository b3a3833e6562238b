"""Random multilinear programs and corrupted ones: their difference regions against a full comparison.

    python test/relation/relation_campaign.py --sources=2000 --corrupted=10000 --seed=1 --json=FILE

Sources are convolutions, their transposes, pooling and products of 1 to 3 spatial dimensions, with strides, dilations,
groups, pads, and moves, sums and products around them. Candidates are what the rules of derivation make of them, and
those with a fault: other pads, strides, dilations or slices, a dropped term, a transposed or turned kernel, a wrong
pitch, another operand. `difference` must say exactly at which positions a candidate differs, or abstain.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent))

from about import about
from elementwise import differences

from superopt.errors import IllegalProgram
from superopt.operators import infer_type
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.derivation.rules import RULES
from superopt.verify.relation import Abstained, difference

Shape = tuple[int, ...]


class Writer:
    """A program under construction."""

    def __init__(self) -> None:
        self.graph = KernelGraph("f", [], [], [])

    def input(self, *shape: int) -> Value:
        """Another input."""
        self.graph.inputs.append(Value(TensorType(shape, "f32")))
        return self.graph.inputs[-1]

    def emit(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        """Another node; raises IllegalProgram."""
        result = Value(infer_type(op, [v.type for v in operands], attrs))
        self.graph.nodes.append(Node(op, operands, (result,), attrs))
        return result


# --- sources ----------------------------------------------------------------------------------------------


def source(rng: random.Random) -> KernelGraph:
    """A program; some operators on windows in a row, and what stands around them."""
    while True:
        try:
            w = Writer()
            rank = rng.choice([1, 1, 2, 2, 3])
            most = {1: 12, 2: 7, 3: 4}[rank]
            value = w.input(
                rng.randint(1, 2), rng.choice([1, 2, 3, 4]), *(rng.randint(2, most) for _ in range(rank))
            )
            for _ in range(rng.choice([1, 1, 1, 2])):
                value = _around(w, _windowed(w, value, rng), rng)
            w.graph.outputs.append(value)
        except IllegalProgram:
            continue
        if value.type.elements <= 3000:
            return w.graph


def _windowed(w: Writer, x: Value, rng: random.Random) -> Value:
    rank, channels = len(x.shape) - 2, x.shape[1]
    op = rng.choice(["conv", "conv", "conv", "conv_transpose", "pool_sum", "product", "band"])
    few = rng.random() < 0.5
    attrs: dict[str, Attr] = {
        "strides": tuple(rng.choice([1, 1, 2, 3]) for _ in range(rank)),
        "dilations": tuple(1 if few else rng.randint(1, 3) for _ in range(rank)),
        "low": tuple(rng.randint(0, 3) for _ in range(rank)),
        "high": tuple(rng.randint(0, 3) for _ in range(rank)),
    }
    sizes = tuple(rng.randint(1, 3) for _ in range(rank))
    if op == "pool_sum":
        return w.emit(op, x, **attrs, sizes=sizes)
    if op == "product":
        return w.emit("matmul", x, w.input(x.shape[-1], rng.randint(1, 4)))
    if op == "band":
        rows, columns = x.shape[-2:]
        lower = rng.randint(-rows, columns)
        band = w.emit("band", lower=lower, upper=lower + rng.randint(0, 4), inside=1.0,
                      outside=float(rng.choice([0, 0, 2])), shape=(rows, columns), dtype="f32")  # fmt: skip
        return w.emit("mul", x, band)
    groups = rng.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    columns = rng.randint(1, 3)
    if op == "conv":
        kernel = w.input(columns * groups, channels // groups, *sizes)
        return w.emit(op, x, kernel, **attrs, groups=groups)
    kernel = w.input(channels, columns, *sizes)
    return w.emit(op, x, kernel, **attrs, groups=groups, extra=tuple(rng.randint(0, 1) for _ in range(rank)))


def _around(w: Writer, y: Value, rng: random.Random) -> Value:
    """Perhaps a move, a sum or a product."""
    rank = len(y.shape)
    what = rng.choice(
        ["", "", "", "bias", "scale", "other", "itself", "transpose", "slice", "pad", "joined", "mean"]
    )
    if what == "bias":
        return w.emit("add", y, w.input(y.shape[1], *(1,) * (rank - 2)))
    if what == "scale":
        return w.emit("mul", y, w.input(y.shape[1], *(1,) * (rank - 2)))
    if what == "other":
        return w.emit(rng.choice(["add", "sub"]), y, w.input(*y.shape))
    if what == "itself":
        return w.emit("mul", y, y) if y.type.elements <= 60 else w.emit("add", y, y)
    if what == "transpose":
        d = rng.randrange(2, rank)
        return w.emit("transpose", y, perm=(*range(d), *range(d + 1, rank), d))
    if what == "slice":
        starts = [rng.randint(0, (e - 1) // 2) for e in y.shape]
        steps = [rng.randint(1, 2) for _ in y.shape]
        sizes = [(e - o - 1) // s + 1 for e, o, s in zip(y.shape, starts, steps, strict=True)]
        return w.emit("slice", y, offsets=tuple(starts), sizes=tuple(sizes), strides=tuple(steps))
    if what == "pad":
        low, high = (tuple(rng.randint(0, 2) if d > 1 else 0 for d in range(rank)) for _ in range(2))
        return w.emit("pad", y, low=low, high=high, value=float(rng.choice([0, 0, 1])))
    if what == "joined":
        return w.emit("concat", y, w.input(*y.shape), dim=rng.randrange(rank))
    if what == "mean":
        return w.emit(rng.choice(["reduce_mean", "reduce_sum"]), y, dims=(rank - 1,), keepdims=True)
    return y


def derived(graph: KernelGraph, rng: random.Random) -> KernelGraph:
    """What some rules make of a program; the program where none fits."""
    for name in rng.sample(list(RULES), len(RULES)):
        for node in list(graph.nodes):
            if (made := RULES[name](graph, node)) is not None:
                return made
    return graph


# --- faults -----------------------------------------------------------------------------------------------


def rewritten(
    graph: KernelGraph, change: Callable[[Writer, Node, tuple[Value, ...]], Value | None]
) -> KernelGraph:
    """The program with what `change` makes of its nodes; None leaves a node as it is. Raises IllegalProgram."""
    w = Writer()
    new = {v: w.input(*v.shape) for v in graph.inputs}
    for node in graph.nodes:
        operands = tuple(new[v] for v in node.operands)
        made = change(w, node, operands)
        new[node.result] = made if made is not None else w.emit(node.op, *operands, **node.attrs)
    w.graph.outputs = [new[v] for v in graph.outputs]
    return w.graph


def _fault(node: Node, rng: random.Random) -> tuple[str, dict[str, Attr]] | None:
    """Another attribute of a node, and what is wrong with it then."""
    found: dict[str, tuple[int, ...]] = {k: v for k, v in node.attrs.items() if isinstance(v, tuple)}
    if not found:
        return None
    name = rng.choice(sorted(found))
    old = list(found[name])
    at, other = rng.randrange(len(old)), rng.randrange(len(old))
    changed = dict(node.attrs)
    if name in ("perm", "shape"):
        old[at], old[other] = old[other], old[at]
        return ("wrong pitch" if name == "shape" else "transposed"), {**changed, name: tuple(old)}
    step = rng.choice([-2, -1, 1, 2])
    old[at] += step
    changed[name] = tuple(old)
    partner = {"low": "high", "high": "low"}.get(name)
    if partner in found:
        back = list(found[partner])
        back[at] -= step
        changed[partner] = tuple(back)
    if name in ("strides", "dilations", "sizes") and "high" in found:
        new = {**found, name: tuple(old)}
        image, rank = node.operands[0].shape, len(old)
        extent, size = image[len(image) - rank + at], node.result.shape[2 + at]
        taps = image[1 + at] if node.op == "shifted_sum" else node.operands[-1].shape[-rank:][at]
        taps = new["sizes"][at] if "sizes" in new else taps
        span = new["dilations"][at] * (taps - 1) + 1
        stride, low = new["strides"][at], new["low"][at]
        if node.op == "conv_transpose":
            need = (extent - 1) * stride + span - low - size
        else:
            need = (size - 1) * stride + span - extent - low
        changed["high"] = (*found["high"][:at], need, *found["high"][at + 1 :])
    return f"other {name}", changed


def corrupted(graph: KernelGraph, rng: random.Random) -> tuple[str, KernelGraph]:
    """The program with a fault that leaves the types of its outputs, and which; itself where 200 draws find none."""
    for _ in range(200):
        fault = _Fault(rng.choice(graph.nodes), rng)
        try:
            made = rewritten(graph, fault)
        except IllegalProgram:
            continue
        if [v.shape for v in made.outputs] == [v.shape for v in graph.outputs]:
            return fault.kind, made
    return "none found", graph


class _Fault:
    """Puts one fault into one node; raises IllegalProgram where it does not fit."""

    def __init__(self, place: Node, rng: random.Random) -> None:
        self.place, self.rng = place, rng
        self.kind = rng.choice(["attribute", "attribute", "dropped", "operand", "kernel"])

    def __call__(self, w: Writer, node: Node, operands: tuple[Value, ...]) -> Value | None:
        if node is not self.place:
            return None
        if self.kind == "attribute":
            if (fault := _fault(node, self.rng)) is None:
                raise IllegalProgram("expected an attribute")
            self.kind = fault[0]
            return w.emit(node.op, *operands, **fault[1])
        if self.kind == "dropped":
            return self.one([v for v in operands if v.shape == node.result.shape])
        at = self.rng.randrange(max(1, len(operands)))
        x = self.one(operands[at : at + 1])
        if self.kind == "operand":
            known = [*w.graph.inputs, *(n.result for n in w.graph.nodes)]
            turned = self.one([v for v in known if v not in operands and v.shape == x.shape])
        else:
            turned = self.turned(w, x)
        return w.emit(node.op, *operands[:at], turned, *operands[at + 1 :], **node.attrs)

    def turned(self, w: Writer, x: Value) -> Value:
        """Two dimensions exchanged, or the halves of one."""
        rank, rng = len(x.shape), self.rng
        alike = [(a, b) for b in range(rank) for a in range(b) if x.shape[a] == x.shape[b] > 1]
        if alike and rng.random() < 0.5:
            a, b = rng.choice(alike)
            perm = [*range(rank)]
            perm[a], perm[b] = b, a
            return w.emit("transpose", x, perm=tuple(perm))
        d = rng.choice([d for d in range(rank) if x.shape[d] > 1] or [-1])
        if d < 0:
            raise IllegalProgram("expected something to turn")
        half = x.shape[d] // 2
        parts = [_slice(w, x, d, half, x.shape[d] - half), _slice(w, x, d, 0, half)]
        return w.emit("concat", *parts, dim=d)

    def one(self, values: Sequence[Value]) -> Value:
        if not values:
            raise IllegalProgram("expected another value")
        return self.rng.choice(values)


def _slice(w: Writer, x: Value, d: int, start: int, size: int) -> Value:
    offsets, sizes = [0] * len(x.shape), list(x.shape)
    offsets[d], sizes[d] = start, size
    return w.emit("slice", x, offsets=tuple(offsets), sizes=tuple(sizes), strides=(1,) * len(x.shape))


# --- the campaign -----------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the pairs; `wrong` are the faults: none is allowed."""

    sources: int = 0
    corrupted: int = 0
    equal: int = 0
    differing: int = 0
    abstained: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    positions: int = 0
    exact_boxes: int = 0
    cpu_ms: list[float] = field(default_factory=list[float])


def pairs(sources: int, faults: int, seed: int) -> Iterator[tuple[str, KernelGraph, KernelGraph]]:
    """Sources with what rules make of them, and `faults` corrupted ones in all, of the source or of that."""
    for n in range(sources):
        rng = random.Random(f"{seed}/{n}")
        graph = source(rng)
        made = derived(graph, rng)
        yield "", graph, made
        for _ in range(faults * (n + 1) // sources - faults * n // sources):
            fault, candidate = corrupted(rng.choice([graph, made]), rng)
            yield fault, graph, candidate


def check(fault: str, first: KernelGraph, second: KernelGraph, seed: int, tally: Tally) -> None:
    """One pair."""
    start = time.process_time()
    region = difference(first, second)
    tally.cpu_ms.append(1e3 * (time.process_time() - start))
    if fault:
        tally.corrupted += 1
        tally.faults[fault] += 1
    else:
        tally.sources += 1
    if isinstance(region, Abstained):
        tally.abstained[region.reason] += 1
        return
    expected = differences(first, second, seed)
    for n, mask in enumerate(expected):
        found = region.mask(n)
        boxes, exact = region.boxes(n)
        covered = np.zeros(mask.shape, dtype=bool)
        for box in boxes:
            covered[tuple(slice(*r) for r in box)] = True
        tally.positions += int(mask.sum())
        tally.exact_boxes += exact
        if (found != mask).any() or (mask & ~covered).any() or (exact and (covered != mask).any()):
            tally.wrong.append(
                f"seed {seed}: {fault or 'derived'}: {int(mask.sum())} differ, {int(found.sum())} said"
            )
    anything = any(m.any() for m in expected)
    tally.differing += anything
    tally.equal += not anything
    if region.empty == anything:
        tally.wrong.append(f"seed {seed}: {fault or 'derived'}: empty is {region.empty}")
    if not fault and anything:
        tally.wrong.append(f"seed {seed}: a rule's program differs")


def campaign(sources: int, faults: int, seed: int = 0) -> Tally:
    """All pairs of a seed."""
    tally = Tally()
    for n, (fault, first, second) in enumerate(pairs(sources, faults, seed)):
        check(fault, first, second, n, tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--corrupted", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tally = campaign(options.sources, options.corrupted, options.seed)
    times = sorted(tally.cpu_ms)
    record = {
        **about(),
        "seed": options.seed, "sources": tally.sources, "corrupted": tally.corrupted, "wrong": tally.wrong,
        "equal": tally.equal, "differing": tally.differing, "positions": tally.positions,
        "abstained": dict(tally.abstained.most_common()), "exact_boxes": tally.exact_boxes,
        "faults": dict(sorted(tally.faults.items())),
        "cpu_ms": {"median": round(times[len(times) // 2], 1), "most": round(times[-1], 1)},
    }  # fmt: skip
    text = json.dumps(record, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
