"""The operator cases of two papers on derived expressions, at their sizes: writes `.mlir`, or a table.

    python -m benchmarks.expressions.cases --write     # the files beside this one
    python -m benchmarks.expressions.cases             # what derivation finds, and at what cost
    python -m benchmarks.expressions.cases --ablation  # and how many programs it looks at without hints

The cases are those of PET (OSDI 2021, Tables 3 and 4) and OLLIE (OSDI 2023, Table 3). The table is kept in
`benchmarks/results/expressions.json`, and printed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.record import commit, keep

from superopt.cost import best_baseline, cost, target
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.operators import infer_type
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.derivation.optimizer import DerivationOptimizer
from superopt.transforms.derivation.rules import RULES
from superopt.verify import certify
from superopt.verify.relation import equal_sizes

Shape = tuple[int, ...]
HERE = Path(__file__).parent
# Programs that a search without hints looks at, and its CPU seconds, at most.
MOST_STATES, MOST_SECONDS = 5000, 60.0


def windows(stride: int = 1, dilation: int = 1, pad: int = 0, **more: Attr) -> dict[str, Attr]:
    numbers = {"strides": stride, "dilations": dilation, "low": pad, "high": pad}
    return {**{name: (number, number) for name, number in numbers.items()}, **more}


# name: (operator, shape of its operand, shapes of the weights of as many applications, attributes)
Case = tuple[str, Shape, list[Shape], dict[str, Attr]]
CASES: dict[str, Case] = {
    "conv3x3": ("conv", (1, 512, 7, 7), [(512, 512, 3, 3)], windows(pad=1)),
    "conv_transpose4x4": ("conv_transpose", (16, 256, 2, 2), [(256, 128, 4, 4)], windows(2, pad=1, extra=(0, 0))),
    "conv5x5": ("conv", (16, 32, 224, 224), [(32, 32, 5, 5)], windows(pad=2)),
    "conv5x5_small": ("conv", (1, 48, 38, 38), [(64, 48, 5, 5)], windows(pad=2)),
    "dilated": ("conv", (1, 512, 14, 14), [(256, 512, 3, 3)], windows(dilation=2, pad=2)),
    "strided": ("conv", (1, 64, 56, 56), [(128, 64, 3, 3)], windows(2, pad=1)),
    "stem": ("conv", (1, 3, 224, 224), [(64, 3, 7, 7)], windows(2, pad=3)),
    "grouped": ("conv", (1, 128, 28, 28), [(128, 32, 3, 3)], windows(pad=1, groups=4)),
    "depthwise": ("conv", (1, 256, 28, 28), [(256, 1, 3, 3)], windows(pad=1, groups=256)),
    "two_1x1": ("conv", (1, 768, 18, 18), [(192, 768, 1, 1), (160, 768, 1, 1)], windows()),
    "three_1x1": ("conv", (1, 768, 18, 18), [(192, 768, 1, 1), (192, 768, 1, 1), (160, 768, 1, 1)], windows()),
    "g2bmm": ("g2bmm", (8, 10000, 64), [(8, 10000, 64)], {"width": 1001, "dilation": 4, "low": 2000}),
    "gbmm": ("gbmm", (8, 10000, 1001), [(8, 10000, 64)], {"dilation": 4, "low": 2000}),
    "products": ("matmul", (512, 768), [(768, 768)] * 3, {}),
    "average_pool": ("pool_sum", (1, 288, 35, 35), [()], windows(pad=1, sizes=(3, 3))),
}  # fmt: skip


def program(name: str, cases: dict[str, Case] = CASES) -> KernelGraph:
    """The case as a graph, in f16."""
    op, shape, weights, attrs = cases[name]
    x = Value(TensorType(shape, "f16"), "x")
    inputs, nodes = [x], list[Node]()
    for i, weight in enumerate(weights):
        operands = [x]
        if weight:
            inputs.append(Value(TensorType(weight, "f16"), f"w{i}"))
            operands.append(inputs[-1])
        result = Value(infer_type(op, [v.type for v in operands], attrs), f"y{i}")
        nodes.append(Node(op, tuple(operands), (result,), dict(attrs)))
    return KernelGraph(name, inputs, nodes, [n.result for n in nodes])


def row(file: Path) -> dict[str, Any]:
    """States, CPU seconds, proofs, and predicted microseconds of what a user has and of what is derived."""
    graph, gpu = read(file.read_text(), str(file)), target("sm_90")
    found: dict[str, Any] = {"user_us": _us(best_baseline(graph, gpu).seconds), "rules": {}}
    node = graph.nodes[0]
    for name, rule in RULES.items():
        start = time.process_time()
        if (made := rule(graph, node)) is None:
            continue
        derived, start = time.process_time() - start, time.process_time()
        verdict = certify(graph, made)
        proved, start = time.process_time() - start, time.process_time()
        sizes = equal_sizes(graph, made)
        found["rules"][name] = {
            "us": _us(cost(made, gpu).seconds),
            "seconds": {"derive": round(derived, 4), "prove": round(proved, 3)},
            "proved": verdict.equivalent,
            "sizes": sizes,
            "seconds_sizes": round(time.process_time() - start, 3),
        }
    start = time.process_time()
    made = DerivationOptimizer().propose(graph, gpu, budget=60)
    found["states"], found["seconds"] = made.funnel["looked at"], round(time.process_time() - start, 3)
    if made.found:
        start = time.process_time()
        found["best"] = {
            "us": _us(made.found[0].seconds),
            "proved": certify(graph, made.found[0].graph).equivalent,
            "seconds": round(time.process_time() - start, 3),
        }
    return found


def without_hints(file: Path) -> dict[str, Any]:
    """Programs looked at and CPU seconds, with hints and without; `complete` says whether none was left."""
    graph, gpu = read(file.read_text(), str(file)), target("sm_90")
    found: dict[str, Any] = {}
    for name, hints in (("hints", True), ("none", False)):
        start = time.process_time()
        made = DerivationOptimizer(limit=MOST_STATES, hints=hints).propose(graph, gpu, budget=MOST_SECONDS)
        best = min((p.seconds for p in made.found), default=None)
        found[name] = {
            "states": made.funnel["looked at"],
            "complete": made.complete,
            "seconds": round(time.process_time() - start, 2),
            "us": best and _us(best),
        }
    return found


def ablation(found: dict[str, Any]) -> None:
    """Print one line for each case."""
    lines = [["case", "programs, with hints", "CPU s", "us", "without", "CPU s", "us"], ["---"] * 7]
    for name, case in found.items():
        line: list[Any] = [name]
        for one in (case["hints"], case["none"]):
            line += [f"{one['states']}{'' if one['complete'] else ' and more'}", one["seconds"], one["us"]]
        lines.append(line)
    print("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def table(found: dict[str, Any]) -> None:
    """Print one line for each case, then one for each rule that fits."""
    lines = [
        ["case", "programs looked at", "CPU s", "CPU s to prove the best", "a user has, us", "derived, us"],
        ["---"] * 6,
    ]
    for name, case in found.items():
        best = case.get("best", {"seconds": "", "us": ""})
        lines.append([name, case["states"], case["seconds"], best["seconds"], case["user_us"], best["us"]])
    lines += [["case", "rule", "CPU s to derive", "CPU s to prove", "us", "for all"], ["---"] * 6]
    for name, case in found.items():
        for rule, r in case["rules"].items():
            seconds = r["seconds"]
            lines.append(
                [name, f"`{rule}`", seconds["derive"], seconds["prove"], r["us"], ", ".join(r["sizes"])]
            )
    print("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the .mlir files")
    parser.add_argument("--ablation", action="store_true", help="count programs with and without hints")
    arguments = parser.parse_args()
    if arguments.write:
        for name in CASES:
            (HERE / f"{name}.mlir").write_text(to_text(program(name)))
        return
    files = sorted(HERE.glob("*.mlir"))
    if arguments.ablation:
        counted = {file.stem: without_hints(file) for file in files}
        keep("derivation_hints", counted, commit=commit())
        ablation(counted)
        return
    found = {file.stem: row(file) for file in files}
    keep("expressions", found, commit=commit())
    table(found)


if __name__ == "__main__":
    main()
