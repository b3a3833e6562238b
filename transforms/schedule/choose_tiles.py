"""`--choose-tiles`: the tile extents of lowered kernels, as decisions that can be searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.cost.gpus import DEFAULT_TARGET, Target, TargetName
from superopt.cost.gpus import target as find_target
from superopt.program import KernelGraph, Node, TileProgram, rebuild
from superopt.transforms.fingerprints import kernel_fingerprint
from superopt.transforms.schedule.launch import choose_launch
from superopt.transforms.schedule.retile import Tiling
from superopt.transforms.schedule.tilings import kernel_tiles, prefix_of
from superopt.transforms.tunable import Choices, Pick, Site, Tunable

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics


@dataclass(frozen=True)
class ChooseTiles(Tunable):
    """Give tile programs the tile extents of `config`, and the launches that suit them.

    By itself it changes nothing: lowering has chosen. Other tiles are guesses that have to be proved: a mean
    within a tile, for instance, changes its meaning in a smaller one.
    """

    flag: ClassVar[str] = "choose-tiles"
    level: ClassVar[Literal["graph", "kernel"]] = "kernel"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose limits bound the choices, and whose cost model orders them."""

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """for k in 0..8: x = X[k * 512 : +512]  ->  for k in 0..16: x = X[k * 256 : +256]"""
        target = find_target(self.target)

        def chosen(node: Node) -> Node:
            body = node.body
            if not isinstance(body, TileProgram) or not (now := _now(Tiling(body))):
                return node
            at = kernel_fingerprint(node, *now)
            default = _said(now)
            taken = pick(Site(at, default, lambda: _others(at, node, target), node.location))
            if taken == default:
                return node
            moved = Tiling(body).apply(_read(taken))
            choose_launch(moved, target, None, None)
            return replace(node, body=moved)

        return rebuild(graph, chosen)


def parameters(lowered: KernelGraph, choices: Choices) -> dict[str, int]:
    """The tiles that `choices` give the kernels of a lowered program, named as a schedule names them."""
    kernels = [n for n in lowered.nodes if isinstance(n.body, TileProgram)]
    found: dict[str, int] = {}
    for number, node in enumerate(kernels):
        assert isinstance(node.body, TileProgram)
        if (choice := choices.get(kernel_fingerprint(node, *Tiling(node.body).parameters))) is not None:
            prefix = prefix_of(number, len(kernels))
            found |= {prefix + name: extent for name, extent in _read(choice).items()}
    return found


def _now(tiling: Tiling) -> dict[str, int]:
    return {name: parameter.extent for name, parameter in tiling.parameters.items()}


# By the fingerprint of the kernel; equal kernels of many candidates are looked at once.
_KNOWN: dict[tuple[str, str], tuple[str, ...]] = {}


def _others(at: str, node: Node, target: Target) -> tuple[str, ...]:
    """What fits a block, fastest predicted first."""
    if (at, target.name) not in _KNOWN:
        found = kernel_tiles(node, target, Counter())
        _KNOWN[at, target.name] = tuple(_said(dict(tiles.extents)) for tiles in found)
    return _KNOWN[at, target.name]


def _said(extents: Mapping[str, int]) -> str:
    return " ".join(f"{name}={extent}" for name, extent in extents.items())


def _read(choice: str) -> dict[str, int]:
    return {name: int(extent) for name, _, extent in (part.partition("=") for part in choice.split())}
