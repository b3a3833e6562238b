"""Outputs in the memory of arguments: stated in the IR, made use of by kernels, noticed by nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.trinity.programs import PROGRAMS, Builder, Config

import superopt
from superopt.aliasing import copied, updates_in_place
from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.errors import BadInput, IllegalProgram, SuperoptError
from superopt.pipeline import replay
from superopt.program import (
    Buffer,
    KernelGraph,
    Loop,
    LoopVar,
    Node,
    Statement,
    TensorType,
    TileProgram,
    Value,
    Window,
)
from superopt.spec import check_kernel
from superopt.transforms.emit.launcher import Launcher
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.transforms.lower.builder import compute, load, store, whole
from superopt.transforms.partition.segments import partition
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer
from superopt.transforms.tile_saturation.search import kernel_count, propose
from superopt.verify import certify
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate_tile import evaluate_tile
from superopt.verify.hashing import canonical_text, parse, program_hash

H100 = target("sm_90")
SMALL = Config(hidden=128, heads=2, ffn=256, groups=1, tokens=16, prefix=112)
ATTENTIONS = ["vanilla", "pre_norm", "qk_norm", "roco", "keyformer"]


def updated_cache(*, read_before: bool = False) -> KernelGraph:
    """(exp of the new rows, the cache with them), the cache in its own memory."""
    b = Builder("update", "f32")
    new, cache = b.input("new", 2, 16), b.input("cache", 8, 16)
    rows = b.op("exp", new, name="rows")
    outputs = [rows, b.op("update_slice", cache, rows, dim=0, offset=4, name="grown")]
    if read_before:
        outputs.append(b.op("reduce_sum", cache, dims=(0,), keepdims=False, name="before"))
    graph = b.outputs(*outputs)
    graph.aliases = (-1, 1, *[-1] * read_before)
    return graph


# --- the IR -----------------------------------------------------------------------------------------------


def test_aliases_are_written_and_read() -> None:
    for graph in (updated_cache(), lower(updated_cache())):
        text = to_text(graph)
        assert "{superopt.aliasing_output = 1 : i64}" in text
        again = read(text)
        assert again.aliases == graph.aliases
        assert program_hash(again) == program_hash(graph) == program_hash(parse(canonical_text(graph)))
    plain = updated_cache()
    plain.aliases = ()
    assert program_hash(plain) != program_hash(updated_cache())
    assert not certify(updated_cache(), plain).equivalent


@pytest.mark.parametrize("attribute", ["2 : i64", '"first"'])
def test_what_is_no_output_is_no_alias(attribute: str) -> None:
    text = to_text(updated_cache()).replace("aliasing_output = 1 : i64", f"aliasing_output = {attribute}")
    with pytest.raises(
        SuperoptError, match=r"expected 'superopt.aliasing_output' of argument 1 to be the number"
    ):
        read(text)


def test_an_alias_has_the_type_of_its_argument() -> None:
    graph = updated_cache()
    graph.aliases = (1, -1)
    with pytest.raises(IllegalProgram, match="expected an output of type"):
        check_kernel(graph)


# --- kernels ----------------------------------------------------------------------------------------------


def test_an_update_in_place_stores_the_new_rows_only() -> None:
    graph = updated_cache()
    lowered = lower(graph)
    programs = [n.body for n in lowered.nodes]
    assert [p.aliases for p in programs if isinstance(p, TileProgram)] == [(), (0,)]
    assert copied(lowered) == []
    assert certify(graph, lowered).equivalent
    copying = updated_cache()
    copying.aliases = ()
    assert cost(graph, H100).seconds <= cost(copying, H100).seconds


def test_what_somebody_else_reads_is_not_updated_in_place() -> None:
    graph = updated_cache(read_before=True)
    assert not updates_in_place(graph)
    lowered = lower(graph)
    assert copied(lowered) == [1]
    assert certify(graph, lowered).equivalent


def rebuilt(graph: KernelGraph, nodes: list[Node], outputs: list[Value]) -> KernelGraph:
    return KernelGraph(graph.name, graph.inputs, nodes, outputs, graph.location, graph.aliases)


def test_kernels_read_the_newest_contents_or_come_before() -> None:
    """The old contents may be read until they are overwritten, by whatever name."""
    graph = updated_cache(read_before=True)
    exp, update, total = graph.nodes
    lowered = lower(updated_cache())
    body = lowered.nodes[1].body
    in_place = Node("tiled", update.operands, update.results, {}, body=body)
    check_kernel(rebuilt(graph, [exp, total, in_place], graph.outputs))
    stale = rebuilt(graph, [exp, in_place, total], graph.outputs)
    with pytest.raises(IllegalProgram, match="expected the newest contents of argument 'cache'"):
        check_kernel(stale)
    verdict = certify(graph, stale)
    assert not verdict.equivalent
    view = Value(TensorType((16, 8), "f32"))
    reshape = Node("reshape", (graph.inputs[1],), (view,), {"shape": (16, 8)})
    other = Value(TensorType((8,), "f32"))
    late = Node("reduce_sum", (view,), (other,), {"dims": (0,), "keepdims": False})
    with pytest.raises(IllegalProgram, match="expected the newest contents"):
        check_kernel(rebuilt(graph, [exp, reshape, in_place, late], [*graph.outputs[:2], other]))


def test_only_stated_arguments_are_overwritten() -> None:
    lowered = lower(updated_cache())
    lowered.aliases = ()
    with pytest.raises(
        IllegalProgram, match=r"expected to update an argument with 'superopt.aliasing_output'"
    ):
        check_kernel(lowered)
    returned = lower(updated_cache())
    returned.outputs.append(returned.inputs[1])
    returned.aliases = (-1, 1, -1)
    with pytest.raises(IllegalProgram, match="expected the newest contents"):
        check_kernel(returned)


def halves(*, shift: int) -> TileProgram:
    """Two blocks, each of which doubles its half of a cache, reading `shift` elements further on."""
    kind = TensorType((16,), "f32")
    before, after = Buffer(kind, "cache"), Buffer(kind, "grown")
    var, body = LoopVar("i"), list[Statement]()
    tile = load(body, after, (Window(8, shift, ((var, 1),)),))
    store(body, after, (Window(8, 0, ((var, 1),)),), compute(body, "add", [tile, tile]))
    program = TileProgram("halves", [before, after], 1, [], [Loop(var, 0, 16, 8, True, body)])
    program.aliases = (0,)
    return program


def test_blocks_do_not_read_what_others_write() -> None:
    domain = FloatDomain()
    cache = np.arange(16.0)
    given = domain.tensor(cache)
    (doubled,) = evaluate_tile(halves(shift=0), [given], domain)
    assert (doubled.planes[0] == 2 * cache).all()
    assert (given.planes[0] == np.arange(16.0)).all()
    with pytest.raises(IllegalProgram, match="expected no block to write what another one reads of 'grown'"):
        evaluate_tile(halves(shift=1), [given], domain)


def test_the_overwritten_operand_has_one_name_inside() -> None:
    program = halves(shift=0)
    (loop,) = program.body
    assert isinstance(loop, Loop)
    out: list[Statement] = []
    load(out, program.params[0], whole(program.params[0]))
    loop.body = [*out, *loop.body]
    value = Value(program.params[0].type, "cache")
    grown = Value(program.params[0].type, "grown")
    graph = KernelGraph(
        "f", [value], [Node("tiled", (value,), (grown,), {}, body=program)], [grown], aliases=(0,)
    )
    with pytest.raises(IllegalProgram, match="expected a buffer of this kernel, got 'cache'"):
        check_kernel(graph)


def test_segments_keep_the_aliases_of_what_only_they_read() -> None:
    for before in (False, True):
        graph = updated_cache(read_before=before)
        for segment in partition(graph, max_values=1):
            check_kernel(segment.graph)
            assert not segment.graph.aliases or not before


# --- saturation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTENTIONS)
def test_one_kernel_updates_the_caches_and_attends_to_them(name: str) -> None:
    graph = PROGRAMS[name](SMALL, name, in_place=True)
    found = propose(
        graph, H100, budget=30, options=SaturationOptimizer(inline=("all",), best=4, candidates=4)
    )
    one = next(c for c in found.graphs if kernel_count(c) == 1)
    (node,) = one.nodes
    assert isinstance(node.body, TileProgram)
    assert sorted(node.body.aliases)[-2:] == sorted(
        node.operands.index(v) for v in graph.inputs if v.name in ("k_cache", "v_cache")
    )
    assert copied(one) == []
    assert certify(graph, one).equivalent


# --- the kernels themselves -------------------------------------------------------------------------------


def tensors(graph: KernelGraph) -> list[Any]:
    torch: Any = pytest.importorskip("torch")
    made = torch.Generator().manual_seed(0)
    dtypes = {"f16": torch.float16, "f32": torch.float32}
    return [0.1 * torch.randn(v.shape, generator=made).to(dtypes[v.dtype]) for v in graph.inputs]


def launched(graph: KernelGraph, lowered: KernelGraph, inputs: list[Any]) -> Any:
    return Launcher(emit_program(lowered), graph.inputs, graph.outputs, graph.aliases)(*inputs)


@pytest.mark.parametrize("before", [False, True])
def test_only_the_cache_is_overwritten(*, before: bool) -> None:
    """By the kernel, or by a copy at the end where somebody reads the old contents."""
    graph = updated_cache(read_before=before)
    inputs = tensors(graph)
    kept = [t.clone() for t in inputs]
    outputs = launched(graph, lower(graph), inputs)
    new, cache = kept
    wanted = cache.clone()
    wanted[4:6] = new.exp()
    assert outputs[1] is inputs[1]
    assert inputs[1].allclose(wanted)
    assert (inputs[0] == new).all()
    if before:
        assert outputs[2].allclose(cache.sum(0), atol=1e-5)


def test_a_cache_has_memory_of_its_own() -> None:
    graph = updated_cache()
    new, _ = tensors(graph)
    shared = new.new_zeros(8, 16)
    with pytest.raises(BadInput, match="expected argument 1, which is overwritten, in memory of its own"):
        launched(graph, lower(graph), [shared[:2], shared])


def test_the_kernels_are_verified_and_bundled(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    graph = PROGRAMS["vanilla"](SMALL, "vanilla", in_place=True)
    found = superopt.optimize(graph, budget=20, store=None, optimizers=("saturation",))
    assert found.report.improved
    assert "tl.debug_barrier()" in found.triton
    folder = found.save(tmp_path / "bundle")
    assert json.loads((folder / "bundle.json").read_text())["overwrites"] == {"1": 4, "2": 5}
    assert "unverified" not in json.loads((folder / "artifact.json").read_text())
    assert "Overwrites k_cache, v_cache." in (folder / "launch.py").read_text()
    done = subprocess.run(
        [sys.executable, str(folder / "run.py"), "--device=interpreter", "--distributions=ordinary"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert replay(graph, found.schedule, Diagnostics()).optimized.aliases == graph.aliases


# --- PyTorch ----------------------------------------------------------------------------------------------


def modules() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    torch: Any = pytest.importorskip("torch")

    class Assigns(torch.nn.Module):
        def forward(self, x: Any, cache: Any) -> Any:
            cache[:, 6:8] = torch.exp(x)
            return cache.relu().sum(1)

    class Copies(torch.nn.Module):
        def forward(self, x: Any, cache: Any) -> Any:
            cache.index_copy_(1, torch.tensor([2, 3]), x)
            return cache

    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.register_buffer("cache", torch.ones(4, 8, 16))

        def forward(self, x: Any) -> Any:
            self.cache[:, 6:] = x
            return self.cache.sum(1)

    class Shifts(torch.nn.Module):
        def forward(self, x: Any, cache: Any) -> Any:
            cache[:, 1:] = cache[:, :-1].clone()
            return x + 1

    x, cache = torch.randn(4, 2, 16), torch.randn(4, 8, 16)
    return {
        "assigns": (Assigns(), (x, cache)), "copies": (Copies(), (x, cache)),
        "keeps": (Keeps(), (x,)), "shifts": (Shifts(), (x, cache)),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["assigns", "copies", "keeps", "shifts"])
def test_modules_overwrite_what_they_assign_to_and_nothing_else(name: str) -> None:
    module, inputs = modules()[name]
    twin, given = modules()[name]
    given = tuple(t.clone() for t in inputs)
    optimized = superopt.optimize(module, inputs, budget=2, store=None)
    wanted = twin(*given)
    assert optimized(*inputs).allclose(wanted, atol=1e-4)
    for mine, theirs in zip(inputs, given, strict=True):
        assert mine.allclose(theirs, atol=1e-4)
    for mine, theirs in zip(module.buffers(), twin.buffers(), strict=True):
        assert mine.allclose(theirs, atol=1e-4)
