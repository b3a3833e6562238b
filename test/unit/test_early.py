"""Kernels that start while the one before them still runs: what is launched so, and that it waits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from superopt.cost import target
from superopt.cost.compiled import compiled_cost, priced_kernels
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.early import early_launches
from superopt.errors import IllegalProgram, SuperoptError
from superopt.numerics.interpreter import Interpreter
from superopt.program import Attr, KernelGraph, Node, TensorType, TileProgram, Value
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.lower import lower
from superopt.transforms.schedule.fit import Compiler, Scheduled, fit
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ttir import verify_ttir
from superopt.verify.ttir.artifact import kernel_texts

WAIT = "griddepcontrol.wait"


def two_kernels() -> KernelGraph:
    """Sums of rows, and what is left of each column's largest."""
    x, s = Value(TensorType((64, 48), "f16"), "x"), Value(TensorType((64, 1), "f16"), "s")
    y, m = Value(TensorType((64, 48), "f16"), "y"), Value(TensorType((1, 48), "f16"), "m")
    nodes = [
        Node("reduce_sum", (x,), (s,), attrs={"dims": (1,), "keepdims": True}),
        Node("add", (x, s), (y,)),
        Node("reduce_max", (y,), (m,), attrs={"dims": (0,), "keepdims": True}),
    ]
    return KernelGraph("two", [x], nodes, [m])


def made(of: str = "sm_90") -> tuple[KernelGraph, EmittedProgram, list[Compiled]]:
    lowered = lower(two_kernels())
    emitted = emit_program(lowered)
    return lowered, emitted, compile_all(emitted.kernels, [of])


def test_all_but_the_first_start_early_where_a_gpu_can() -> None:
    lowered, emitted, compiled = made()
    tiled = [n for n in lowered.nodes if n.body is not None]
    assert len(tiled) > 1
    assert early_launches(lowered.nodes) == set(tiled[1:])
    launches = re.findall(r"kernels\.\w+\[.*", emitted.launcher_source)
    assert ['**({"launch_pdl": True} if early else {})' in line for line in launches] == [
        False,
        *[True] * (len(tiled) - 1),
    ]
    for kernel in compiled:
        assert kernel.ptx.index(WAIT) < kernel.ptx.index("ld.global")
    assert not any(WAIT in k.ptx or WAIT in k.ttir for k in made("sm_80")[2])


@pytest.mark.parametrize(
    ("kind", "cuda", "capability", "early"),
    [
        ("cuda", "12.8", (9, 0), True),
        ("cuda", "12.8", (12, 0), True),
        ("cuda", "12.8", (8, 9), False),
        ("cuda", None, (9, 4), False),  # an MI300, as PyTorch for ROCm calls it
        ("cpu", "12.8", (9, 0), False),
    ],
)
def test_the_launcher_asks_the_gpu(
    kind: str, cuda: str | None, capability: tuple[int, int], early: bool
) -> None:
    def ask(_: object) -> tuple[int, int]:
        return capability

    lines = [line.strip() for line in made()[1].launcher_source.splitlines() if "early =" in line]
    names: dict[str, Any] = {
        "device": SimpleNamespace(type=kind),
        "torch": SimpleNamespace(
            version=SimpleNamespace(cuda=cuda),
            cuda=SimpleNamespace(get_device_capability=ask),
        ),
    }
    exec("\n".join(lines), names)
    assert names["early"] is early


def test_what_others_launch_comes_in_between() -> None:
    lowered, *_ = made()
    first, second = [n for n in lowered.nodes if n.body is not None][:2]
    other = Node("extern", (), (Value(TensorType((4,), "f32")),), attrs={"target": "aten.rand"})
    table = Value(TensorType((2,), "f32"))
    attrs: dict[str, Attr] = {"value": np.array([1, 2], np.float32), "shape": (2,), "dtype": "f32"}
    constant = Node("constant", (), (table,), attrs)
    assert early_launches([first, second]) == {second}
    assert early_launches([first, other, second]) == set()
    assert early_launches([first, constant, second]) == set()


