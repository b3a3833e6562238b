"""Targets: GPUs as data files, `targets/<name>.json`; rates are sustained ones, not those of the brochure."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, TypeAlias

from superopt.errors import BadOption
from superopt.options import OneOf, did_you_mean
from superopt.transforms.core import _cost

# The default target.
DEFAULT_TARGET = "sm_90"
# The target that stands for the GPU of this machine.
NATIVE = "native"
# Threads of a warp, on every GPU that CUDA knows.
WARP_THREADS = 32
# A file for each target: adding one is all that a new target needs.
FOLDER: Traversable = files(__package__ or "superopt.cost").joinpath("targets")


@dataclass(frozen=True)
class Target:
    """What the cost model, the search and the emitter know of a GPU.

    Units: seconds, bytes, bytes per second, floating-point operations per second. `capability` is the compute
    capability times ten; the `shared_*` limits are of one block (opt-in maximum) and of one multiprocessor.
    `blocks_per_multiprocessor` is what the analytic model takes to be resident at most, whatever their memory.
    A multiprocessor has 32-bit `registers` (one block may have all of them) and `schedulers` of warps, and holds
    up to `most_warps` and `most_blocks`. A thread gets registers in multiples of `register_unit`; the system
    takes `reserved_shared` bytes of each block. `matrix_side` is the smallest number of rows, columns and depth
    that the matrix units multiply, `matrix_rows` the rows of a tile at which they reach their rate.
    `early_seconds` of a launch are hidden where a kernel may start while the one before it still runs
    (`superopt.early`). `floor_seconds` is the least time of a kernel that loads and stores, without its launch;
    `special_operations` are those of the special function units in a second, and with each cycle of the clock
    (`clock_hertz`) a multiprocessor's shared memory serves one wavefront.
    """

    name: str
    gpu: str
    capability: int
    launch_seconds: float
    early_seconds: float
    iteration_seconds: float
    floor_seconds: float
    dram_bytes_per_second: float
    l2_bytes_per_second: float
    multiprocessor_bytes_per_second: float
    l2_capacity: float
    tensor_flops: float
    vector_flops: float
    special_operations: float
    clock_hertz: float
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
    matrix_rows: int

    @property
    def model(self) -> str:
        """What people call the GPU: H100 of H100-SXM5-80GB."""
        return self.gpu.partition("-")[0]

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


@cache
def known_targets() -> dict[str, Target]:
    """The targets by name, the oldest first: one for each file of the folder."""
    found = [_read(file) for file in FOLDER.iterdir() if file.name.endswith(".json")]
    return {
        t.name: t for t in sorted(found, key=lambda t: (t.capability, t.name != f"sm_{t.capability}", t.name))
    }


@cache
def host() -> Target:
    """One thread of a CPU, whose rates compiled tile programs reach (`superopt.tuning.by_cpu`)."""
    return _read(files(__package__ or "superopt.cost").joinpath("cpu.json"))


def _read(file: Traversable) -> Target:
    data = json.loads(file.read_text())
    names, name = {field.name for field in fields(Target)}, file.name.removesuffix(".json")
    for what, wrong in (("without", names - set(data)), ("with", set(data) - names)):
        if wrong:
            raise BadOption(
                f"{file}: expected the fields of a target, got one {what} {', '.join(sorted(wrong))}"
            )
    if data["name"] != name:
        raise BadOption(f"{file}: expected the name '{name}', got '{data['name']}'")
    return Target(**data)


def target_names() -> list[str]:
    """The known targets, the oldest first."""
    return list(known_targets())


TargetName: TypeAlias = Annotated[str, OneOf(target_names, lambda name: target(name).name)]
"""The type of an option that names a target."""


def target(name: str) -> Target:
    """The target called `name`, in any case, or whose GPU is (H100); "native" is the GPU of this machine.

    Raises BadOption for one that is not known.
    """
    if name == NATIVE:
        return _native()
    called = {alias.lower(): t for t in known_targets().values() for alias in (t.model, t.name)}
    if name.lower() not in called:
        known = [*target_names(), *(t.model for t in known_targets().values()), NATIVE]
        raise BadOption(f"expected a target of {', '.join(known)}, got '{name}'{did_you_mean(name, known)}")
    return called[name.lower()]


def _native() -> Target:
    """The target of the first GPU of this machine: of its model, or else of its compute capability."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        name, _, capability = done.stdout.splitlines()[0].rpartition(", ")
    except (OSError, subprocess.SubprocessError, IndexError):
        raise BadOption(
            f"expected a GPU on this machine for the target '{NATIVE}', got none that nvidia-smi finds"
        ) from None
    same = [t for t in known_targets().values() if t.capability == round(10 * float(capability))]
    if not same:
        raise BadOption(
            f"expected a GPU of {', '.join(target_names())}, got {name}, of capability {capability}"
        )
    return next((t for t in same if t.model in name), same[0])


def largest_shared_bytes() -> int:
    """The most shared memory that a block may have on any target."""
    return max(t.shared_per_block for t in known_targets().values())
