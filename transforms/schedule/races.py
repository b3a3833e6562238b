"""Which kernels are illegal as they are launched: races of pipelines, early reads of tensor memory, traps."""

from __future__ import annotations

import re

from superopt.transforms.emit.compile import Compiled
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.verify.ptx.check import PtxText, order_fault


def race(kernel: TritonKernel, facts: Compiled) -> str:
    """Why the first block of a kernel of the kinds that race is illegal; empty where it is not."""
    asynchronous = "wgmma.mma_async" in facts.ptx or "tcgen05.mma" in facts.ptx
    pipelined = asynchronous and kernel.num_stages > 1 and "cp.async." in facts.ptx
    if not pipelined and not packed_early(facts.ptx) and "trap;" not in facts.ptx:
        return ""
    return order_fault(PtxText(facts.ptx, facts.shared_bytes), kernel.grid, kernel.memory)


def packed_early(ptx: str) -> bool:
    """Whether the text names what a load from tensor memory gives before it waits for it."""
    for load in re.finditer(r"tcgen05\.ld\.[^{]*\{([^}]*)\}", ptx):
        until = ptx.find("tcgen05.wait::ld", load.end())
        named = set(re.findall(r"%r\d+", ptx[load.end() : until]))
        if named & set(re.findall(r"%r\d+", load[1])):
            return True
    return False
