"""Targets: GPUs as data files, `targets/<name>.json`; rates are sustained ones, not those of the brochure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from superopt.errors import BadOption
from superopt.transforms.core import _cost

# Threads of a warp, on every GPU that CUDA knows.
WARP_THREADS = 32


@dataclass(frozen=True)
class Target:
    """What the cost model, the search and the emitter know of a GPU.

    Units: seconds, bytes, bytes per second, floating-point operations per second. `capability` is the compute
    capability times ten; the `shared_*` limits are of one block (opt-in maximum) and of one multiprocessor.
    `blocks_per_multiprocessor` is what the analytic model takes to be resident at most, whatever their memory.
    Of a multiprocessor are the 32-bit `registers` (one block may have all of them), the `schedulers` of warps,
    and the `most_warps` and `most_blocks` that it holds. A thread gets registers by the `register_unit`; of each
    block `reserved_shared` bytes are the system's. `matrix_side` is how many rows, columns and depth the matrix
    units multiply at least.
    """

    name: str
    gpu: str
    capability: int
    launch_seconds: float
    iteration_seconds: float
    dram_bytes_per_second: float
    l2_bytes_per_second: float
    l2_capacity: float
    tensor_flops: float
    vector_flops: float
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers: int
    register_unit: int
    reserved_shared: int
    schedulers: int
    most_warps: int
    most_blocks: int
    matrix_side: int

    @property
    def has_copy_engine(self) -> bool:
        """Whether blocks can have tiles fetched by tensor descriptors (TMA)."""
        return self.capability >= 90

    def numbers(self) -> _cost.TargetNumbers:
        """This target as the native cost formula takes it."""
        numbers = _cost.TargetNumbers()
        for name in _NUMBERS:
            setattr(numbers, name, getattr(self, name))
        return numbers


_NUMBERS = [name for name in dir(_cost.TargetNumbers) if not name.startswith("_")]


def target_names() -> list[str]:
    """The known targets, sorted."""
    found = (f.name for f in files(__package__ or "superopt.cost").joinpath("targets").iterdir())
    return sorted((n.removesuffix(".json") for n in found if n.endswith(".json")), key=lambda n: int(n[3:]))


@cache
def target(name: str) -> Target:
    """The target called `name`; raises BadOption for one that is not known."""
    if name not in target_names():
        raise BadOption(f"expected a target of {', '.join(target_names())}, got '{name}'")
    text = files(__package__ or "superopt.cost").joinpath("targets", f"{name}.json").read_text()
    return Target(**json.loads(text))
