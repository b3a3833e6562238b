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


# What random programs do with two values of one shape, whose last two extents are the same.
_OPS = ("add", "sub", "mul", "max", "matmul", "exp", "square", "symmetric", "mean", "constant")
_Step = tuple[str, int, int]


def steps_of(rng: random.Random) -> tuple[tuple[int, ...], list[_Step], list[int]]:
    """A shape, operators on values by their numbers, and what is returned; some of it is read, or twice there."""
    n = rng.choice((3, 4, 6))
    shape = rng.choice(((n, n), (1, n, n), (2, n, n), (n, n, n)))
    steps = [
        (rng.choice(_OPS), rng.randrange(max(0, i - 1), i + 2), rng.randrange(i + 2))
        for i in range(rng.randint(4, 8))
    ]
    made = range(2, len(steps) + 2)
    returned = [i for i in made if i == made[-1] or rng.random() < 0.3]
    return shape, steps, [*returned, *rng.sample(returned, rng.randrange(2))]


def written(
    shape: tuple[int, ...],
    steps: list[_Step],
    returned: list[int],
    rng: random.Random,
    *,
    ordered: bool = True,
    fault: str = "",
) -> KernelGraph:
    """The program; unless `ordered`, it holds each value in some order, joined or not. A `fault` is in one place."""
    f, inputs = Builder(), [value(*shape), value(*shape)]
    rank, last = len(shape), (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    held: list[tuple[Value, tuple[int, ...]]] = [(v, (*range(rank),)) for v in inputs]
    at = rng.randrange(len(steps) + len(returned))

    def read(number: int, *, wrong: bool = False) -> Value:
        v, perm = held[number]
        stored = tuple(shape[i] for i in perm)
        v = v if v.shape == stored else f("reshape", v, shape=stored)
        back = tuple(sorted(range(rank), key=perm.__getitem__))
        if wrong:  # in another order of the same type
            back = tuple(back[i] for i in last)
        return v if back == (*range(rank),) else f("transpose", v, perm=back)

    for number, (op, first, second) in enumerate(steps):
        wrong = number == at and fault
        x, y = read(first, wrong=wrong == "order"), read(max(0, second - 1) if wrong == "value" else second)
        if op in ("exp", "square"):
            made = f(op, x)
        elif op == "constant":
            made = f("add", x, f.constant(3.0 if wrong == "number" else 1.0, (1,) * rank))
        elif op == "mean":
            made = f("sub", x, f("reduce_mean", x, dims=(rank - 1,), keepdims=True))
        elif op == "symmetric":
            made = f("add", x, f("transpose", x, perm=last))
        elif op == "matmul" and not ordered:  # (y' x')'
            turned = (f("transpose", v, perm=last) for v in (y, x))
            made = f("transpose", f("matmul", *turned), perm=last)
        else:
            made = f(op, x, y)
        perm = (*range(rank),) if ordered else tuple(rng.sample(range(rank), rank))
        made = made if perm == (*range(rank),) else f("transpose", made, perm=perm)
        if not ordered and rng.random() < 0.3:
            made = f("reshape", made, shape=(math.prod(shape),))
        held.append((made, perm))
    given = [
        read(v, wrong=fault == "order" and at == number)
        for number, v in enumerate(returned, start=len(steps))
    ]
    return KernelGraph("main", inputs, f.nodes, given)


def same_numbers(a: KernelGraph, b: KernelGraph) -> bool:
    """Whether both compute the same in fp64, wherever both are finite."""
    rng = np.random.default_rng(0)
    given = [Tensor((rng.uniform(0.2, 1.2, v.shape),)) for v in a.inputs]
    with np.errstate(all="ignore"):
        pairs = zip(evaluate(a, given, FloatDomain()), evaluate(b, given, FloatDomain()), strict=True)
        return all(np.allclose(x.planes[0], y.planes[0], rtol=1e-7, equal_nan=True) for x, y in pairs)


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_programs_that_hold_all_in_other_orders_are_the_same_and_with_a_fault_are_not(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged by their numbers at full extents; large programs are those that are compared in pieces."""
    for name in ("FORMAL_WORK", "BLOCKS_WORK", "PIECE_WORK"):
        monkeypatch.setattr(certifier, name, 1)
    in_pieces = refused = 0
    for seed in range(start, start + 20):
        drawn = steps_of(random.Random(seed))
        first = written(*drawn, random.Random(seed))
        right = written(*drawn, random.Random(seed), ordered=False)
        certificate = certify(first, right).certificate
        assert certificate, seed
        in_pieces += "pieces" in "; ".join(certificate.notes)
        for fault in ("order", "value", "number"):
            wrong = written(*drawn, random.Random(seed), ordered=False, fault=fault)
            if not same_numbers(first, wrong):
                refused += 1
                assert not certify(first, wrong).equivalent, (seed, fault)
    assert in_pieces > 12
    assert refused > 12
