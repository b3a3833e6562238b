"""What a kernel reads from before it: programs of concatenations and slice updates, in any cut into kernels."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from parse_terms import parse_terms

from superopt.cost import target
from superopt.program import KernelGraph, Value
from superopt.transforms.tile_saturation import accesses, kernel_builder, to_kernels
from superopt.transforms.tile_saturation.exposed import exposed
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer
from superopt.transforms.tile_saturation.search import propose
from superopt.transforms.tile_saturation.terms import StatementTerm, TermTensor
from superopt.verify import certify

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.trinity.programs import Builder

H100 = target("sm_90")
TENSORS = """
input x[8, 4], y[4, 4]
temporary t[8, 4], s[8, 1]
output out[8, 4]
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("t[:, :] = x[:, :]\nout[:, :] = t[:, :]", "x"),
        ("t[0:4, :] = y[:, :]\nout[:, :] = t[:, :]", "y t"),
        ("t[0:4, :] = y[:, :]\nt[4:8, :] = y[:, :]\nout[:, :] = t[:, :]", "y"),
        ("t[4:8, :] = y[:, :]\nt[0:4, :] = y[:, :]\nout[2:6, :] = t[2:6, :]", "y"),
        ("for n in 0..8 by 2:\n  t[n, :] = x[n, :]\nout[:, :] = t[:, :]", "x"),
        ("for n in 0..8 by 2:\n  t[n, :] = x[n, :]\n  out[n, :] = t[n, :]", "x"),
        ("for n in 0..8 by 2:\n  t[n, :] = x[n, :]\n  out[:, :] = t[:, :]", "x t"),
        ("for n in 0..4 by 2:\n  t[n, :] = y[n, :]\nout[:, :] = t[:, :]", "y t"),
        ("start s[:, :] = 0\nfor k in 0..4 by 2:\n  s[:, :] = (s[:, :] + reduce_sum(x[:, k], dims=-1))", "x"),
        ("for k in 0..4 by 2:\n  s[:, :] = (s[:, :] + reduce_sum(x[:, k], dims=-1))", "x s"),
    ],
)
def test_what_is_read_before_it_is_written(body: str, expected: str) -> None:
    program = parse_terms(TENSORS + body + "\n")
    assert {t.name for t in exposed(program.body)} == set(expected.split())


def moving(seed: int) -> KernelGraph:
    """A concatenation or a slice update of computed parts, and what is computed from it."""
    r = random.Random(seed)
    b = Builder("moving", "f16")
    rank = r.choice([2, 2, 3])
    shape = [r.choice([1, 2, 4, 16]) for _ in range(rank - 2)] + [
        r.choice([2, 16, 64, 128]) for _ in range(2)
    ]
    dim = r.randrange(rank)
    parts: list[Value] = []
    for i in range(2):
        x = b.input(f"x{i}", *(r.choice([1, 16, 48, 112]) if d == dim else e for d, e in enumerate(shape)))
        if rank == 2 and r.random() < 0.3:
            x = b.op("matmul", x, b.input(f"w{i}", x.shape[1], x.shape[1]))
        parts.append(b.op(r.choice(["exp", "square", "silu"]), x) if r.random() < 0.6 else x)
    y = b.op("concat", *parts, dim=dim)
    if r.random() < 0.3:
        new = b.input("new", *(1 if d == dim else e for d, e in enumerate(y.shape)))
        y = b.op("update_slice", y, new, dim=dim, offset=r.randrange(y.shape[dim]))
    z = b.op("square", y)
    how = r.choice(["sum", "concat", "none"])
    if how == "sum":
        z = b.op("reduce_sum", z, dims=(r.randrange(rank),), keepdims=True)
    elif how == "concat":
        z = b.op("concat", z, b.input("z", *y.shape), dim=r.randrange(rank))
    return b.outputs(z, *([y] if r.random() < 0.3 else []))


def refused(seed: int) -> tuple[int, int]:
    """How many candidates there are, and how many of them are no equal programs."""
    graph = moving(seed)
    found = propose(graph, H100, budget=300, options=SaturationOptimizer(best=6))
    candidates = {id(c): c for c in [*found.graphs, *(them[0].graph for them in found.by_kernels.values())]}
    return len(candidates), sum(not certify(graph, c).equivalent for c in candidates.values())


# Without the guard, some candidates of the last are wrong.
SEEDS = (*range(15), 66)


def test_candidates_write_what_they_read() -> None:
    counts = [refused(seed) for seed in SEEDS]
    assert [wrong for _, wrong in counts] == [0] * len(counts)
    assert sum(some > 0 for some, _ in counts) > len(counts) * 3 // 4


def first_access(body: Sequence[StatementTerm]) -> set[TermTensor]:
    """The guard weakened: tensors whose first access is a load, whatever part of them that is."""
    first: dict[TermTensor, str] = {}
    for access in accesses.accesses(body):
        first.setdefault(access.region.tensor, access.kind)
    return {t for t, kind in first.items() if kind == "load"}


def test_without_the_guard_kernels_read_what_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (accesses, kernel_builder, to_kernels):
        monkeypatch.setattr(module, "exposed", first_access)
    assert any(refused(seed)[1] for seed in SEEDS)
