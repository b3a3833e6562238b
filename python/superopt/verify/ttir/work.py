"""How much a kernel computes: estimated before it runs, and counted while it does, which text cannot evade."""

from __future__ import annotations

import math

from superopt.errors import UnsupportedProgram
from superopt.verify import allowance
from superopt.verify.ttir.parser import Function, Operation, Region

# What one launch may take, in elements of integers, 4 ns each: ten minutes. The addresses of 1,024 instances of
# attention to 4,096 keys take 10^10.
MOST_WORK = 1 << 37
# What one operation costs on top, and what an element of a field or a term of a product in one costs.
AN_OPERATION, A_NUMBER = 1 << 11, 8


class Meter:
    """What is left of the work that one launch may take."""

    def __init__(self, most: int = MOST_WORK) -> None:
        self.left = self.most = most

    def spend(self, work: int, where: str) -> None:
        """Raises UnsupportedProgram where more is taken than there was."""
        self.left -= work
        allowance.spend(work, where)
        if self.left < 0:
            raise UnsupportedProgram(
                f"{where}: expected a kernel that its check can run, got one that takes more than {self.most:,} "
                "operations"
            )


def instance_work(kernel: Function, grid: tuple[int, int, int]) -> int:
    """Roughly the elements that one instance computes: tiles times trips, and products in full.

    A loop that ends at a different place in each instance counts as the longest.
    """
    return _region_work(kernel.body, grid, {}, {})


def _region_work(
    region: Region, grid: tuple[int, int, int], most: dict[int, int], constants: dict[int, int]
) -> int:
    """The same for a region; `most` are numbers that scalars, none of them negative, do not exceed."""
    total = 0
    for op in region.ops:
        if op.results and not op.types[0].shape and (bound := _most(op, grid, most)) is not None:
            most[op.results[0]] = bound
            if op.name == "arith.constant":
                constants[op.results[0]] = bound
        size = op.widest
        if op.name == "tt.dot":
            size = (
                math.prod(op.types[0].shape) * op.types[1].shape[-1] // 16
            )  # cheaper than an element elsewhere
        inner = sum(_region_work(r, grid, most, constants) for r in op.regions)
        if op.name == "scf.for":
            # From 0 on, where it begins at a different place in each instance.
            low = constants.get(op.operands[0], 0)
            high, step = (most.get(v) for v in op.operands[1:3])
            if high is None or not step or step < 0:
                total += inner
            else:
                total += inner * max(0, math.ceil((high - low) / step))
        else:
            total += size + inner
    return total


def _most(op: Operation, grid: tuple[int, int, int], most: dict[int, int]) -> int | None:
    """A number that the integer result of `op` does not exceed; None where that is not known."""
    if op.name == "arith.constant":
        return int(op.literal) if op.literal.lstrip("-").isdigit() else None
    if op.name == "tt.get_program_id":
        return grid["xyz".index(op.words[0])] - 1
    known = [most.get(v) for v in op.operands]
    if op.name == "arith.minsi" and any(n is not None for n in known):
        return min(n for n in known if n is not None)
    if len(known) != 2 or None in known:
        return None
    a, b = (n for n in known if n is not None)
    return {
        "arith.addi": a + b, "arith.subi": a, "arith.muli": a * b, "arith.maxsi": max(a, b),
        "arith.remsi": min(a, b), "arith.divsi": a // max(b, 1),
    }.get(op.name)  # fmt: skip


def widest(region: Region) -> int:
    """The most elements of any value in a region."""
    most = 1
    for op in region.ops:
        most = max([most, *(math.prod(t.shape) for t in op.types)])
        most = max([most, *(widest(r) for r in op.regions)])
    return most
