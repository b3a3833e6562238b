"""Why a kernel keeps bank conflicts, or sectors that no thread asked for: what else was compiled, and its price.

A kernel that makes more than `CONFLICTS` times the transactions that suffice asks for separate loads, another
launch or other tiles. Where `fit` delivers it all the same, it says what it tried, or that there was too little
to gain: no launch of these tiles can be faster than the price with only the transactions that suffice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superopt.cost import Target, compiled_cost, priced_kernels
from superopt.cost.counted import CONFLICTS, waste, without_waste
from superopt.program import KernelGraph, Node, TileProgram
from superopt.report import Kept
from superopt.separate_loads import separable

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled


# A kernel is slow that is predicted to need more than this times what its tiles promise.
SLOW = 1.05


@dataclass(frozen=True)
class Variant:
    """A kernel as it was compiled otherwise: what was changed, its predicted seconds by itself, its ratio of
    wavefronts."""

    what: str
    seconds: float
    ratio: float

    def said(self, hidden: float) -> str:
        """In words; `hidden` are seconds that the kernel takes less where it stands than by itself."""
        return f"{self.what}: {_us(self.seconds - hidden)}, {self.ratio:.2f} times the wavefronts"


@dataclass
class Tries:
    """What was compiled besides what is delivered: variants by kernel, and seconds of the whole with other tiles.

    `ended` says that the budget did not allow for more tilings.
    """

    variants: dict[str, list[Variant]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tilings: Sequence[float] = ()
    ended: bool = False


def kept(
    lowered: KernelGraph, compiled: Sequence[Compiled], tries: Tries | str, target: Target
) -> dict[str, Kept]:
    """Why kernels, by name, make more transactions than suffice, the worst first, those left out that hardly do.

    `compiled` are the kernels of `lowered`. `tries` is where their schedules come from, in words, if no other was
    tried.
    """
    nodes = [n for n in lowered.nodes if isinstance(n.body, TileProgram)]
    prices = [k.seconds for k in priced_kernels(lowered, compiled, target) if k.compiled is not None]
    worst = sorted(zip(nodes, compiled, prices, strict=True), key=lambda k: -waste(k[1]))
    return {
        facts.name: _why(node, facts, price, tries, target)
        for node, facts, price in worst
        if waste(facts) > CONFLICTS
    }


def _why(node: Node, facts: Compiled, price: float, tries: Tries | str, target: Target) -> Kept:
    """That of one kernel; `price` is what it takes where it stands, which may be less than by itself."""
    counts, program = facts.counts, node.body
    assert counts is not None
    assert isinstance(program, TileProgram)
    now, least = (compiled_cost(node, f, target).seconds for f in (facts, without_waste(facts)))
    parts = {"wavefronts of shared memory": counts.shared, "sectors of device memory": counts.device}
    ratios = [f"{t.ratio:.2f} times the {name}" for name, t in parts.items() if t.ratio > CONFLICTS]
    has = f"needs {' and '.join(ratios)} that suffice, which costs {(now - least) * 1e6:.2f} of {_us(price)}"
    if isinstance(tries, str):
        return Kept(cause="given", why=f"{has}: {tries}, and no other was tried")
    tried = _tried(program, tries, now - price)
    if now <= SLOW * least:
        share = f"{(now / least - 1) * 100:.1f} % where it is launched by itself"
        tried_from = f"other launches and tiles are tried from {(SLOW - 1) * 100:.0f} % on"
        return Kept(cause="cheap", why="; ".join([f"{has}, {share}", tried_from, *tried]))
    if tries.tilings:
        number = f"{len(tries.tilings)} other tilings of the program"
        tried.append(f"{number}: {_us(min(tries.tilings))} in all at best")
    elif tries.ended:
        tried.append("the budget ended before other tiles")
    else:
        tried.append("no other tiles that compile promise less")
    return Kept(cause="tried", why=f"{has}, although other launches and tiles were tried: {'; '.join(tried)}")


def _tried(program: TileProgram, tries: Tries, hidden: float) -> list[str]:
    """The variants of a kernel, the cheapest of those that change the same; whether loads can be separate."""
    cheapest: dict[str, Variant] = {}
    for variant in tries.variants.get(program.name, ()):
        kind = variant.what.split(" ")[-1] if "warps" in variant.what else variant.what
        if kind not in cheapest or variant.seconds < cheapest[kind].seconds:
            cheapest[kind] = variant
    said = [v.said(hidden) for v in cheapest.values()]
    if failed := tries.failed.get(program.name):
        said.append(f"{failed} more do not compile, do not fit or race")
    if not program.separate_loads and not separable(program):
        said.append("no input feeds both a product and another operator, which a second load is for")
    return said


def remarks(kernels: Mapping[str, Kept]) -> list[str]:
    """One remark for each cause: of the first kernel that has it, and the names of the others, whose numbers the
    report has."""
    by_cause: dict[str, list[str]] = defaultdict(list)
    for name, found in kernels.items():
        by_cause[found.cause].append(name)
    return [
        f"kernel '{names[0]}' {kernels[names[0]].why}"
        + (
            f"; the report says the same, with their own numbers, of {', '.join(names[1:])}"
            if names[1:]
            else ""
        )
        for names in by_cause.values()
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"
