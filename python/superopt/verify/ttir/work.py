"""How much a kernel computes, estimated before it runs."""

from __future__ import annotations

import math

from superopt.verify.ttir.parser import Function, Region


def instance_work(kernel: Function) -> int:
    """Roughly the elements that one instance computes: tiles times trips, and products in full."""
    return _region_work(kernel.body, {})


def _region_work(region: Region, constants: dict[int, int]) -> int:
    total = 0
    for op in region.ops:
        if (
            op.name == "arith.constant"
            and op.results
            and not op.types[0].shape
            and op.literal.lstrip("-").isdigit()
        ):
            constants[op.results[0]] = int(op.literal)
        size = max((math.prod(t.shape) for t in op.types), default=1)
        if op.name == "tt.dot":
            size = (
                math.prod(op.types[0].shape) * op.types[1].shape[-1] // 16
            )  # cheaper than an element elsewhere
        inner = sum(_region_work(r, constants) for r in op.regions)
        if op.name == "scf.for":
            low, high, step = (constants.get(v) for v in op.operands[:3])
            if low is None or high is None or not step or step < 0:
                total += inner
            else:
                total += inner * max(0, math.ceil((high - low) / step))
        else:
            total += size + inner
    return total


def widest(region: Region) -> int:
    """The most elements of any value in a region."""
    most = 1
    for op in region.ops:
        most = max([most, *(math.prod(t.shape) for t in op.types)])
        most = max([most, *(widest(r) for r in op.regions)])
    return most
