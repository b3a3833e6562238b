"""What is known about a finished program before it runs, as numbers: what a learned correction is trained on.

All of it needs a compiler and no GPU: the counts of the analytic model, and the shared memory, registers and
spills that ptxas reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.cost.compiled import compiled_seconds, resident_blocks
from superopt.cost.gpus import Target
from superopt.cost.model import cost, kernel_cost
from superopt.cost.traffic import Traffic
from superopt.program import Compute, KernelGraph, Load, Loop, TileProgram
from superopt.transforms.core import _cost

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled

NAMES = (
    "log_seconds",
    "kernels",
    "log_dram",
    "log_l2",
    "log_tensor",
    "log_vector",
    "log_blocks",
    "log_trips",
    "log_shared",
    "registers",
    "log_spill",
    "warps",
    "stages",
    "resident_warps",
    "log_waves",
)


# What is known before anything is compiled: of all kernels, and, from `log_blocks` on, of the longest.
LOWERED = (
    "log_seconds",
    "kernels",
    "log_dram",
    "log_l2",
    "log_tensor",
    "log_vector",
    "log_special",
    "log_blocks",
    "log_trips",
    "log_shared",
    "log_tile",
    "log_run",
    "loops",
    "warps",
    "stages",
    "hints",
    "descriptors",
)


def lowered_features(graph: KernelGraph, target: Target) -> dict[str, float]:
    """Features of a lowered program, `LOWERED`; `log_seconds` is the prediction by its tiles.

    `log_tile` are the elements of the largest tile that is computed, `log_run` the shortest run of elements that
    a load takes along the last dimension.
    """
    costs = cost(graph, target)
    found = dict[str, float](dict.fromkeys(LOWERED, 0.0))
    found["log_seconds"] = math.log(costs.seconds) if costs.seconds > 0 else -math.inf
    kernels = [n for n in graph.nodes if isinstance(n.body, TileProgram)]
    priced = [kernel_cost(n, target) for n in kernels]
    if not priced:
        return found
    longest = max(range(len(priced)), key=lambda i: priced[i].seconds)
    traffic, body = priced[longest].traffic, kernels[longest].body
    assert isinstance(body, TileProgram)
    statements = list(body.statements())
    sizes = {"dram": "dram_bytes", "l2": "l2_bytes", "tensor": "tensor_flops", "vector": "vector_flops"}
    for name, of in (*sizes.items(), ("special", "special_operations")):
        found[f"log_{name}"] = _log(sum(float(getattr(c.traffic, of)) for c in priced))
    runs = [s.result.shape[-1] for s in statements if isinstance(s, Load) and s.result.shape]
    tiles = [s.result.type.elements for s in statements if isinstance(s, Compute)]
    return found | {
        "kernels": float(len(priced)),
        "log_blocks": _log(traffic.blocks),
        "log_trips": _log(traffic.loop_trips),
        "log_shared": _log(traffic.shared_bytes),
        "log_tile": _log(max(tiles, default=0)),
        "log_run": _log(min(runs, default=0)),
        "loops": float(sum(isinstance(s, Loop) for s in statements)),
        "warps": float(body.num_warps),
        "stages": float(body.num_stages),
        "hints": float(body.cache_hints),
        "descriptors": float(body.descriptors),
    }


def program_features(graph: KernelGraph, compiled: Sequence[Compiled], target: Target) -> dict[str, float]:
    """Features of a lowered program and its compiled kernels: `NAMES`; sums over kernels, or of the longest one.

    `log_seconds` is the prediction of `compiled.py`.
    """
    kernels = [n for n in graph.nodes if isinstance(n.body, TileProgram)]
    costs = [kernel_cost(n, target) for n in kernels]
    if not costs:
        return dict[str, float](dict.fromkeys(NAMES, 0.0))
    longest = max(range(len(costs)), key=lambda i: costs[i].seconds)
    traffic, facts, body = costs[longest].traffic, compiled[longest], kernels[longest].body
    assert isinstance(body, TileProgram)
    resident = resident_blocks(facts, body.num_warps, target)
    waves = _cost.waves(target.numbers(), traffic.blocks, resident)

    def total(name: str) -> float:
        return _log(sum(float(getattr(c.traffic, name)) for c in costs))

    return {
        "log_seconds": math.log(compiled_seconds(graph, compiled, target)),
        "kernels": float(len(costs)),
        "log_dram": total("dram_bytes"),
        "log_l2": total("l2_bytes"),
        "log_tensor": total("tensor_flops"),
        "log_vector": total("vector_flops"),
        "log_blocks": _log(traffic.blocks),
        "log_trips": _log(traffic.loop_trips),
        "log_shared": _log(facts.shared_bytes),
        "registers": float(facts.registers),
        "log_spill": _log(sum(k.spill_bytes for k in compiled)),
        "warps": float(body.num_warps),
        "stages": float(body.num_stages),
        "resident_warps": float(resident * body.num_warps),
        "log_waves": _log(waves),
    }


def library_features(traffic: Traffic, seconds: float) -> dict[str, float]:
    """Features of one kernel whose traffic alone is known."""
    made: dict[str, float] = dict.fromkeys(NAMES, 0.0)
    made |= {
        "log_seconds": math.log(seconds),
        "kernels": 1.0,
        "log_dram": _log(traffic.dram_bytes),
        "log_l2": _log(traffic.l2_bytes),
        "log_tensor": _log(traffic.tensor_flops),
        "log_vector": _log(traffic.vector_flops),
        "log_blocks": _log(traffic.blocks),
        "log_trips": _log(traffic.loop_trips),
        "log_shared": _log(traffic.shared_bytes),
    }
    return made


def _log(value: float) -> float:
    return math.log1p(max(value, 0.0))
