"""Dimensions cut at several places: reduced extents keep every region apart, and the checker looks into each."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from certify_support import program
from random_programs import Builder

from superopt.program import KernelGraph, Value
from superopt.verify import certifier as certifier_module
from superopt.verify import certify
from superopt.verify.axes import Factor, Joined, dim, leaves, reduced
from superopt.verify.checker import compare
from superopt.verify.cuts import _alike, settle
from superopt.verify.hashing import canonical_text
from superopt.verify.reduce import fewer_blocks, reduce_extents

E = 4000
Steps = Sequence[tuple[int, float]]  # lengths, and the number there


@pytest.fixture(params=["whole", "blocks"])
def small_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certify at reduced extents first; "blocks": never whole, as the largest programs."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    if request.param == "blocks":
        monkeypatch.setattr(certifier_module, "BLOCKS_WORK", 0)
        monkeypatch.setattr(certifier_module, "BLOCKS_ELEMENTS", 0)


def steps(b: Builder, lengths: Steps, *, outer: int = 1) -> Value:
    """A row of numbers that changes at some places."""
    parts = [b("constant", value=v, shape=(outer, n), dtype="f32") for n, v in lengths]
    return b("concat", *parts, dim=1)


def scaled(*rows: Steps, extent: int = E) -> KernelGraph:
    """x times each of the rows."""

    def build(b: Builder, x: Value) -> Value:
        for row in rows:
            x = b("mul", x, steps(b, row))
        return x

    return program([(4, extent)], build)


def numbers(rows: Sequence[Steps]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.prod([np.concatenate([np.full(n, v) for n, v in row]) for row in rows], axis=0)


UNLIKE = {
    "one way and the other": ([(1000, 2.0), (3000, 3.0)], [(3000, 2.0), (1000, 3.0)], [(1000, 4.0), (3000, 9.0)]),
    "halves and a quarter": ([(2000, 2.0), (2000, 3.0)], [(1000, 2.0), (3000, 3.0)], [(1000, 4.0), (3000, 9.0)]),
    "one apart": ([(1999, 2.0), (2001, 3.0)], [(2000, 2.0), (2000, 3.0)], [(1999, 4.0), (2001, 9.0)]),
    "the ends": ([(1, 2.0), (3999, 3.0)], [(3999, 2.0), (1, 3.0)], [(1, 4.0), (3999, 9.0)]),
    "three parts": (
        [(1000, 2.0), (1000, 3.0), (2000, 5.0)], [(1000, 2.0), (2000, 3.0), (1000, 5.0)],
        [(1000, 4.0), (1000, 9.0), (2000, 25.0)],
    ),
    "primes": ([(1009, 2.0), (2991, 3.0)], [(2003, 2.0), (1997, 3.0)], [(1009, 4.0), (2991, 9.0)]),
}  # fmt: skip


@pytest.mark.usefixtures("small_only")
@pytest.mark.parametrize("case", UNLIKE)
def test_cuts_that_differ_are_not_taken_for_one(case: str):
    first, second, joined = UNLIKE[case]
    wrong, right = scaled(first, second), scaled(joined)
    verdict = certify(wrong, right)
    assert verdict.counterexample is not None
    compared = compare(canonical_text(wrong), canonical_text(right), elements=2)
    assert compared.different is not None  # one of the regions where they differ


@pytest.mark.usefixtures("small_only")
@pytest.mark.parametrize("case", UNLIKE)
def test_cuts_of_both_are_proved_at_reduced_extents(case: str):
    """All cuts of both, side by side, are the product: small extents do, with a bound."""
    first, second, _ = UNLIKE[case]
    row = numbers([first, second])
    places = [0, *(np.flatnonzero(np.diff(row)) + 1), E]
    both = [(int(b - a), float(row[a])) for a, b in itertools.pairwise(places)]
    pair = reduce_extents(scaled(first, second), scaled(both))
    assert pair is not None
    assert pair[0].inputs[0].shape[1] <= 16
    verdict = certify(scaled(first, second), scaled(both))
    assert verdict.certificate is not None
    assert verdict.certificate.delta is not None


@pytest.mark.usefixtures("small_only")
def test_random_cuts_against_numpy():
    drawn = random.Random(5)

    def row() -> Steps:
        cuts = sorted(
            {
                0,
                240,
                *(drawn.choice((1, 60, 80, 119, 120, 121, 160, 239)) for _ in range(drawn.randint(1, 2))),
            }
        )
        return [(b - a, drawn.choice((2.0, 3.0))) for a, b in itertools.pairwise(cuts)]

    accepted = 0
    for _ in range(60):
        first, second = (
            [row() for _ in range(drawn.randint(1, 2))],
            [row() for _ in range(drawn.randint(1, 2))],
        )
        equal = bool((numbers(first) == numbers(second)).all())
        verdict = certify(scaled(*first, extent=240), scaled(*second, extent=240))
        assert verdict.equivalent == equal
        accepted += equal
    assert accepted >= 2


def _blocks(
    rows: int,
    lengths: tuple[int, int],
    parts: tuple[tuple[int, int], tuple[int, int]],
    whole: tuple[int, int],
):
    """Sums of blocks of cat(x, y), and the sums of blocks of each of x and y side by side."""

    def sums(b: Builder, x: Value, shape: tuple[int, int]) -> Value:
        return b("reduce_sum", b("reshape", x, shape=(rows, *shape)), dims=(2,), keepdims=False)

    def first(b: Builder, x: Value, y: Value) -> Value:
        return sums(b, b("concat", x, y, dim=1), whole)

    def second(b: Builder, x: Value, y: Value) -> Value:
        return b("concat", *(sums(b, v, p) for v, p in zip((x, y), parts, strict=True)), dim=1)

    types = [(rows, n) for n in lengths]
    return program(types, first), program(types, second)


@pytest.mark.parametrize(
    ("lengths", "parts", "whole", "equal"),
    [
        ((1500, 2500), ((3, 500), (1, 2500)), (4, 1000), False),
        ((2000, 3000), ((4, 500), (1, 3000)), (5, 1000), False),
        ((2000, 3000), ((2, 1000), (3, 1000)), (5, 1000), True),
        ((1008, 16), ((63, 16), (1, 16)), (64, 16), True),
        ((1008, 16), ((126, 8), (2, 8)), (128, 8), True),
        ((1008, 16), ((63, 16), (2, 8)), (65, 16), False),
    ],
)
def test_blocks_of_a_part_are_those_of_the_whole(
    lengths: tuple[int, int],
    parts: tuple[tuple[int, int], tuple[int, int]],
    whole: tuple[int, int],
    equal: bool,
):
    if sum(lengths) != whole[0] * whole[1]:
        whole = (sum(lengths) // 16, 16)
        parts = ((parts[0][0], 16), (1, 16))
        equal = True
    first, second = _blocks(2, lengths, parts, whole)
    pair = reduce_extents(first, second)
    small = pair is not None and certify(*pair).equivalent
    assert small <= equal
    assert certify(first, second).equivalent == equal
    if equal:
        assert small


def test_a_fixed_block_is_the_same_one(monkeypatch: pytest.MonkeyPatch):
    """Halves of a concatenation beside a cut at 1500: 1500 lies in the first half of both."""

    def first(b: Builder, x: Value) -> Value:
        y = b("mul", x, steps(b, [(1500, 2.0), (2500, 3.0)]))
        return b("mul", y, steps(b, [(2000, 2.0), (2000, 3.0)]))

    def second(b: Builder, x: Value) -> Value:
        return b("mul", x, steps(b, [(2000, 4.0), (2000, 9.0)]))

    a, c = program([(4, E)], first), program([(4, E)], second)
    for shrink in (reduce_extents, fewer_blocks):
        pair = shrink(a, c)
        assert pair is None or not certify(*pair).equivalent


# --- the extents themselves -----------------------------------------------------------------------------------


def test_chosen_extents_are_in_the_order_of_the_full_ones():
    """Three wholes of one factor and random cuts: the map of places is one to one, in order, and regions stay two."""
    drawn = random.Random(2)
    for _ in range(200):
        extent = drawn.choice((7, 40, 1000))
        whole = Factor(extent)
        relations: list[Joined] = []
        for _ in range(drawn.randint(1, 3)):
            cut = drawn.randrange(1, extent)
            relations.append(Joined([whole], ([Factor(cut)], [Factor(extent - cut)])))
        settle(relations)
        assert all(r.holds() for r in relations)
        places = {0: 0, extent: reduced([whole])}
        for r in relations:
            full, small = (math_prod(leaves(r.pieces[0]), key) for key in (_size, _reduced))
            assert places.setdefault(full, small) == small
        for (a, x), (b, y) in itertools.pairwise(sorted(places.items())):
            assert min(b - a, 2) <= y - x <= b - a


def _size(f: Factor) -> int:
    return f.size


def _reduced(f: Factor) -> int:
    return f.reduced


def math_prod(factors: Sequence[Factor], key: Callable[[Factor], int]) -> int:
    result = 1
    for f in factors:
        result *= key(f)
    return result


def cut_at(whole: Sequence[tuple[int, int]], *pieces: Sequence[tuple[int, int]]) -> list[Joined]:
    """One dimension of these factors cut in several ways; sizes are (full, reduced)."""
    dim = [Factor(full, chosen=small) for full, small in whole]
    return [Joined(dim, tuple([Factor(full, chosen=small)] for full, small in cuts)) for cuts in pieces]


ROW = [(4000, 8)]


@pytest.mark.parametrize(
    ("whole", "pieces", "alike"),
    [
        (ROW, [[(1000, 2), (3000, 6)], [(1000, 2), (1000, 2), (2000, 4)]], True),
        (ROW, [[(1000, 2), (3000, 6)], [(1000, 4), (1000, 2), (2000, 2)]], False),  # one place becomes two
        (ROW, [[(1000, 2), (3000, 6)], [(2000, 2), (2000, 6)]], False),  # two places become one
        (ROW, [[(3999, 7), (1, 1)]], True),
        ([(10, 5), (100, 2)], [[(700, 6), (300, 4)]], True),
        ([(10, 3), (100, 2)], [[(700, 4), (300, 2)]], False),  # a region of three blocks keeps one
    ],
)
def test_places_and_regions_are_kept(
    whole: Sequence[tuple[int, int]], pieces: Sequence[Sequence[tuple[int, int]]], alike: bool
):
    assert _alike(cut_at(whole, *pieces)) == alike


def test_the_end_of_a_block_stays_among_those_of_others():
    """The first block of the part ends behind that of the whole, at 4 and at 3; here it would be before, at 2 and 3."""
    whole = [Factor(5, chosen=3), Factor(3, chosen=3)]
    part = [Factor(3, chosen=3), Factor(4, chosen=2)]
    joined = Joined(whole, (part, [Factor(3, chosen=3)]))
    assert joined.holds()
    assert not _alike([joined])


@pytest.mark.parametrize(
    ("extent", "tiles"),
    [(577, (32, 64, 128)), (1500, (16, 64, 256)), (197, (16, 32, 64)), (50257, (64, 128)), (127, (16, 64))],
)
def test_ragged_tiles_of_several_sizes_shrink(extent: int, tiles: tuple[int, ...]) -> None:
    """Products of one axis in tiles of several sizes, none of which divides it."""
    whole = dim(extent)
    joined = [Joined([*dim(-(-extent // t)), *dim(t)], (whole, dim(-extent % t)), ragged=True) for t in tiles]
    settle(joined)
    assert all(j.holds() for j in joined)
    assert reduced(whole) <= 80
    small = [reduced(j.whole[1:]) for j in joined]
    for tile, less, j in zip(tiles, small, joined, strict=True):
        assert reduced(whole) % less, "the last tile stays ragged"
        assert reduced(j.whole[:1]) >= min(extent // tile, 2)
    assert sorted(set(small)) == small, "larger tiles stay larger"
