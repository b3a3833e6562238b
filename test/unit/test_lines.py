"""Integers of a box of instances, followed from few of them, against all of them; inputs drawn where they are read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from superopt.program import KernelGraph, Node, TensorType, TileProgram, Value
from superopt.transforms.lower import lower
from superopt.verify.domains import Array
from superopt.verify.drawn import LEAST, drawn
from superopt.verify.evaluate_tile import evaluate_written
from superopt.verify.fields import ImageField
from superopt.verify.ttir.integers import computed
from superopt.verify.ttir.lines import Lines, NotAffine
from superopt.verify.ttir.parser import Operation, TtirType

I32, I1 = TtirType((), "i32"), TtirType((), "i1")
OPERATIONS = (
    "addi",
    "subi",
    "muli",
    "minsi",
    "maxsi",
    "divsi",
    "remsi",
    "divui",
    "remui",
    "andi",
    "shli",
    "cmpi",
)
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "uge")


def operation(name: str, words: tuple[str, ...] = ()) -> Operation:
    kind = I1 if name == "cmpi" else I32
    return Operation(f"arith.{name}", (0,), (1, 2), words, {}, (kind,), 1)


def points(spans: Sequence[tuple[int, int]]) -> Array:
    return np.asarray(list(itertools.product(*(range(s, e + 1) for s, e in spans))), np.int64)


def test_what_is_followed_is_affine_in_the_whole_box():
    """Random integers: where each step is followed, the rows foretell every instance of the box."""
    generator, followed, refused = random.Random(0), 0, 0
    for _ in range(4000):
        spans = [(-generator.randint(0, 5), generator.randint(1, 5)) for _ in range(generator.randint(1, 2))]
        if generator.random() < 0.3:
            spans[0] = (-generator.randint(1, 6), 0)
        lines, everywhere = Lines(spans), points(spans)
        known: list[tuple[Array, Array]] = []
        for _ in range(3):
            slopes = np.asarray([generator.choice((0, 0, 1, 8, -3, 64)) for _ in spans], np.int64)
            first = generator.choice((0, 1, 7, 40, 100, 1 << 30))
            known.append((first + lines.steps @ slopes, first + everywhere @ slopes))
        known += [(np.asarray([n]), np.asarray([n])) for n in (2, 8, generator.randint(1, 50))]
        try:
            for _ in range(3):
                name = generator.choice(OPERATIONS)
                op = operation(name, (generator.choice(PREDICATES),) if name == "cmpi" else ())
                (a, every_a), (b, every_b) = generator.choice(known), generator.choice(known)
                if name == "shli" and (b < 0).any():
                    break
                made = computed(op, a, b, "here")
                lines.follow(op, a, b, made)
                every = computed(op, every_a, every_b, "here")
                followed += len(made) > 1
                rows = np.broadcast_to(made, (len(lines.steps),)).astype(np.int64)
                slopes = (rows[1:] - rows[0]) * np.diag(lines.steps[1:])
                expected = rows[0] + everywhere @ slopes
                assert (expected == every).all(), (op.name, op.words, spans, a, b)
                if made.dtype != np.bool_:
                    known.append((made, every))
        except NotAffine:
            refused += 1
        except Exception as error:  # divisions by zero, unsigned operations on negative numbers
            assert "expected" in str(error)  # noqa: PT017
    assert followed > 1000
    assert refused > 1000


@pytest.mark.parametrize(
    ("name", "words", "a", "b"),
    [
        ("cmpi", ("slt",), [0, 1], [3]),  # 4 at the end of the box
        ("cmpi", ("eq",), [0, 1], [3]),
        ("minsi", (), [0, 1], [3]),
        ("addi", (), [(1 << 31) - 4, (1 << 31) - 3], [1]),
        ("muli", (), [0, 1], [0, 1]),
        ("remsi", (), [0, 1], [4]),
        ("divsi", (), [0, 1], [4]),
        ("andi", (), [4, 5], [7]),
    ],
)
def test_what_changes_within_the_box_is_refused(
    name: str, words: tuple[str, ...], a: list[int], b: list[int]
):
    op, x, y = operation(name, words), np.asarray(a, np.int64), np.asarray(b, np.int64)
    with pytest.raises(NotAffine):
        Lines([(0, 4)]).follow(op, x, y, computed(op, x, y, "here"))


@pytest.mark.parametrize(
    ("words", "a", "b", "end"),
    [
        (("slt",), [0, 1], [3], 3),  # equal at the end
        (("sge",), [0, 1], [3], 3),
        (("sle",), [3, 4], [3], 2),  # equal here only
        (("sgt",), [3, 4], [3], 2),
        (("ult",), [-2, -1], [5], 3),  # above 5 while they are negative
        (("ult",), [5], [-2, -1], 3),
        (("slt",), [[0, 9], [1, 10]], [[4, 4]], 4),  # of two elements one is decided
        (("eq",), [False, True], [True], 1),
    ],
)
def test_comparisons_are_the_same_in_the_whole_box(words: tuple[str, ...], a: Any, b: Any, end: int):
    op, x, y = operation("cmpi", words), np.asarray(a), np.asarray(b)
    with pytest.raises(NotAffine):
        Lines([(0, end)]).follow(op, x, y, np.zeros(x.shape, np.bool_))


def test_results_that_a_type_does_not_hold_somewhere_are_refused():
    top = 1 << 31
    for first, end in ((top - 4, 3), (-top + 3, 3)):
        step = 1 if first > 0 else -1
        Lines([(0, end)]).fits(I32, np.asarray([first, first + step]))
        with pytest.raises(NotAffine):
            Lines([(0, end + 1)]).fits(I32, np.asarray([first, first + step]))
    with pytest.raises(NotAffine):  # truth values are the same everywhere
        Lines([(0, 1)]).fits(I1, np.asarray([0, -1]))


def test_what_must_be_the_same_is():
    lines = Lines([(0, 3)])
    lines.same(np.asarray([True]))
    lines.same(np.asarray([4, 4]))
    with pytest.raises(NotAffine):
        lines.same(np.asarray([4, 5]))


def test_large_steps_do_not_overflow_what_follows_them():
    """2^40 from one instance to the next, 2^30 instances: modulo 2^64 the last one is where the first is."""
    op = operation("cmpi", ("slt",))
    a, b = np.asarray([5, 5 + (1 << 40)]), np.asarray([10])
    with pytest.raises(NotAffine):
        Lines([(0, 1 << 24)]).follow(op, a, b, computed(op, a, b, "here"))


def test_numbers_of_instances_are_checked_one_by_one():
    lines, steps = Lines([(0, 3)]), np.arange(4).reshape(-1, 1)
    lines.leaf(np.asarray([[5], [7]]), steps, np.asarray([[5], [7], [9], [11]]))
    with pytest.raises(NotAffine):
        lines.leaf(np.asarray([[5], [7]]), steps, np.asarray([[5], [7], [9], [12]]))


def test_inputs_that_are_drawn_where_they_are_read_are_those_that_are_drawn_whole():
    field, shape = ImageField("point"), (LEAST // 64, 128)
    for exponent in (False, True):
        whole, found = field.random(3, shape, exponent=exponent), drawn(field, 3, shape, exponent=exponent)
        places = np.asarray([[0, 1, 2 * LEAST - 1], [LEAST, 5, 5]])
        assert len(found.planes) == len(whole.planes) == 1 + exponent
        assert found.shape == (2 * LEAST,)
        for mine, theirs in zip(found.planes, whole.planes, strict=True):
            assert not isinstance(mine, np.ndarray)
            assert mine[places].tolist() == theirs.reshape(-1)[places].tolist()
            assert np.array_equal(np.asarray(mine), theirs.reshape(-1))
            shaped = mine.reshape(*shape)
            rows, columns = np.ix_([0, 5, shape[0] - 1], [127, 2])
            assert np.array_equal(shaped[rows, columns], theirs[rows, columns])
            assert np.array_equal(np.asarray(shaped), theirs)
            with pytest.raises(ValueError, match="elements"):
                mine.reshape(shape[0], 127)
            with pytest.raises(IndexError, match="2 dimensions"):
                shaped[rows]


@pytest.mark.parametrize("columns", [256, 250])
def test_tile_programs_read_inputs_that_are_drawn(columns: int):
    """With windows that end within the input, and such that reach past it."""
    x, o = Value(TensorType((512, columns), "f16"), "x"), Value(TensorType((512,), "f16"), "o")
    node = Node("reduce_sum", (x,), (o,), {"dims": (1,)})
    (lowered,) = lower(KernelGraph("sums", [x], [node], [o])).nodes
    assert isinstance(lowered.body, TileProgram)
    field = ImageField("point")
    flat = drawn(field, 0, x.shape, exponent=False)
    assert not isinstance(flat.planes[0], np.ndarray)
    shaped = field.move(lambda a: a.reshape(*x.shape), flat)
    whole = field.random(0, x.shape, exponent=False)
    (found, written), (wanted, _) = (evaluate_written(lowered.body, [t], field)[0] for t in (shaped, whole))
    assert written.all()
    assert not field.differs(found, wanted).any()
