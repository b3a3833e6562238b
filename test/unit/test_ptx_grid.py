"""All blocks of a grid at once: boxes of blocks that do the same, and faults that one block alone has."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from superopt.errors import IllegalProgram, NotEquivalent
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify.domains import Array
from superopt.verify.fields import ImageField
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ptx.decode import Decoded, decode
from superopt.verify.ptx.grid import Box, Grid, Group, Instances, Part
from superopt.verify.ptx.launch import Axis, Launch, Stored
from superopt.verify.ptx.parser import parse
from superopt.verify.ptx.record import PtxKernelRecord
from superopt.verify.ttir.artifact import kernel_texts
from superopt.verify.ttir.check import KernelText, verify_ttir
from superopt.verify.ttir.evaluate import launch as launch_ttir
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.ran import Ran
from superopt.verify.ttir.sampling import blocks_of
from superopt.verify.ttir.work import widest

FIELD = ImageField("ptx", lattice="order")
ELEMENTS = 4096
HEAD = """.version 8.7
.target sm_90a
.visible .entry k(.param .u64 k_param_0)
.reqntid 32
{
  .reg .pred %p<40>;
  .reg .b32 %r<90>;
  .reg .b64 %rd<9>;
  ld.param.b64 %rd1, [k_param_0];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ctaid.y;
  mov.u32 %r4, %ctaid.z;
  mov.b32 %r5, 0f3F800000;
"""
END = f"""  and.b32 %r80, %r{{last}}, {ELEMENTS - 1};
  mul.wide.s32 %rd2, %r80, 4;
  add.s64 %rd3, %rd1, %rd2;
  {{guard}}st.global.b32 [%rd3 + 0], {{{{%r5}}}};
  ret;
}}}}
"""
LINEAR = ("add.s32", "sub.s32", "mul.lo.s32", "shl.b32", "mad.lo.s32")
OTHERS = (
    "or.b32", "xor.b32", "and.b32", "shr.u32", "shr.s32", "div.s32", "rem.s32", "div.u32", "rem.u32", "min.s32",
    "max.u32", "mul.hi.s32", "bfe.u32", "selp.b32", "neg.s32",
)  # fmt: skip


def text(generator: random.Random) -> str:
    """Integers of a block's and a thread's numbers, one of which says where a number is stored."""
    lines: list[str] = []
    known = [1, 2, 3, 4, 2, 3]
    for i in range(10, 10 + generator.randint(2, 9)):
        opcode = generator.choice(LINEAR if generator.random() < 0.6 else OTHERS)
        a, b, c = (f"%r{generator.choice(known)}" for _ in range(3))
        number = str(generator.choice((1, 2, 3, 4, 7, 8, 16, 31, 64, 100)))
        if opcode == "selp.b32":
            compare = generator.choice(("lt", "le", "gt", "ge", "eq", "ne"))
            lines.append(
                f"setp.{compare}.{generator.choice('su')}32 %p{i}, {a}, {generator.choice((b, number))};"
            )
            operands = f"{a}, {b}, %p{i}"
        elif opcode in ("mad.lo.s32", "bfe.u32"):
            operands = f"{a}, {generator.choice((2, 5, 8))}, {c if opcode[0] == 'm' else 4}"
        elif opcode == "neg.s32":
            operands = a
        elif opcode == "mul.hi.s32":
            operands = f"{a}, {generator.choice((715827883, 1431655766))}"
        elif opcode.startswith(("shl", "shr")):
            operands = f"{a}, {generator.choice((1, 2, 3, 5))}"
        else:
            divides = opcode.startswith(("div", "rem"))
            operands = f"{a}, {number if divides or generator.random() < 0.5 else b}"
        lines.append(f"{opcode} %r{i}, {operands};")
        known += [i, i]
    guard = ""
    if generator.random() < 0.3:
        lines.append(f"setp.lt.s32 %p9, %r{known[-1]}, {generator.choice((3, 40, 300))};")
        guard = "@%p9 "
    return HEAD + "\n".join(lines) + "\n" + END.format(last=known[-1], guard=guard)


def launch(decoded: Decoded, shape: tuple[int, int, int]) -> Launch:
    return Launch(decoded, shape, [Buffer("o", ELEMENTS, "f32", writable=True)], FIELD, 1024)


class Checked(Instances):
    """In place of the TTIR: each block of a box runs, and stores where that is foretold."""

    def __init__(self, decoded: Decoded, shape: tuple[int, int, int]) -> None:
        self.decoded, self.shape, self.largest = decoded, shape, 0

    def alike(self, ptx: Launch, part: Part, block: int, box: Box, blocks: Array) -> Array:
        places, numbers = ptx.reached(0)
        away = part.coordinates(blocks) - part.coordinates(np.asarray([block]))
        self.largest = max(self.largest, len(blocks))
        other = launch(self.decoded, self.shape)
        for number, steps in zip(blocks.tolist(), away, strict=True):
            expected = places + ptx.slopes[numbers][:, : len(box)] @ steps
            assert other.run(number)[0].places.tolist() == sorted(set(expected.tolist()))
        return np.ones(len(blocks), np.bool_)


def test_every_block_of_a_box_does_what_is_foretold():
    """Random integers; each block is run."""
    generator, several = random.Random(0), 0
    for _ in range(250):
        shape = generator.choice([(12, 1, 1), (5, 7, 1), (16, 3, 1), (3, 4, 5), (40, 1, 1)])
        decoded = decode(parse(text(generator), "k.ptx"))
        grid, checked, ptx = Grid(shape), Checked(decoded, shape), launch(decoded, shape)
        block: int | None = generator.randrange(shape[0] * shape[1] * shape[2])
        while block is not None:
            grid.run(ptx, block, checked)
            block = grid.next(0, checked)
        several += checked.largest > 1
    assert several > 150


def boxes(body: str, shape: tuple[int, int, int]) -> tuple[int, int]:
    """How many blocks are proved, and in how many boxes."""
    decoded = decode(parse(HEAD + body + END.format(last=10, guard=""), "k.ptx"))
    grid, checked, ptx = Grid(shape), Checked(decoded, shape), launch(decoded, shape)
    count, block = 0, grid.next(0, checked)
    while block is not None:
        grid.run(ptx, block, checked)
        count, block = count + 1, grid.next(0, checked)
    return grid.proved, count


def test_what_is_divided_is_two_coordinates():
    body = "div.u32 %r11, %r2, 8;\nrem.u32 %r12, %r2, 8;\nmad.lo.s32 %r10, %r11, 100, %r12;\n"
    assert boxes(body, (24, 1, 1)) == (24, 1)
    assert boxes(body, (27, 1, 1)) == (27, 2)


def test_a_digit_is_divided_only_into_digits_that_are_all_in_use():
    """A remainder of 3, divided by 2, would make the same block of two pairs of digits, and of others none."""
    body = "rem.u32 %r11, %r2, 3;\nand.b32 %r12, %r11, 1;\ndiv.u32 %r13, %r2, 3;\nmad.lo.s32 %r10, %r13, 100, %r12;\n"
    assert boxes(body, (24, 1, 1)) == (24, 3)
    assert boxes(body.replace(" 3;", " 4;"), (24, 1, 1)) == (24, 1)


def test_a_high_word_that_is_shifted_is_a_quotient():
    """2^32 / 5.5, and 4 bits to the right: by 88, a period that the high word alone does not have."""
    body = (
        "mul.hi.u32 %r11, %r2, 780903145;\nshr.u32 %r12, %r11, 4;\n"
        "mul.lo.s32 %r13, %r12, 88;\nsub.s32 %r14, %r2, %r13;\nmad.lo.s32 %r10, %r12, 1000, %r14;\n"
    )
    assert boxes(body, (176, 1, 1)) == (176, 1)
    # Read by itself, too, it is no line.
    assert boxes(body + "add.s32 %r10, %r10, %r11;\n", (176, 1, 1))[1] > 1


@pytest.mark.parametrize(
    "then",
    [
        "mov.u32 %r11, %r2;\nshr.u32 %r12, %r11, 4;\n",
        "add.s32 %r11, %r2, %r2;\nshr.u32 %r12, %r11, 4;\n",
        "mov.b32 %r11, 176;\nadd.s32 %r12, %r11, %r2;\n",
    ],
)
def test_a_high_word_that_is_gone_is_not_what_is_read(then: str):
    """Something else is where it was: all blocks of each box do what is foretold (`Checked`)."""
    body = f"mul.hi.u32 %r11, %r2, 780903145;\n{then}mad.lo.s32 %r10, %r12, 7, %r2;\n"
    assert boxes(body, (176, 1, 1)) == (176, 1)


@pytest.mark.parametrize(
    ("compare", "count"), [("setp.lt.u32 %p1, %r11, 20;", 3), ("min.u32 %r12, %r11, 19;", 3)]
)
def test_a_range_is_compared_without_signs(compare: str, count: int):
    """As a convolution's rows are: below zero and beyond the end, a number wraps around or is too large."""
    chosen = "selp.b32 %r10, %r11, 64, %p1;\n" if "setp" in compare else "mov.b32 %r10, %r12;\n"
    assert boxes(f"add.s32 %r11, %r2, -2;\n{compare}\n{chosen}", (24, 1, 1)) == (24, count)


