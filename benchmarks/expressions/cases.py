"""The operator cases of two papers on derived expressions, at their sizes: writes `.mlir`, or prints a table.

    python benchmarks/expressions/cases.py --write     # the files beside this one
    python benchmarks/expressions/cases.py             # what derivation finds, and at what cost

The cases are those of PET (OSDI 2021, Tables 3 and 4) and OLLIE (OSDI 2023, Table 3) that convolutions, pooling
and products can say; band products lack an operator.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from superopt.cost import best_baseline, target
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.operators import infer_type, is_windowed
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.derivation.optimizer import DerivationOptimizer
from superopt.verify import certify

Shape = tuple[int, ...]
HERE = Path(__file__).parent


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


def row(file: Path) -> str:
    """States, seconds, and the predicted time of what a user has and of the best that is derived."""
    graph, gpu, start = read(file.read_text(), str(file)), target("sm_90"), time.process_time()
    before = best_baseline(graph, gpu).seconds * 1e6
    if not any(map(is_windowed, graph.nodes)):
        return f"| {file.stem} | | | | {before:.1f} | |"
    made = DerivationOptimizer().propose(graph, gpu, budget=60)
    derived, start = time.process_time() - start, time.process_time()
    best = f"{made.found[0].seconds * 1e6:.1f}" if made.found else ""
    proved = [certify(graph, p.graph).equivalent for p in made.found[:1]]
    checked = f"{time.process_time() - start:.2f}" if proved else ""
    assert all(proved)
    return f"| {file.stem} | {made.funnel['looked at']} | {derived:.3f} | {checked} | {before:.1f} | {best} |"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the .mlir files")
    if parser.parse_args().write:
        for name in CASES:
            (HERE / f"{name}.mlir").write_text(to_text(program(name)))
        return
    print(
        "| case | programs looked at | CPU s to derive | CPU s to prove the best | a user has, us | derived, us |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for file in sorted(HERE.glob("*.mlir")):
        print(row(file))


if __name__ == "__main__":
    main()
