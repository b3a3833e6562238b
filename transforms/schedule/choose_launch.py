"""`--choose-launch`: how the kernels of a lowered program are launched, as decisions that can be searched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from superopt.cost.gpus import DEFAULT_TARGET, Target, TargetName
from superopt.cost.gpus import target as find_target
from superopt.errors import UnsupportedProgram
from superopt.program import LAUNCH_FLAGS, KernelGraph, Node, TileProgram, rebuild
from superopt.transforms.fingerprints import kernel_fingerprint
from superopt.transforms.schedule.launch import stage_choices, warp_choices
from superopt.transforms.tunable import Pick, Site, Tunable

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics

# The parameters of a launch, and their values: warps, pipeline stages, and what it switches on.
LAUNCH = ("warps", "stages", "hints", "descriptors", "separate", "unmasked")
Launched: TypeAlias = tuple[int, int, bool, bool, bool, bool]
_SWITCHED = tuple(flag for flag in LAUNCH_FLAGS if flag != "alone")  # that one only helps what spills


@dataclass(frozen=True)
class ChooseLaunch(Tunable):
    """Launch tile programs with the warps, stages, hints, descriptors, separate loads and masks of `config`.

    By itself it changes nothing: lowering has chosen. A launch changes no number.
    """

    flag: ClassVar[str] = "choose-launch"
    level: ClassVar[Literal["graph", "kernel"]] = "kernel"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose limits bound the choices."""

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """tiled {num_stages = 3, num_warps = 4} -> tiled {num_stages = 2, num_warps = 8}"""
        target = find_target(self.target)

        def chosen(node: Node) -> Node:
            body = node.body
            if not isinstance(body, TileProgram):
                return node
            default = _said(launch_of(body))

            def others() -> list[str]:
                try:
                    return [_said(launch) for launch in other_launches(body, target)]
                except UnsupportedProgram:  # no kernel can be written: whoever compiles it says why
                    return []

            taken = pick(Site(kernel_fingerprint(node), default, others, node.location))
            return replace(node, body=launched(body, _read(taken)))

        return rebuild(graph, chosen)


def launch_of(program: TileProgram) -> Launched:
    """The launch that a program has now."""
    flags = program.cache_hints, program.descriptors, program.separate_loads, program.separate_masks
    return program.num_warps, program.num_stages, *flags


def launched(program: TileProgram, launch: Launched) -> TileProgram:
    """`program` with another launch."""
    warps, stages, *flags = launch
    switched = dict(zip(_SWITCHED, flags, strict=True))
    return replace(program, num_warps=warps, num_stages=stages, **switched)


def other_launches(program: TileProgram, target: Target) -> Iterator[Launched]:
    """Launches that give different kernels: those with the current warps and stages, then the nearest ones."""
    now = program.num_warps, program.num_stages
    pairs = itertools.product(warp_choices(program), stage_choices(program, target))
    near = sorted(pairs, key=lambda p: (abs(math.log2(p[0] / now[0])) + abs(p[1] - now[1]), p))
    flags = _flags(program, target)
    for pair in [now, *(p for p in near if p != now)]:
        for flag in flags:
            yield *pair, *flag


def _flags(program: TileProgram, target: Target) -> list[tuple[bool, bool, bool, bool]]:
    """The values of `_SWITCHED` that give different kernels, none of them first."""
    from superopt.transforms.emit.triton_source import emit_kernel

    found: dict[str, tuple[bool, bool, bool, bool]] = {}
    engine = (False, True) if target.has_copy_engine else (False,)
    both = False, True
    for unmasked, separate, descriptors, hints in itertools.product(both, both, engine, both):
        flags = hints, descriptors, separate, unmasked
        changed = launched(program, (program.num_warps, program.num_stages, *flags))
        found.setdefault(emit_kernel(changed).source, flags)
    return list(found.values())


def _said(launch: Launched) -> str:
    return " ".join(f"{name}={int(value)}" for name, value in zip(LAUNCH, launch, strict=True))


def _read(choice: str) -> Launched:
    warps, stages, *flags = (int(part.partition("=")[2]) for part in choice.split())
    hints, descriptors, separate, unmasked = map(bool, flags)
    return warps, stages, hints, descriptors, separate, unmasked