def test_the_last_group_has_digits_of_its_own():
    """Groups of 8 rows and 11 columns, of which the last one has 5 rows."""
    body = (
        "div.u32 %r11, %r2, 88;\nshl.b32 %r12, %r11, 3;\nsub.s32 %r13, 13, %r12;\nmin.s32 %r13, %r13, 8;\n"
        "rem.u32 %r14, %r2, 88;\ndiv.s32 %r15, %r14, %r13;\nmul.lo.s32 %r16, %r15, %r13;\nsub.s32 %r17, %r14, %r16;\n"
        "add.s32 %r17, %r17, %r12;\nmad.lo.s32 %r10, %r17, 16, %r15;\n"
    )
    assert boxes(body, (143, 1, 1)) == (143, 2)


def test_each_block_of_a_part_has_one_place():
    """However its axes are split, where digits divide, and whatever blocks begin to be counted anew."""
    generator = random.Random(1)
    for _ in range(200):
        shape = (generator.randint(2, 60), generator.randint(1, 9), 1)
        part = Part(shape, (0, 0, 0), shape, tuple(Axis(d, 1, n) for d, n in enumerate(shape) if n > 1))
        for _ in range(generator.randint(1, 4)):
            number = generator.randrange(len(part.axes))
            axis = part.axes[number]
            last = all(a.dimension != axis.dimension for a in part.axes[number + 1 :])
            splits = [n for n in range(2, axis.extent) if last or axis.extent % n == 0]
            if splits and len(part.axes) < 6:
                part = part.split(number, generator.choice(splits))
        all_blocks = np.arange(shape[0] * shape[1])
        held = {tuple(at) for at in part.coordinates(all_blocks).tolist()}
        assert len(held) == len(all_blocks)
        block = generator.randrange(len(all_blocks))
        at = part.coordinates(np.asarray([block]))[0].tolist()
        box = part.box(at)
        members = part.members(box)
        assert block in members
        found = part.coordinates(members)
        assert all(((found >= np.asarray(box)[:, 0]) & (found <= np.asarray(box)[:, 1])).reshape(-1))
        number = generator.randrange(len(part.axes))
        fewer = part.between(number, at[number], at[number], at)
        assert fewer.holds(block)
        inside = [b for b in all_blocks.tolist() if fewer.holds(b)]
        places = fewer.coordinates(np.asarray(inside)).tolist()
        found = {b for place in places for b in fewer.members(fewer.box(place)).tolist()}
        assert sorted(found) == inside


