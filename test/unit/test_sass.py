"""Prices by machine code: what the control bits say, what a scheduler does with it, and that it only adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superopt.cost import target
from superopt.cost.compiled import compiled_seconds
from superopt.cost.sass import Instruction, Scheduler, disassembled, hot_loop, instructions, parsed
from superopt.program import KernelGraph, Node, TensorType, TileProgram, Value
from superopt.transforms.lower import lower
from superopt.transforms.schedule.fit import Compiler
from superopt.tuning.evaluators import ByCode, ByKernels

H100 = target("sm_90")
# Of a kernel that nvdisasm printed: the second word of each instruction is on a line of its own.
TEXT = """
        /*0010*/                   S2R R29, SR_TID.X ;                /* 0x00000000001d7919 */
                                                                      /* 0x000e6e0000002100 */
.L_x_3:
        /*0090*/                   LOP3.LUT R26, R29, 0x60, RZ ;      /* 0x000000601d1a7812 */
                                                                      /* 0x042fe200078ec0ff */
        /*00a0*/              @!P0 BRA `(.L_x_3) ;                    /* 0x000000080d207824 */
                                                                      /* 0x000fea00078e00ff */
        /*00b0*/                   EXIT ;                             /* 0x000000000000794d */
                                                                      /* 0x000fea0003800000 */
.L_x_0:
        /*00c0*/                   BRA `(.L_x_0);                     /* 0xfffffffc00fc7947 */
                                                                      /* 0x000fc0000383ffff */
"""


def test_control_bits() -> None:
    code = parsed(TEXT)
    load, label, use, jump, *_ = code
    assert load == Instruction("S2R R29, SR_TID.X", stall=7, write=1)
    assert use == Instruction("LOP3.LUT R26, R29, 0x60, RZ", stall=1, wait=0b10)
    assert label == ".L_x_3"
    assert isinstance(jump, Instruction)
    assert (jump.opcode, jump.stall) == ("BRA", 5)
    assert hot_loop(code) == [use, jump]
    assert [i.opcode for i in instructions(code)] == ["S2R", "LOP3.LUT", "BRA", "EXIT"]


def cycles(code: list[Instruction], blocks: int = 1, warps: int = 1) -> float:
    return Scheduler(H100, blocks, warps, memory_cycles=500).cycles(code)


def test_a_scheduler_does_what_the_bits_say() -> None:
    add = Instruction("IADD3 R1, R2, R3, RZ", stall=4)
    assert cycles([add] * 10) == 40
    assert cycles([add] * 10, warps=4) == pytest.approx(40, abs=4), "warps fill the stalls of others"
    assert cycles([add] * 10, warps=8) == pytest.approx(80, abs=4), "one issues in a cycle"
    load = Instruction("LDG.E.128 R4, desc[UR4][R2.64]", write=0)
    used = Instruction("FADD R4, R4, R4", wait=0b1)
    alone = cycles([load, used])
    assert 500 < alone < 600
    assert cycles([replace(load, write=7), replace(used, wait=0)] * 2) < alone + 100, "nothing waits"
    assert cycles([load, used] * 4) > 4 * 500
    assert cycles([load, used] * 4, warps=4) < 5 * 500, "others hide what one waits for"
    product = Instruction("HMMA.16816.F32 R12, R12, R8, RZ")
    rate = H100.tensor_flops / H100.multiprocessors / H100.schedulers / H100.clock_hertz
    assert cycles([product] * 100, warps=4) == pytest.approx(400 * 2 * product.macs / rate, rel=0.02)


def test_copies_and_barriers() -> None:
    copy = Instruction("LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64]")
    group = Instruction("LDGDEPBAR", write=0)
    wait = [Instruction(f"DEPBAR.LE SB0, {n:#x}", stall=1) for n in range(3)]
    work = [Instruction("IADD3 R1, R2, R3, RZ", stall=10)] * 30
    first = [copy, group, *work, copy, group]
    assert cycles([*first, wait[1], *work[:1]]) < 560, "all but the last have come"
    assert cycles([*first, wait[0], *work[:1]]) > 800
    assert cycles([*first, wait[2], *work[:1]]) == pytest.approx(cycles([*first, *work[:1]]), abs=4)
    barrier = Instruction("BAR.SYNC.DEFER_BLOCKING 0x0", stall=5)
    for blocks, warps in ((1, 2), (2, 1), (2, 2)):
        assert cycles([barrier, *work], blocks, warps) == pytest.approx(300, abs=20), "all are released"


def product(rows: int, depth: int, columns: int) -> KernelGraph:
    shapes = {"x": (rows, depth), "w": (depth, columns), "y": (rows, columns)}
    x, w, y = (Value(TensorType(shape, "f16"), name) for name, shape in shapes.items())
    return lower(KernelGraph("f", [x, w], [Node("matmul", (x, w), (y,))], [y]), H100)


def with_warps(graph: KernelGraph, warps: int) -> KernelGraph:
    nodes = [
        replace(n, body=replace(n.body, num_warps=warps)) if isinstance(n.body, TileProgram) else n
        for n in graph.nodes
    ]
    return KernelGraph(graph.name, graph.inputs, nodes, graph.outputs)


def test_machine_code_only_adds_and_tells_launches_apart() -> None:
    compiler = Compiler(H100)
    few, many = (with_warps(product(16, 2048, 2048), n) for n in (1, 4))
    by_kernels, by_code = ByKernels(compiler), ByCode(compiler)
    compiled = by_kernels.evaluate([few, many])
    priced = by_code.evaluate([few, many])
    for less, more in zip(compiled, priced, strict=True):
        assert less.seconds is not None
        assert more.seconds is not None
        assert more.interval is not None
        assert less.seconds <= more.interval[0] <= more.interval[1] == more.seconds
        assert more.evaluator == "code"
    assert priced[0].seconds is not None
    assert priced[1].seconds is not None
    assert priced[0].seconds > 1.2 * priced[1].seconds, "one warp waits for itself"
    assert by_code.evaluate([few])[0].work < priced[0].work, "a kernel is disassembled once"
    assert compiled_seconds(many, compiler.scheduled(many).compiled, H100) > 0


def test_a_loop_that_multiplies_is_found() -> None:
    made = Compiler(H100).scheduled(product(512, 4096, 512))
    loop = hot_loop(disassembled(made.compiled[0].cubin))
    assert sum(i.macs for i in loop) > 0
    assert all(i.opcode != "EXIT" for i in loop)
