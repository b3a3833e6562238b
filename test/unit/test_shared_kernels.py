"""Tile programs that are one but for names have one kernel: in source, compiled, in bundles, and run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from interpreter import interpret

from superopt.dialects.writer import to_text
from superopt.numerics import cpu
from superopt.operators import infer_type
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.tools import superopt_run
from superopt.transforms.emit.alike import Alike, nameless
from superopt.transforms.emit.bundle import write_bundle
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.transforms.lower import lower
from superopt.verify.bundle import verify_bundle


def layers(*shapes: tuple[int, int], second: str = "exp", **attrs: Attr) -> KernelGraph:
    """The sums of rows, and another operator, of one operand after the other; `second` is that of the second."""
    inputs = [Value(TensorType(s, "f32"), f"layer{i}_x") for i, s in enumerate(shapes)]
    nodes: list[Node] = []
    for i, x in enumerate(inputs):
        total = Value(infer_type("reduce_sum", [x.type], {"dims": (1,)}), f"total{i}")
        op = second if i == 1 else "exp"
        extra = attrs if i == 1 else {}
        made = Value(infer_type(op, [total.type], extra), f"y{i}")
        nodes += [Node("reduce_sum", (x,), (total,), {"dims": (1,)}), Node(op, (total,), (made,), extra)]
    return KernelGraph("layers", inputs, nodes, [n.result for n in nodes[1::2]])


def kernels(graph: KernelGraph) -> list[str]:
    return [kernel.name for kernel in emit_program(lower(graph)).kernels]


def test_equal_layers_share_their_kernels() -> None:
    emitted = emit_program(lower(layers((64, 32), (64, 32), (64, 32))))
    names = [kernel.name for kernel in emitted.kernels]
    assert len(names) == 6
    assert len(set(names)) == 2
    assert emitted.kernels_source.count("@triton.jit") == 2
    assert re.findall(r"kernels\.(\w+)\[", emitted.launcher_source) == names


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (layers((64, 32), (64, 48)), 3),  # other rows; their exponentials are one
        (layers((64, 32), (80, 32)), 4),  # other grids
        (layers((64, 32), (64, 32), second="relu"), 3),
    ],
)
def test_others_do_not(graph: KernelGraph, count: int) -> None:
    assert len(set(kernels(graph))) == count


def test_names_of_the_kernel_and_its_variables_do_not_matter_and_all_else_does() -> None:
    text = (
        "@triton.jit\ndef f(x_ptr, y_ptr):\n    x = tl.load(x_ptr, mask=x_ptr)\n    tl.store(y_ptr, x + 1)\n"
    )
    other = text.replace("f(", "g(").replace("x_ptr", "weight_ptr").replace(" x", " tile")
    assert other != text
    assert nameless(other) == nameless(text)
    for changed in (
        text.replace("+ 1", "+ 2"),
        text.replace("tl.store(y_ptr", "tl.store(x_ptr"),
        text.replace("tl.load", "tl.make"),
        text.replace("mask=", "other="),
        text.replace("x + 1", "x_ptr + 1"),
        text.replace("x_ptr, y_ptr)", "y_ptr, x_ptr)"),
    ):
        assert changed != text
        assert nameless(changed) != nameless(text), changed


def test_a_kernel_that_is_launched_in_another_way_is_another() -> None:
    kernel: TritonKernel = emit_program(lower(layers((64, 32)))).kernels[0]
    alike = Alike()
    assert alike.known(kernel) is None
    assert alike.known(replace(kernel, num_warps=2 * kernel.num_warps)) is None
    assert alike.known(replace(kernel, grid=(7, 1, 1))) is None
    parameter = replace(kernel.parameters[0], type=TensorType((64, 32), "f16"))
    assert alike.known(replace(kernel, parameters=(parameter, *kernel.parameters[1:]))) is None
    renamed = replace(kernel, name="other", source=kernel.source.replace(f"def {kernel.name}(", "def other("))
    assert alike.known(renamed) is kernel


def test_they_are_compiled_once() -> None:
    pytest.importorskip("triton")
    emitted = emit_program(lower(layers((64, 32), (64, 32))))
    compiled = compile_all(emitted.kernels, ["sm_90"])
    assert [c.name for c in compiled] == [k.name for k in emitted.kernels]
    assert compiled[0] is compiled[2]
    assert compiled[1] is compiled[3]


def test_they_compute_what_each_layer_does() -> None:
    pytest.importorskip("triton")
    graph = layers((64, 32), (64, 32), second="exp")
    arrays = [np.random.default_rng(i).standard_normal((64, 32)).astype(np.float32) for i in range(2)]
    expected = [np.exp(x.sum(1)) for x in arrays]
    for found, wanted in zip(interpret(graph, arrays), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for found, wanted in zip(cpu.run(lower(graph), arrays), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_a_bundle_has_each_once_is_verified_and_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    graph = layers((64, 32), (64, 32))
    lowered = lower(graph)
    emitted = emit_program(lowered)
    folder = write_bundle(
        tmp_path / "bundle",
        original=graph,
        lowered=lowered,
        compiled=compile_all(emitted.kernels, ["sm_90"]),
        original_mlir=to_text(graph),
        lowered_mlir=to_text(lowered),
    )
    described = json.loads((folder / "bundle.json").read_text())
    launched = re.findall(r"kernels\.(\w+)\[", (folder / "launch.py").read_text())
    assert list(described["grids"]) == list(dict.fromkeys(launched))
    assert (len(set(launched)), len(launched)) == (2, 4)
    verify_bundle(None, folder, seed=0)
    for device in ("interpreter", "cpu"):
        assert superopt_run.main([str(folder), f"--device={device}", "--distributions=ordinary"]) == 0