def test_a_block_that_is_chosen_is_by_itself():
    body = "setp.eq.s32 %p1, %r2, 7;\nselp.b32 %r10, 5, %r2, %p1;\n"
    assert boxes(body, (24, 1, 1)) == (24, 3)


# --- against the TTIR ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def product() -> tuple[KernelGraph, KernelText, PtxText]:
    """a b, with a tail along each dimension."""
    a, b = Value(TensorType((200, 64), "f16"), "a"), Value(TensorType((64, 328), "f16"), "b")
    o = Value(TensorType((200, 328), "f16"), "o")
    return compiled(KernelGraph("product", [a, b], [Node("matmul", (a, b), (o,))], [o]))


def compiled(graph: KernelGraph) -> tuple[KernelGraph, KernelText, PtxText]:
    """A program, lowered, its kernel and its PTX."""
    lowered = lower(graph)
    emitted = emit_program(lowered)
    made = compile_all(emitted.kernels, ("sm_80",))
    return lowered, kernel_texts(emitted, made)[0], PtxText(made[0].ptx, made[0].shared_bytes)


def record(product: tuple[KernelGraph, KernelText, PtxText], ptx: str = "") -> PtxKernelRecord:
    lowered, kernel, given = product
    return verify_ptx(lowered, [kernel], [replace(given, ptx=ptx or given.ptx)]).kernels[0]