def test_one_kernel_alone_is_as_it_was() -> None:
    graph = two_kernels()
    x, s = graph.inputs[0], graph.nodes[0].results[0]
    emitted = emit_program(lower(KernelGraph("one", [x], graph.nodes[:1], [s])))
    assert "EARLY" not in emitted.kernels_source
    assert "launch_pdl" not in emitted.launcher_source


def test_the_interpreter_runs_them_in_order() -> None:
    _, emitted, _ = made()
    x = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float16).astype(np.float32)
    (got,) = Interpreter().run(emitted, [x], ["f16"])
    rows = x.sum(1, keepdims=True).astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(got, (x + rows).max(0, keepdims=True), rtol=2e-2, atol=2e-2)


def test_each_hides_a_part_of_its_launch() -> None:
    lowered, _, compiled = made()
    hopper = target("sm_90")
    priced = priced_kernels(lowered, compiled, hopper)
    tiled = [n for n in lowered.nodes if n.body is not None]
    alone = [compiled_cost(n, k, hopper).seconds for n, k in zip(tiled, compiled, strict=True)]
    hidden = [a - p.seconds for a, p in zip(alone, priced, strict=True)]
    assert hidden == pytest.approx([0.0, *[hopper.early_seconds] * (len(tiled) - 1)], abs=1e-12)
    assert 0 < hopper.early_seconds < hopper.launch_seconds
    assert target("sm_80").early_seconds == 0


def test_one_that_is_alone_lets_none_start() -> None:
    lowered, *_ = made()
    first, second = [n for n in lowered.nodes if n.body is not None][:2]
    assert isinstance(first.body, TileProgram)
    first.body.alone = True
    again = emit_program(lowered)
    assert second not in early_launches(lowered.nodes)
    assert "gdc_launch_dependents" not in again.kernels[0].source
    assert "gdc_launch_dependents" in again.kernels[1].source
    bodies = [n.body for n in read(to_text(lowered)).nodes if isinstance(n.body, TileProgram)]
    assert [b.alone for b in bodies] == [True, *[False] * (len(bodies) - 1)]


class Spilling(Compiler):
    """Kernels that let others start spill."""

    def scheduled(self, graph: KernelGraph, parameters: Mapping[str, int] | None = None) -> Scheduled:
        found = super().scheduled(graph, parameters)
        kernels = zip(found.compiled, found.emitted.kernels, strict=True)
        compiled = [replace(k, spill_bytes=24 * ("gdc_launch" in e.source)) for k, e in kernels]
        return replace(found, compiled=tuple(compiled))


def test_what_spills_to_let_another_start_is_alone() -> None:
    lowered = lower(two_kernels())
    best = fit(lowered, Spilling(target("sm_90")), counted=False)
    assert not any(k.spill_bytes for k in best.compiled)
    assert "no kernel starts before its end, or it would spill 24 bytes" in best.reason
    assert [e.num_warps for e in best.emitted.kernels] == [e.num_warps for e in emit_program(lowered).kernels]
    assert not fit(lowered, Compiler(target("sm_90")), counted=False).reason


def check(ttir: dict[int, str] | None = None, ptx: dict[int, str] | None = None) -> None:
    """The checks of TTIR and PTX, with other texts for some kernels."""
    lowered, emitted, compiled = made()
    changed = [
        replace(k, ttir=(ttir or {}).get(i, k.ttir), ptx=(ptx or {}).get(i, k.ptx))
        for i, k in enumerate(compiled)
    ]
    texts = kernel_texts(emitted, changed)
    verify_ttir(two_kernels(), lowered, texts)
    assert verify_ptx(lowered, texts, [PtxText(k.ptx, k.shared_bytes) for k in changed]).verified


