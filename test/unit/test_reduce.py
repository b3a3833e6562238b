"""Reduced extents of dimensions that others are joined to: caches that grow, halves, parts of buffers."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_programs import Builder, value

from superopt.program import (
    Compute,
    KernelGraph,
    Load,
    Loop,
    Node,
    Statement,
    Store,
    TileProgram,
    Value,
    Window,
)
from superopt.transforms.lower import lower
from superopt.verify import certifier as certifier_module
from superopt.verify import certify
from superopt.verify.axes import Factor, Joined, leaves, reduced
from superopt.verify.cuts import settle
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.reduce import fewer_blocks, reduce_extents, work

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.trinity.programs import CONFIGS, build


def cached_attention(cache: int, new: int) -> KernelGraph:
    """Scores of `new` queries against a cache of keys and as many new ones, summed by their values."""
    f = Builder()
    q, fresh, keys, values = inputs = [
        value(new, 32),
        value(new, 32),
        value(cache, 32),
        value(cache + new, 48),
    ]
    every = f("concat", keys, fresh, dim=0)
    scores = f("exp", f("matmul", q, every, transpose_b=True))
    total = f("reduce_sum", scores, dims=(1,), keepdims=True)
    return KernelGraph("main", inputs, f.nodes, [f("matmul", f("div", scores, total), values), every])


@pytest.mark.parametrize(
    ("cache", "new", "most"),
    [
        (1008, 16, 12),
        # Blocks of 64 rows, each copied in two trips: two blocks of two trips of two rows before and after the cut.
        (768, 256, 2 * 2 * 2 * 2),
    ],
)
def test_a_cache_and_what_is_appended_shrink(cache: int, new: int, most: int) -> None:
    graph = cached_attention(cache, new)
    for other, least in ((parse(canonical_text(graph)), 4), (lower(graph), most)):
        pair = reduce_extents(graph, other)
        assert pair
        for small in pair:
            rows = [small.inputs[2].shape[0], small.inputs[1].shape[0]]
            assert small.outputs[1].shape[0] == sum(rows) <= least
            assert all(2 <= n <= 10 for n in rows)
        assert work(pair[1]) < 100_000
    certificate = certify(graph, lower(graph)).certificate
    assert certificate
    formal = [t for t in certificate.tests if t.kind == "formal"]
    assert formal
    assert formal[0].extents == "reduced"


def _windows(body: list[Statement], change: Any) -> list[Statement]:
    """The statements with the windows that `change` gives for each of them."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Loop):
            out.append(replace(s, body=_windows(s.body, change)))
        elif isinstance(s, Compute):
            out.append(s)
        else:
            out.append(replace(s, windows=tuple(change(w, s) for w in s.windows)))
    return out


def _mutants(graph: KernelGraph) -> list[KernelGraph]:
    """Programs whose windows into joined dimensions begin elsewhere, each changed at one place."""
    found: list[KernelGraph] = []
    for position, node in enumerate(graph.nodes):
        if not isinstance(node.body, TileProgram):
            continue
        places = sum(isinstance(s, Load | Store) for s in node.body.statements())
        for place in range(places):
            for shift in (-16, 16):
                seen = -1

                def change(w: Window, s: Load | Store, place: int = place, shift: int = shift) -> Window:
                    nonlocal seen, last
                    if s is not last:
                        seen, last = seen + 1, s
                    moved = seen == place and s.buffer.type.shape[0] > 48 and w is s.windows[0]
                    return replace(w, base=max(w.base + shift, 0)) if moved else w

                last: Any = None
                body = _windows(node.body.body, change)
                nodes: list[Node] = list(graph.nodes)
                nodes[position] = replace(node, body=replace(node.body, body=body))
                mutant = KernelGraph("main", graph.inputs, nodes, graph.outputs)
                if canonical_text(mutant) != canonical_text(graph):
                    found.append(mutant)
    return found


def overwritten(offset: int, rows: int = 1024, new: int = 16) -> KernelGraph:
    """Scores against a cache, after new keys were written into it."""
    f = Builder()
    q, fresh, cache = inputs = [value(new, 32), value(new, 32), value(rows, 32)]
    keys = f("update_slice", cache, fresh, dim=0, offset=offset)
    scores = f("exp", f("matmul", q, keys, transpose_b=True))
    total = f("reduce_sum", scores, dims=(1,), keepdims=True)
    return KernelGraph("main", inputs, f.nodes, [f("div", scores, total), keys])