def test_all_blocks_of_a_kernel_are_proved(product: tuple[KernelGraph, KernelText, PtxText]):
    found = record(product)
    assert found.blocks > 8
    assert found.addressed == found.blocks > found.evaluated


def moved_where(ptx: str, *condition: str) -> str:
    """A kernel whose first operand is moved by 16 bytes where `%odd` holds, which these lines compute."""
    loaded = re.search(r"ld\.param\.b64\s+(%rd\d+), \[\w+_param_0\];", ptx)
    assert loaded
    lines = [
        ".reg .pred %odd;",
        ".reg .b32 %at<3>;",
        *condition,
        f"@%odd add.s64 {loaded[1]}, {loaded[1]}, 16;",
    ]
    return ptx.replace(loaded[0], "\n".join([loaded[0], "{", *lines, "}"]))


def test_a_fault_of_any_one_block_is_found(product: tuple[KernelGraph, KernelText, PtxText]):
    """Whichever it is."""
    x, y, z = product[1].grid
    assert not record(product).unverified
    number = "mov.u32 %at0, %ctaid.x;", "mov.u32 %at1, %ctaid.y;", f"mad.lo.s32 %at0, %at1, {x}, %at0;"
    for block in range(x * y * z):
        text = moved_where(product[2].ptx, *number, f"setp.eq.s32 %odd, %at0, {block};")
        with pytest.raises((NotEquivalent, IllegalProgram)):
            record(product, text)


@pytest.mark.parametrize(
    "condition",
    [
        "setp.eq.s32 %odd, %at0, 1024;",
        "setp.ne.s32 %odd, %at0, 1024;",
        "and.b32 %at0, %at0, 2048;\nsetp.ne.s32 %odd, %at0, 0;",
        "shr.u32 %at0, %at0, 10;\nsetp.gt.s32 %odd, %at0, 1;",
    ],
)
def test_what_depends_on_where_shared_memory_starts_is_unverified(
    product: tuple[KernelGraph, KernelText, PtxText], condition: str
):
    """One of these texts moves nothing where it starts behind the kilobyte that CUDA keeps."""
    found = record(product, moved_where(product[2].ptx, "mov.b32 %at0, global_smem;", condition))
    assert found.unverified.endswith("a place in shared memory used as an integer")


class Tilted(Launch):
    """A launch that says of its accesses that they move by more than they do."""

    @property
    def slopes(self) -> Array:
        return super().slopes * 2


def test_instances_that_access_other_elements_are_not_proved(
    product: tuple[KernelGraph, KernelText, PtxText], monkeypatch: pytest.MonkeyPatch
):
    honest = record(product).evaluated
    monkeypatch.setattr("superopt.verify.ptx.check.Launch", Tilted)
    found = record(product)
    assert found.addressed < found.blocks
    assert found.evaluated > honest
    assert found.unverified == f"expected all {found.blocks} blocks to be proved, got {found.addressed}"


