"""The native field arithmetic against Python's integers."""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.transforms.core import _field
from superopt.verify import products as products_module
from superopt.verify.domains import exact_residues
from superopt.verify.fields import SCREEN_P, SCREEN_Q, FormalField, ImageField, P, Q
from superopt.verify.products import product
from superopt.verify.small_field import SmallField

CORE = Path(_field.__file__ or "").parent
MODULI = (P, Q)
FIELDS: list[Any] = [_field.Field(P), _field.Field(Q), SmallField(SCREEN_P, P), SmallField(SCREEN_Q, P)]


def _is_prime(n: int) -> bool:
    """Miller and Rabin; with these bases right for every n below 3.3e24."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(base, odd, n)
        if x not in (1, n - 1) and all(pow(x, 2**i, n) != n - 1 for i in range(1, twos)):
            return False
    return True


@pytest.mark.parametrize(("p", "q"), [(P, Q), (SCREEN_P, SCREEN_Q)])
def test_primes(p: int, q: int) -> None:
    assert _is_prime(p)
    assert _is_prime(q)
    assert (p - 1) % q == 0
    assert not _is_prime(p - 2)  # the test can fail


def test_sizes() -> None:
    assert 2**60 < Q < 2**61 < P < 2**62
    assert SCREEN_P < 2**20


def _array(numbers: list[int]) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.uint64)


@settings(max_examples=60)
@given(st.sampled_from(FIELDS), st.lists(st.tuples(st.integers(0), st.integers(0)), min_size=1, max_size=20))
def test_arithmetic(field: Any, pairs: list[tuple[int, int]]) -> None:
    m = int(field.modulus)
    edges = [(m - 1, m - 1), (0, m - 1), (m - 1, 1), (0, 0)]
    xs, ys = zip(*((x % m, y % m) for x, y in (*pairs, *edges)), strict=True)
    a, b = _array(list(xs)), _array(list(ys))
    assert field.add(a, b).tolist() == [(x + y) % m for x, y in zip(xs, ys, strict=True)]
    assert field.sub(a, b).tolist() == [(x - y) % m for x, y in zip(xs, ys, strict=True)]
    assert field.mul(a, b).tolist() == [x * y % m for x, y in zip(xs, ys, strict=True)]
    assert field.neg(a).tolist() == [-x % m for x in xs]
    assert field.power(3, a).tolist() == [pow(3, x, m) for x in xs]
    assert int(field.sum(a)) == sum(xs) % m
    units = _array([x or 1 for x in xs])
    assert field.inverse(units).tolist() == [pow(x or 1, -1, m) for x in xs]


@pytest.mark.parametrize("field", FIELDS)
def test_no_inverse_of_zero(field: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        field.inverse(_array([1, 0, 2]))


@pytest.mark.parametrize("k", [1, 2, 11, 12, 13, 25, 64, 9000])
@pytest.mark.parametrize("field", FIELDS)
def test_matmul(field: Any, k: int) -> None:
    """With residues of the largest size, in every length of the lazily reduced sums, strided and shared."""
    m = int(field.modulus)
    a = field.uniform(1, 2 * 3 * k).reshape(2, 3, k)
    a[0, 0] = m - 1
    b = np.broadcast_to(field.uniform(2, 5 * k).reshape(5, k).T, (2, k, 5)).copy()
    b[:, :, 0] = m - 1
    for right in (b, np.broadcast_to(b[:1], (2, k, 5)), b.transpose(0, 2, 1).copy().transpose(0, 2, 1)):
        product = field.matmul(a, right)
        for s, i, j in ((0, 0, 0), (1, 2, 4), (0, 1, 3)):
            exact = sum(int(x) * int(y) for x, y in zip(a[s, i], right[s, :, j], strict=True)) % m
            assert int(product[s, i, j]) == exact


def test_threads_agree() -> None:
    field: Any = FIELDS[0]
    a, b = field.uniform(1, 64 * 70).reshape(1, 64, 70), field.uniform(2, 70 * 90).reshape(1, 70, 90)
    assert np.array_equal(field.matmul(a, b, threads=3), field.matmul(a, b))


def test_randomness_is_a_function_of_the_key() -> None:
    field: Any = FIELDS[0]
    x = field.uniform(7, 1000)
    assert np.array_equal(x, field.uniform(7, 1000))
    assert not np.intersect1d(x, field.uniform(8, 1000)).size
    assert abs(sum(x.tolist()) / (1000 * P) - 0.5) < 0.03
    keyed = field.keyed(1, _array([5, 6, 5]))
    assert keyed[0] == keyed[2] != keyed[1]
    assert field.keyed(2, _array([5]))[0] != keyed[0]


def test_wrong_moduli_are_refused() -> None:
    for modulus in (0, 17, 2**61, 2**63 + 1):
        with pytest.raises(ValueError, match="modulus"):
            _field.Field(modulus)


# --- max and min ------------------------------------------------------------------------------------------


def test_semilattice() -> None:
    lattice = _field.Semilattice(P, 1, 99, 1000, 1000)
    a, b, c = (_array([n]) for n in (10, 11, 12))
    join = lattice.join
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(c, b)) == lattice.reduce(_array([12, 11, 10]))
    assert join(a, a) == a
    assert join(join(a, b), a) == join(a, b)
    assert join(a, _array([99])) == a
    assert len({int(x[0]) for x in (join(a, b), join(a, c), join(b, c), a, b, c)}) == 6


def test_a_join_is_the_set_of_its_leaves() -> None:
    """Whatever the order, overlaps, and how many are joined at once; of large sets lists are dropped and made again."""
    rng = random.Random(3)
    lattice = _field.Semilattice(P, 1, 0, 10**7, 10**9)
    leaves = [rng.randrange(1, P) for _ in range(6000)]
    made: list[tuple[int, frozenset[int]]] = [(x, frozenset({x})) for x in leaves]
    values: dict[frozenset[int], int] = {s: v for v, s in made}
    for step in range(3000):
        count = rng.choice((2, 2, 2, 2, 3, 7))
        some = [rng.choice(made if step % 50 == 0 else made[:6000]) for _ in range(count - 1)]
        some.append(made[-1])
        rng.shuffle(some)
        given = _array([v for v, _ in some])
        join = lattice.join(given[:1], given[1:])[0] if count == 2 else lattice.reduce(given)
        union = frozenset[int]().union(*(s for _, s in some))
        assert values.setdefault(union, int(join)) == int(join)
        made.append((int(join), union))
    assert len(set(values.values())) == len(values)
    assert max(map(len, values)) > 1000


def test_semilattice_is_bounded() -> None:
    for limit, work in ((10, 1000), (1000, 10)):
        lattice = _field.Semilattice(P, 1, 0, limit, work)
        with pytest.raises(MemoryError):
            lattice.reduce(np.arange(1, 100, dtype=np.uint64))


def test_running_maxima_remember_what_they_join() -> None:
    """The maxima of 2,000 numbers so far: sets of two million leaves in all, in the room of few."""
    for work, good in ((10**7, True), (10**6, False)):
        lattice = _field.Semilattice(P, 1, 0, 40_000, work)
        with nullcontext() if good else pytest.raises(MemoryError):
            top = _array([1])
            for leaf in range(2, 2002):
                top = lattice.join(top, _array([leaf]))
            assert lattice.reduce(np.arange(1, 2002, dtype=np.uint64)) == top


# --- formal exponentials ----------------------------------------------------------------------------------


class _Formal:
    """A pool with operators; numbers are constants, E(h) is [h]."""

    def __init__(self, cap: int = 1024) -> None:
        self.pool = _field.FormalPool(P, Q, pow(5, (P - 1) // Q, P), cap, 1 << 40)

    def c(self, *f: int) -> np.ndarray[Any, Any]:
        return self.pool.constants(_array([x % P for x in f]))

    def e(self, *h: int) -> np.ndarray[Any, Any]:
        return self.pool.exponentials(_array([x % Q for x in h]))

    def same(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
        return bool(self.pool.equal(a, b).all())


def test_exponentials_are_independent_and_multiply() -> None:
    f = _Formal()
    add, mul, div = f.pool.add, f.pool.mul, f.pool.div
    a, b = f.e(3), f.e(Q - 1)
    assert f.same(mul(a, b), f.e(2))
    assert f.same(div(f.c(1), a), f.e(-3))
    assert not f.same(add(a, b), add(a, a))
    assert f.same(mul(add(a, b), add(a, b)), add(add(f.e(6), f.e(-2)), mul(f.c(2), f.e(2))))


def test_quotients_by_cross_multiplication() -> None:
    f = _Formal()
    add, sub, mul, div = f.pool.add, f.pool.sub, f.pool.mul, f.pool.div
    total = f.pool.sum(np.stack([f.e(i)[0] for i in range(5)]))
    total = np.asarray(total).reshape(1)
    shares = [div(f.e(i), total) for i in range(5)]
    assert f.same(np.asarray(f.pool.sum(np.concatenate(shares))).reshape(1), f.c(1))
    assert f.same(mul(shares[0], total), f.e(0))
    shifted = div(f.e(8), mul(total, f.e(7)))  # the same softmax with 7 added to every logit
    assert f.same(shifted, shares[1])
    assert not f.same(shares[0], shares[1])
    assert f.same(sub(add(shares[0], shares[1]), shares[1]), shares[0])
    with pytest.raises(ZeroDivisionError):
        div(f.c(1), sub(total, total))


def test_image_is_a_homomorphism() -> None:
    f, rng = _Formal(), random.Random(1)
    field: Any = FIELDS[0]
    values = [f.pool.add(f.c(rng.randrange(P)), f.e(rng.randrange(Q))) for _ in range(8)]
    for a, b in pairwise(values):
        for op in ("add", "sub", "mul"):
            image = f.pool.images(getattr(f.pool, op)(a, b))
            assert image == getattr(field, op)(f.pool.images(a), f.pool.images(b))
        assert field.mul(f.pool.images(f.pool.div(a, b)), f.pool.images(b)) == f.pool.images(a)


def test_matmul_of_formal_elements() -> None:
    f = _Formal()
    a = f.e(*range(6)).reshape(1, 2, 3)
    b = f.c(*range(1, 7)).reshape(1, 3, 2)
    product = f.pool.matmul(a, b.transpose(0, 1, 2))
    by_hand = f.pool.sum(np.stack([f.pool.mul(a[0, 1, k : k + 1], b[0, k : k + 1, 1])[0] for k in range(3)]))
    assert f.pool.equal(np.asarray(product[0, 1, 1:]), np.asarray(by_hand).reshape(1)).all()


def test_denominators_are_not_multiplied_out() -> None:
    """Sums of (e / S)^2 over rows of 12: the product of two S^2 has 6,084 terms, each numerator 156."""
    f, field = _Formal(), FIELDS[0]
    mul, div = f.pool.mul, f.pool.div
    rows = [f.e(*(random.Random(i).randrange(Q) for i in range(12 * r, 12 * r + 12))) for r in range(2)]
    sums = [np.asarray(f.pool.sum(row)).reshape(1) for row in rows]
    shares = [div(row[:1], s) for row, s in zip(rows, sums, strict=True)]
    squares = [mul(share, share) for share in shares]
    total = f.pool.add(*squares)
    assert f.same(f.pool.sub(total, squares[1]), div(mul(rows[0][:1], rows[0][:1]), mul(sums[0], sums[0])))
    crossed = f.pool.add(div(mul(shares[0], rows[0][:1]), sums[1]), squares[1])
    assert not f.same(total, crossed)
    assert not f.same(total, f.pool.add(squares[0], shares[1]))
    assert f.pool.fallbacks == 0
    assert f.pool.images(total) == field.add(*map(f.pool.images, squares))


@given(
    st.lists(st.tuples(st.sampled_from(["add", "sub", "mul", "div"]), *[st.integers(0, 99)] * 2), max_size=9)
)
@settings(max_examples=300, deadline=None)
def test_quotients_are_those_of_their_images(steps: list[tuple[str, int, int]]) -> None:
    """Values of any sums, products and quotients are equal exactly where their images at one root are: those of
    different elements are alike with probability 2^-50 or so, as the exponents are random."""
    f, field = _Formal(), FIELDS[0]
    draw = random.Random(str(steps))
    values = [f.e(draw.randrange(Q)) for _ in range(3)] + [f.c(draw.randrange(P))]
    images = [f.pool.images(v) for v in values]
    for op, i, j in steps:
        a, b = i % len(values), j % len(values)
        if op == "div" and not images[b][0]:
            with pytest.raises(ZeroDivisionError):
                f.pool.div(values[a], values[b])
            continue
        values.append(getattr(f.pool, op)(values[a], values[b]))
        inverse = field.inverse(images[b]) if op == "div" else images[b]
        images.append(getattr(field, "mul" if op == "div" else op)(images[a], inverse))
    for v, image in zip(values, images, strict=True):
        assert f.pool.images(v) == image
    if not f.pool.fallbacks:
        for (v, x), (w, y) in pairwise(zip(values, images, strict=True)):
            assert f.same(v, w) == bool(x == y)
            rebuilt = f.pool.sub(f.pool.add(v, w), w)
            assert f.pool.fallbacks or f.same(rebuilt, v)


def test_what_outgrows_the_cap_becomes_its_image() -> None:
    f = _Formal(cap=4)
    ids = np.stack([f.e(i)[0] for i in range(5)])
    total = np.asarray(f.pool.sum(ids)).reshape(1)
    assert f.pool.fallbacks == 1
    assert int(f.pool.images(total)[0]) == int(FIELDS[0].sum(f.pool.images(ids)))


def test_formal_sums_are_bounded() -> None:
    pool = _field.FormalPool(P, Q, pow(5, (P - 1) // Q, P), 1024, 100)
    many = pool.exponentials(np.arange(30, dtype=np.uint64))
    total = pool.sum(many)
    with pytest.raises(OverflowError):
        pool.mul(total, total)


# --- products by the BLAS ---------------------------------------------------------------------------------


@pytest.mark.parametrize("modulus", [P, Q])
def test_products_by_digits_are_the_same(modulus: int) -> None:
    field = _field.Field(modulus)
    a = field.uniform(1, 2 * 130 * 300).reshape(2, 130, 300)
    b = field.uniform(2, 2 * 300 * 520).reshape(2, 300, 520)
    expected = field.matmul(a, b)
    for depth in (100, 299, 300, _field.DEPTH):
        for threads in (1, 2):
            assert (product(field, depth, a, b, threads) == expected).all()
    strided = np.asfortranarray(a), b.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    assert (product(field, 128, *strided, 2) == expected).all()


@pytest.mark.parametrize("modulus", [P, Q])
def test_the_largest_digits_still_sum_exactly(modulus: int) -> None:
    """Sums of two digits reach 2^21 in size: DEPTH products of them are 2^53, which float64 still holds."""
    field = _field.Field(modulus)
    half = 1 << 20
    low = (half - 1) + ((half - 1) << 21) + ((half - 1) << 42)
    high = half + (half << 21) + ((half - 1) << 42)
    extreme = [x % modulus for x in (low, high, high - 1, -1, -2, 1 << 20, (1 << 20) - 1)]
    digits = field.digits(_array(extreme))
    assert np.abs(digits[:3]).max() <= 1 << 20
    for x, d in zip(extreme, digits.T.astype(object), strict=True):
        assert int(d[0]) + (int(d[1]) << 21) + (int(d[2]) << 42) == x
        assert (d[3], d[4], d[5]) == (d[0] + d[1], d[0] + d[2], d[1] + d[2])
    for x in extreme:
        for y in extreme:
            a = np.full((1, 2, _field.DEPTH), x, np.uint64)
            b = np.full((1, _field.DEPTH, 2), y, np.uint64)
            found = product(field, _field.DEPTH, a, b, 1)
            assert {int(n) for n in found.ravel()} == {_field.DEPTH * x * y % modulus}


def test_large_products_go_by_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    field = ImageField(3)
    a, b = (field.random(i, s) for i, s in enumerate([(1, 128, 256), (1, 256, 128)]))
    expected = field.contract(a, b).planes
    used: list[tuple[int, ...]] = []

    def counted(f: Any, depth: int, x: Any, y: Any, threads: int) -> Any:
        used.append(x.shape)
        return product(f, depth, x, y, threads)

    monkeypatch.setattr(products_module, "product", counted)
    again = field.contract(a, b).planes
    assert used == [(1, 128, 256)] * 2
    monkeypatch.setattr(products_module, "LEAST", 129)
    other = field.contract(a, b).planes
    assert len(used) == 2
    for x, y, z in zip(expected, again, other, strict=True):
        assert (x == y).all()
        assert (x == z).all()


def test_labels_tell_apart_what_has_one_image() -> None:
    """f [h] and the number f w^h differ, although a root maps both to the same residue."""
    field = FormalField(3)
    h = np.array([12345], np.uint64)
    term = field.pool.exponentials(h)
    number = field.pool.constants(field.pool.images(term))
    assert field.pool.images(term) == field.pool.images(number)
    assert field.pool.labels(term) != field.pool.labels(number)
    shifted = field.pool.sub(field.pool.add(term, number), number)
    assert field.pool.labels(shifted) == field.pool.labels(term), "equal elements share a label"
    assert field.pool.labelled(field.pool.labels(number)) == number
    assert not field.imaged


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_floats_become_residues_of_the_rationals_that_they_are(values: list[float]) -> None:
    for shaped in (np.array(values), np.array(values * 2).reshape(2, -1), np.array(values[0])):
        found = exact_residues(shaped, P, lambda n, e: n * pow(2, e, P))
        wanted = [Fraction(x).numerator * pow(Fraction(x).denominator, -1, P) % P for x in shaped.flat]
        assert found.shape == shaped.shape
        assert [*map(int, found.flat)] == wanted


def test_a_mask_becomes_residues_as_an_array() -> None:
    """No line of Python for each element: networks have masks of millions, which every evaluation reads."""
    mask, lines = np.zeros(1 << 16), 0
    mask[:1000] = 1.0

    def count(*_: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = exact_residues(mask, P, lambda n, e: n * pow(2, e, P))
    finally:
        sys.settrace(before)
    assert found.sum() == 1000
    assert lines < 1000