@pytest.mark.parametrize("offset", [0, 1, 16, 500, 1007, 1008])
def test_what_is_overwritten_in_part_shrinks(offset: int) -> None:
    graph = overwritten(offset)
    pair = reduce_extents(graph, parse(canonical_text(graph)))
    assert pair
    q, fresh, cache = pair[0].inputs
    before = int(str(pair[0].nodes[0].attrs["offset"]))
    assert q.shape == fresh.shape
    assert cache.shape[0] <= 8
    behind = cache.shape[0] - before - fresh.shape[0]
    for full, small in ((offset, before), (1008 - offset, behind)):
        assert min(full, 2) <= small <= full
    certificate = certify(graph, lower(graph)).certificate
    assert certificate
    assert certificate.delta is not None
    assert certificate.delta <= 1e-9


@pytest.mark.parametrize(("one", "other"), [(1007, 1008), (0, 16), (0, 1), (500, 508), (16, 1000)])
def test_other_rows_overwritten_are_noticed_at_reduced_extents(one: int, other: int) -> None:
    pair = reduce_extents(overwritten(one), overwritten(other))
    assert pair is None or not certify(*pair).equivalent
    assert not certify(overwritten(one), overwritten(other)).equivalent


def test_windows_that_begin_elsewhere_are_noticed() -> None:
    graph = cached_attention(112, 16)
    lowered = lower(graph)
    assert certify(graph, lowered).equivalent
    mutants = _mutants(lowered)
    assert len(mutants) >= 4
    for mutant in mutants:
        assert not certify(graph, mutant).equivalent


def test_what_is_joined_the_other_way_round_is_noticed_at_reduced_extents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)

    def joined(*order: int) -> KernelGraph:
        f = Builder()
        inputs = [value(1008, 8), value(16, 8)]
        every = f("concat", *(inputs[i] for i in order), dim=0)
        return KernelGraph("main", inputs, f.nodes, [f("square", every)])

    pair = reduce_extents(joined(0, 1), joined(1, 0))
    assert pair is None or max(map(work, pair)) < 1000
    assert not certify(joined(0, 1), joined(1, 0)).equivalent


def test_blocks_of_a_part_of_a_buffer_shrink_with_it() -> None:
    """Two kernels that each write a part: fewer blocks of one are a smaller buffer."""
    graph = cached_attention(1024, 512)
    fewer = fewer_blocks(graph, lower(graph))
    if fewer is not None:
        assert fewer[0].outputs[1].shape[0] == fewer[0].inputs[2].shape[0] + fewer[0].inputs[1].shape[0]
    assert certify(graph, lower(graph)).equivalent


# --- sums of factors --------------------------------------------------------------------------------------


def _joined(whole: list[Factor], *pieces: list[Factor]) -> Joined:
    return Joined(whole, pieces)


def test_extents_add_up() -> None:
    loop, tile, cache, block, new = (Factor(n) for n in (64, 16, 63, 16, 16))
    relation = _joined([loop, tile], [cache, block], [new])
    settle([relation])
    assert relation.holds()
    assert all(2 <= f.reduced <= 4 for f in (loop, tile, cache, block, new))
    assert reduced(relation.whole) <= 8


# Dimensions that caches, weights and tiles of three models cut: the factors of the whole and of its pieces by
# name, outermost first; factors of one name are one.
CUT_ACROSS = {
    "tiles of 256 and 128 rows, the last of which is cut": (
        {"a": 4, "b": 2, "c": 128, "d": 63, "e": 16, "f": 4, "g": 4},
        ["abc=de+fg"],
        40,
    ),
    "a cut at a quarter of the last tile": (
        {"a": 8, "b": 2, "c": 64, "d": 63, "e": 16, "f": 2, "g": 2, "h": 4},
        ["abc=de+fgh"],
        80,
    ),
    "rows summed in two pieces, and covered by longer tiles that reach past the end": (
        {"a": 71, "b": 2, "c": 32, "d": 4096, "e": 448, "f": 5, "g": 1024, "h": 576},
        ["abc=d+e", "fg=abc+h"],
        40,
    ),
    "two kernels whose tiles reach past the end, of equal extents": (
        {"a": 71, "b": 64, "d": 4096, "e": 448, "f": 5, "g": 1024, "h": 576, "i": 5, "j": 1024, "k": 576},
        ["ab=d+e", "fg=ab+h", "ij=ab+k"],
        20,
    ),
}