def test_instances_of_small_boxes_run_together(monkeypatch: pytest.MonkeyPatch):
    """Each group follows its own leader: one that is said to move otherwise is not proved, the others are."""
    asked, launches = list[list[Group]](), list[list[int]]()
    together = Instances.together

    def compared(self: Instances, groups: Sequence[Group]) -> list[set[int]]:
        honest = [{g.leader, *g.others.tolist()} for g in groups]
        for i, group in enumerate(groups[:3] if not asked else []):
            others = [*groups[:i], replace(group, away=group.away * 2), *groups[i + 1 :]]
            assert together(self, others) == [*honest[:i], {group.leader}, *honest[i + 1 :]]
        asked.append(list(groups))
        monkeypatch.setattr("superopt.verify.ptx.grid.launch", counted)
        found = together(self, groups)
        monkeypatch.setattr("superopt.verify.ptx.grid.launch", launch_ttir)
        assert found == honest
        return found

    def counted(*given: Any) -> None:
        launches.append(list(given[4]))
        launch_ttir(*given)

    monkeypatch.setattr(Instances, "together", compared)
    x, w = Value(TensorType((1, 16, 24, 24), "f16"), "x"), Value(TensorType((32, 16, 3, 3), "f16"), "w")
    o = Value(TensorType((1, 32, 24, 24), "f16"), "o")
    one = (1, 1)
    attrs: dict[str, Attr] = {"strides": one, "dilations": one, "low": one, "high": one, "groups": 1}
    graph = KernelGraph("conv", [x, w], [Node("conv", (x, w), (o,), attrs)], [o])
    found = record(compiled(graph))
    assert found.addressed == found.blocks
    assert len(asked[0]) > 3
    assert launches == [[n for g in groups for n in (g.leader, *g.others.tolist())] for groups in asked]


class Doubtful(Instances):
    """In place of the TTIR: boxes wait, and then `few` of their blocks are alike."""

    def __init__(self, few: int) -> None:
        self.few = few

    @override
    def alike(self, ptx: Launch, part: Part, block: int, box: Box, blocks: Array) -> Group:
        others = blocks[blocks != block]
        return Group(block, others, np.zeros((len(others), 1), np.int64), {})

    @override
    def together(self, groups: Sequence[Group]) -> list[set[int]]:
        return [{g.leader, *g.others[: self.few].tolist()} for g in groups]


@pytest.mark.parametrize(("few", "count"), [(0, 12), (3, 3), (11, 1)])
def test_what_waits_in_vain_runs(few: int, count: int):
    decoded = decode(parse(HEAD + "mov.u32 %r10, %r2;\n" + END.format(last=10, guard=""), "k.ptx"))
    grid, doubtful, ptx = Grid((12, 1, 1)), Doubtful(few), launch(decoded, (12, 1, 1))
    ran, block = list[int](), grid.next(0, doubtful)
    while block is not None:
        assert not grid.has(block)
        grid.run(ptx, block, doubtful)
        ran.append(block)
        assert grid.has(block)
        assert grid.proved < 12 or len(ran) == 12
        block = grid.next(0, doubtful)
    assert (grid.proved, len(ran), len(set(ran))) == (12, count, count)


class Careless(Launch):
    """A launch that says of each block that all others do what it does."""

    _spans: Sequence[tuple[int, int, int]] = ()

    @override
    def run_around(
        self, block: int, axes: Sequence[Axis], spans: Sequence[tuple[int, int, int]]
    ) -> list[Stored] | tuple[int, int, int, int]:
        self._spans = spans
        return super().run_around(block, axes, spans)

    @property
    def region(self) -> list[tuple[int, int]]:
        return [(start, end) for start, _, end in self._spans]


def everything(_: Instances, ptx: Launch, part: Part, block: int, box: Box, blocks: Array) -> Array:
    """All blocks are alike."""
    del ptx, part, block, box
    return np.ones(len(blocks), np.bool_)


def shared(
    product: tuple[KernelGraph, KernelText, PtxText], monkeypatch: pytest.MonkeyPatch, below: str
) -> tuple[Ran, list[int]]:
    """What the check of the TTIR keeps for PTX `below`, and the instances that the check of the PTX runs then."""
    lowered, kernel, _ = product
    ran, launched = Ran(frozenset([below])), list[int]()
    verify_ttir(lowered, lowered, [kernel], full_work=1, ran=ran)

    def counting(*given: Any) -> None:
        launched.extend(given[-1])
        launch_ttir(*given)

    monkeypatch.setattr("superopt.verify.ptx.check.launch", counting)
    return ran, launched


