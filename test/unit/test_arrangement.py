"""Values that hold the elements of others in another order: found, written as operators, and cut at."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from random_programs import Builder, value

from superopt.program import KernelGraph, Value
from superopt.verify import certifier, certify
from superopt.verify.arrangement import arrangement, multiset
from superopt.verify.domains import FloatDomain, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import P, Q
from superopt.verify.pieces import cut


def grown(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Full extents of reduced ones."""
    return tuple(3 * n if n > 1 else 1 for n in shape)


@pytest.mark.parametrize("seed", range(60))
def test_an_arrangement_is_found_and_holds_at_full_extents(seed: int) -> None:
    """Of a transposed value, whose neighbours are joined before, or after; and of none that is shuffled."""
    rng = random.Random(seed)
    shape = tuple(rng.choice((1, 2, 3, 5)) for _ in range(rng.randint(1, 5)))
    perm = rng.sample(range(len(shape)), len(shape))

    def joined(of: tuple[int, ...]) -> tuple[int, ...]:
        at = rng.randint(0, len(of) - 1)
        return *of[:at], math.prod(of[at : at + 2]), *of[at + 2 :]

    small, full = (np.random.default_rng(seed).permutation(math.prod(s)) for s in (shape, grown(shape)))
    small, full = small.reshape(shape), full.reshape(grown(shape))
    made, wanted = small.transpose(perm), full.transpose(perm)
    which, state = rng.choice(("none", "after", "before")), rng.getstate()
    if which == "after":
        made = made.reshape(joined(made.shape))
        rng.setstate(state)
        wanted = wanted.reshape(joined(wanted.shape))
    elif which == "before":
        small = small.reshape(joined(small.shape))
        rng.setstate(state)
        full = full.reshape(joined(full.shape))
    found = arrangement((full.shape, small), (wanted.shape, made))
    assert found is not None
    assert np.array_equal(found[1](small), made)
    assert np.array_equal(found[0](full), wanted)
    source, result = (Value(value(*a.shape).type) for a in (full, wanted))
    if nodes := found[0].nodes(source, result):
        graph = KernelGraph("f", [source], nodes, [result])
        (given,) = evaluate(graph, [Tensor((full.astype(float),))], FloatDomain())
        assert np.array_equal(given.planes[0], wanted)
    assert multiset(small) == multiset(made)
    shuffled = np.random.default_rng(seed + 1).permutation(small.ravel()).reshape(small.shape)
    if small.size > 8:
        assert multiset(shuffled) == multiset(small)
        assert arrangement((full.shape, shuffled), (wanted.shape, made)) is None


def test_other_elements_have_another_hash() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        a = rng.integers(0, 1 << 62, 24, dtype=np.uint64)
        b = a.copy()
        b[rng.integers(24)] += 1
        assert multiset(a) != multiset(b)


def network(*, last: bool, wrong: bool = False) -> KernelGraph:
    """exp(x w1) w2 for three matrices; where `last`, with the rows last, or `wrong`ly read for the columns."""
    x, w1, w2 = inputs = [value(32, 16), value(16, 32), value(32, 8)]
    f = Builder()
    if last:
        stored = f("exp", f("matmul", f("transpose", w1, perm=(1, 0)), f("transpose", x, perm=(1, 0))))
        stored = f("reshape", stored, shape=(4, 8, 32))
        stored = f("reshape", stored, shape=(32, 32))
        result = f("matmul", f("transpose", w2, perm=(1, 0)), stored, transpose_b=wrong)
        return KernelGraph("main", inputs, f.nodes, [f("transpose", result, perm=(1, 0))])
    rows = f("exp", f("matmul", x, w1))
    return KernelGraph("main", inputs, f.nodes, [f("matmul", rows, w2)])


def test_a_cut_is_where_the_elements_are_stored_in_another_order() -> None:
    first, second = network(last=False), network(last=True)
    pieces = cut(first, second, (first, second), 0, (P, Q))
    assert pieces
    assert max([n.op for n in p.second.nodes].count("matmul") for p in pieces) == 1


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_stored_in_another_order_is_read_so(monkeypatch: pytest.MonkeyPatch, *, wrong: bool) -> None:
    """A square matrix whose rows are read for its columns is another one."""
    for name in ("FORMAL_WORK", "BLOCKS_WORK", "PIECE_WORK"):
        monkeypatch.setattr(certifier, name, 1)
    verdict = certify(network(last=False), network(last=True, wrong=wrong))
    assert verdict.equivalent == (not wrong)
    if verdict.certificate is not None:
        assert "pieces" in "; ".join(verdict.certificate.notes)


def test_what_is_returned_and_read_is_proved_for_both() -> None:
    """The first program computes twice what the second one returns, and reads: it has to be both."""
    x = value(8, 8)
    f, g = Builder(), Builder()
    read, returned = f("exp", x), f("exp", x)
    first = KernelGraph("main", [x], f.nodes, [returned, f("matmul", read, x)])
    other = value(8, 8)
    both = g("exp", other)
    second = KernelGraph("main", [other], g.nodes, [both, g("matmul", both, other)])
    pieces = cut(first, second, (first, second), 0, (P, Q), alike=True)
    assert pieces
    assert {returned, read} <= {v for p in pieces for v in p.first.outputs}