@pytest.mark.parametrize("case", CUT_ACROSS)
def test_cuts_across_tiles_shrink_with_them(case: str) -> None:
    sizes, sums, most = CUT_ACROSS[case]
    factors = {name: Factor(size) for name, size in sizes.items()}

    def of(names: str) -> list[Factor]:
        return [factors[n] for n in names]

    relations: list[Joined] = []
    for text in sums:
        whole, pieces = text.split("=")
        relations.append(_joined(of(whole), *map(of, pieces.split("+"))))
    settle(relations)
    for relation in relations:
        assert relation.holds()
        assert reduced(relation.whole) <= most
        # Each cut lies behind as many whole tiles, up to two, and on the end of one or not, as at full extents.
        full = small = 0
        for piece in relation.pieces:
            full, small = full + math.prod(f.size for f in leaves(piece)), small + reduced(piece)
            tile = less = 1
            for f in reversed(leaves(relation.whole)):
                assert min(full // tile, 2) <= small // less <= full // tile
                assert (full % tile == 0) == (small % less == 0)
                tile, less = tile * f.size, less * f.reduced
                assert less >= 2


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("vanilla", "falcon_7b"),
        ("vanilla", "llama3_8b"),
        ("roco+gqa", "llama3_8b"),
        ("pre_norm+inplace", "falcon_7b"),
    ],
)
def test_programs_with_caches_have_a_bound_at_reduced_extents(name: str, config: str) -> None:
    graph = build(name, CONFIGS[config])
    # Where the last tile of a mean is cut, it is lowered to a sum over a number.
    pair = reduce_extents(graph, lower(graph), numbers="whole" if "pre_norm" in name else None)
    assert pair
    certificate = certify(*pair).certificate
    assert certificate
    assert certificate.delta is not None
    assert certificate.delta <= 1e-9


def test_extents_that_cannot_add_up_are_kept() -> None:
    whole, left, right = [Factor(8), Factor(8)], Factor(60, fixed=True), Factor(4)
    settle([_joined(whole, [left], [right])])
    assert (reduced(whole), left.reduced, right.reduced) == (64, 60, 4)


def test_equal_cuts_have_equal_pieces() -> None:
    whole = [Factor(100)]
    a, b, c, d = (Factor(n) for n in (60, 40, 60, 40))
    settle([_joined(whole, [a], [b]), _joined(whole, [c], [d])])
    assert leaves([a]) == leaves([c])
    assert leaves([b]) == leaves([d])


def test_sums_that_share_factors_are_chosen_together() -> None:
    a, b, c = Factor(10), Factor(20), Factor(30)
    outer, rest = Factor(50), Factor(20)
    relations = [_joined([c], [a], [b]), _joined([outer], [c], [rest])]
    settle(relations)
    assert all(r.holds() for r in relations)
    assert outer.reduced <= 50


def test_inputs_keep_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs of a pair have the same inputs and outputs, whatever was chosen."""
    graph = cached_attention(1008, 16)
    pair = reduce_extents(graph, lower(graph))
    assert pair

    def types(values: list[Value]) -> list[tuple[int, ...]]:
        return [v.shape for v in values]

    assert types(pair[0].inputs) == types(pair[1].inputs)
    assert types(pair[0].outputs) == types(pair[1].outputs)


@pytest.mark.parametrize("divisors", [(80.0, 1500.0), (120000.0,), (80.0, 1400.0), (1500.0, 1500.0)])
def test_extents_of_one_dimension_of_a_mean_are_constants(divisors: tuple[float, ...]) -> None:
    """A mean over two dimensions is a sum divided by one extent, then by the other, or by both at once."""
    f, x = Builder(), value(1500, 80)
    mean = KernelGraph("main", [x], f.nodes, [f("reduce_mean", f("exp", x), dims=(0, 1))])
    g, y = Builder(), value(1500, 80)
    total = g("reduce_sum", g("reduce_sum", g("exp", y), dims=(1,)), dims=(0,))
    for divisor in divisors:
        total = g("div", total, g("constant", value=divisor, shape=(), dtype="f32"))
    verdict = certify(mean, KernelGraph("main", [y], g.nodes, [total]))
    if math.prod(divisors) != x.type.elements:
        assert not verdict.equivalent
        return
    assert verdict.certificate
    assert verdict.certificate.delta is not None