def test_instances_that_ran_for_the_ttir_do_not_run_again(
    product: tuple[KernelGraph, KernelText, PtxText], monkeypatch: pytest.MonkeyPatch
):
    lowered, kernel, text = product
    ran, launched = shared(product, monkeypatch, text.ptx)
    (known,) = ran.kernels.values()
    (found,) = verify_ptx(lowered, [kernel], [text], ran=ran).kernels
    assert found == record(product).model_copy(update={"evaluated": found.evaluated})
    assert {blocks_of(kernel, 0)[0], known.drawn} <= known.stores.keys()
    count = len(launched)
    verify_ptx(lowered, [kernel], [text], ran=ran)
    assert not {*launched[count:]} & known.stores.keys()
    for instance, stores in known.stores.items():
        wrong = {**known.stores, instance: [(at, values + np.uint64(1)) for at, values in stores]}
        ran.kernels[lowered.nodes[0], kernel] = replace(known, stores=wrong)
        if instance in (known.drawn, blocks_of(kernel, 0)[0]):
            with pytest.raises(NotEquivalent, match=f"block {instance}: .* another value"):
                verify_ptx(lowered, [kernel], [text], ran=ran)


def test_faults_are_found_at_the_point_of_the_ttir(
    product: tuple[KernelGraph, KernelText, PtxText], monkeypatch: pytest.MonkeyPatch
):
    """As at a point of its own, which it takes where the primes of the TTIR did not depend on its text."""
    lowered, kernel, text = product
    swapped = re.sub(r"(mma\.sync\S+ \{.*?\}, \{ \S+ )(\S+), (\S+),", r"\1\3, \2,", text.ptx, count=1)
    faulty = replace(text, ptx=swapped)
    assert faulty != text
    for below in (faulty.ptx, text.ptx):
        ran, _ = shared(product, monkeypatch, below)
        with pytest.raises(NotEquivalent):
            verify_ptx(lowered, [kernel], [faulty], ran=ran)
    ran, launched = shared(product, monkeypatch, "another text")
    assert verify_ptx(lowered, [kernel], [text], ran=ran).verified
    assert blocks_of(kernel, 0)[0] in launched


def test_instances_of_large_tiles_are_led_by_that_of_the_block(
    product: tuple[KernelGraph, KernelText, PtxText], monkeypatch: pytest.MonkeyPatch
):
    """Two side by side are enough; where one alone fills a batch, each block proves itself."""

    def never(*_: object) -> bool:
        return False

    whole, one = record(product), widest(product[1].function().body)
    monkeypatch.setattr(Instances, "_all_alike", never)
    for lanes in (2 * one, one):
        monkeypatch.setattr("superopt.verify.ptx.grid.LANES", lanes)
        monkeypatch.setattr("superopt.verify.ttir.evaluate.LANES", lanes)
        found = record(product)
        assert (found == whole) == (lanes > one)
    assert found.addressed < found.evaluated
    assert found.unverified


def test_a_second_block_tests_the_proof(monkeypatch: pytest.MonkeyPatch):
    """All blocks are said to be proved by the last one; the second one that runs stores something else."""
    a, o = (Value(TensorType((1 << 12,), "f32"), name) for name in "ao")
    given = compiled(KernelGraph("twice", [a], [Node("add", (a, a), (o,))], [o]))
    second = blocks_of(given[1], 0)[-1]
    assert second != given[1].grid[0] - 1
    monkeypatch.setattr("superopt.verify.ptx.check.Launch", Careless)
    monkeypatch.setattr(Instances, "alike", everything)
    found = record(given)
    assert (found.addressed, found.evaluated) == (found.blocks, 2)
    text = moved_where(given[2].ptx, "mov.u32 %at0, %ctaid.x;", f"setp.eq.s32 %odd, %at0, {second};")
    with pytest.raises((NotEquivalent, IllegalProgram)):
        record(given, text)