def without(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if WAIT not in line)


def moved(text: str, behind: str) -> str:
    """The wait behind the first line that says `behind`."""
    lines = text.split("\n")
    wait = next(line for line in lines if WAIT in line)
    lines.remove(wait)
    place = next(i for i, line in enumerate(lines) if behind in line)
    return "\n".join([*lines[: place + 1], wait, *lines[place + 1 :]])


def test_kernels_that_wait_pass() -> None:
    check()


def test_a_kernel_that_does_not_wait_is_refused() -> None:
    last = made()[2][-1]
    at = len(made()[2]) - 1
    with pytest.raises(IllegalProgram, match="expected its TTIR to wait"):
        check(ttir={at: without(last.ttir)})
    with pytest.raises(IllegalProgram, match="expected its PTX to wait"):
        check(ptx={at: without(last.ptx)})


def test_a_kernel_that_waits_too_late_is_refused() -> None:
    last = made()[2][-1]
    at = len(made()[2]) - 1
    with pytest.raises(IllegalProgram, match="expected its TTIR to wait"):
        check(ttir={at: moved(last.ttir, "tt.load")})
    with pytest.raises(IllegalProgram, match=re.escape("race: an access to device memory before")):
        check(ptx={at: moved(last.ptx, "ld.global")})


def test_other_assembly_is_refused() -> None:
    first = made()[2][0]
    other = first.ttir.replace(f'"{WAIT}; // dummy $0"', '"trap; // dummy $0"')
    with pytest.raises(SuperoptError, match=r"expected its TTIR to wait|the assembly 'trap"):
        check(ttir={0: other})
    written = first.ttir.replace('"=r"', '"=r,r"')
    assert written != first.ttir
    with pytest.raises(SuperoptError, match="expected assembly without operands"):
        check(ttir={0: written})


def test_what_the_wait_leaves_in_a_register_is_not_read() -> None:
    """Its TTIR has a result, which no instruction writes."""
    first = made()[2][0]
    result = re.search(rf"(%\S+) = tt.elementwise_inline_asm \"{WAIT}.*\n", first.ttir)
    assert result is not None
    read = f"{result[0]}    %read = arith.addi {result[1]}, {result[1]} : i32\n"
    used = first.ttir.replace(result[0], read)
    with pytest.raises(SuperoptError, match="values defined before"):
        check(ttir={0: used})


def in_3_9(text: str) -> str:
    """TTIR as Triton 3.9 writes it: an operation each to wait, and to let the next kernel start."""
    for assembly, operation in ((WAIT, "wait"), ("griddepcontrol.launch_dependents", "launch_dependents")):
        text = re.sub(
            rf"%\S+ = tt.elementwise_inline_asm \"{assembly}[^\n]*", f"tt.grid_dependency_{operation}", text
        )
    return text


def test_kernels_that_wait_by_an_operation_pass() -> None:
    texts = [in_3_9(k.ttir) for k in made()[2]]
    assert all("tt.grid_dependency_launch_dependents" in t for t in texts[:-1])
    assert all("tt.grid_dependency_wait" in t and WAIT not in t for t in texts[1:])
    check(ttir=dict(enumerate(texts)))


def test_operations_that_do_not_wait_or_wait_too_late_are_refused() -> None:
    at = len(made()[2]) - 1
    text = in_3_9(made()[2][at].ttir)
    lines = [line for line in text.split("\n") if "tt.grid_dependency_wait" not in line]
    with pytest.raises(IllegalProgram, match="expected its TTIR to wait"):
        check(ttir={at: "\n".join(lines)})
    place = next(i for i, line in enumerate(lines) if "tt.load" in line)
    late = [*lines[: place + 1], "    tt.grid_dependency_wait", *lines[place + 1 :]]
    with pytest.raises(IllegalProgram, match="expected its TTIR to wait"):
        check(ttir={at: "\n".join(late)})
