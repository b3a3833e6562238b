"""Derivation as an optimizer: its options, and a best-first search over the rules."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from superopt import clock
from superopt.errors import BadOption
from superopt.operators import is_contraction, is_windowed
from superopt.options import did_you_mean
from superopt.transforms.derivation.channels_last import channels_last
from superopt.transforms.derivation.mutants.correction import (
    DIFFERENCE,
    Corrector,
    Difference,
    predicted_seconds,
)
from superopt.transforms.derivation.mutants.derived import MUTANTS
from superopt.transforms.derivation.mutants.generated import AGREEMENT, MOST_OPERATORS
from superopt.transforms.derivation.rules import RULES, SCALES, SPLIT, Rule, is_conv, split_kernels
from superopt.transforms.optimizers import Optimizer, Proposal, Proposals, never

if TYPE_CHECKING:
    from superopt.cost import KernelCost, Target
    from superopt.program import KernelGraph, Node, TileProgram


# Operators on windows that are lowered to be priced.
_MOST_KERNELS = 256


@dataclass(frozen=True)
class DerivationOptimizer(Optimizer):
    """Derive other expressions for convolutions (OLLIE, OSDI 2023); compute what follows in the same kernel.

    Programs are looked at cheapest first; what the rules make of them is priced and, where it is new, looked at
    in turn. So are mutants, which are right in places only, with what corrects them (PET, OSDI 2021), where they,
    or a kernel that corrects them, are faster than what they stand for. Raises BadOption for values out of range
    or unknown rules.
    """

    name: ClassVar[str] = "derivation"

    depth: int = 4
    """Maximum number of rules applied one after the other."""
    limit: int = 64
    """Maximum number of programs to look at."""
    rules: tuple[str, ...] = ()
    """The rules and mutants to apply; all of them where none is given."""
    hints: bool = True
    """Split kernels as leads to smaller ones that libraries have; else in every way, as OLLIE's search without
    guided hints does."""
    difference: Difference = DIFFERENCE
    """How it is decided where a mutant is wrong."""
    mutate: int = 0
    """Also mutants of up to as many operators that are generated, as PET does; 0 generates none."""
    agreement: float = AGREEMENT
    """The share of positions at which such a mutant must be right."""
    candidates: int = 8
    """Maximum number of candidates to return, cheapest first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "limit", "candidates"):
            if getattr(self, name) < 1:
                raise BadOption(f"expected a positive {name}, got {getattr(self, name)}")
        chosen_names(self.rules)
        checked_mutation(self.mutate, self.agreement)

    def refusal(self, program: KernelGraph) -> str:
        """Programs without convolutions and pooling."""
        return "" if any(map(is_windowed, program.nodes)) else "it has neither convolutions nor pooling"

    def propose(
        self,
        program: KernelGraph,
        target: Target,
        *,
        budget: float,
        seed: int = 0,
        stop: Callable[[], bool] = never,
    ) -> Proposals:
        """Programs that the rules derive, each also with elementwise operators in the kernels before them, with
        channels first and last; what scales the result of a convolution is moved into its weights first.

        Deterministic, so `seed` has no effect.
        """
        del seed
        from superopt.transforms.lower.kernel_to_tile import fuse_windows
        from superopt.verify.hashing import program_hash

        end, names = clock.now() + budget, self.rules or (*RULES, *MUTANTS)
        rules = {name: RULES[name] for name in names if name in RULES}
        scaled = _everywhere(program, rules.pop(SCALES)) if SCALES in rules else program
        funnel = dict.fromkeys([*(f"rule {name}" for name in names), "looked at", "priced"], 0)
        seen, order = {program_hash(program)}, itertools.count()
        known: dict[Hashable, KernelCost] = {}
        kernels: dict[Hashable, TileProgram] = {}

        def seconds(graph: KernelGraph) -> float:
            return predicted_seconds(graph, target, known, kernels)

        corrector = Corrector(
            self.difference,
            tuple(n for n in names if n in MUTANTS),
            self.mutate,
            self.agreement,
            worthwhile=lambda source, mutant: seconds(mutant) < seconds(source),
            stop=lambda: clock.now() >= end or stop(),
        )
        starts = [program] if scaled is program else [scaled, program]
        waiting = sorted((seconds(graph), next(order), 0, graph) for graph in starts)
        looked_at: list[tuple[float, int, int, KernelGraph]] = []
        while waiting and funnel["looked at"] < self.limit and clock.now() < end and not stop():
            looked_at.append(heapq.heappop(waiting))
            *_, depth, graph = looked_at[-1]
            funnel["looked at"] += 1
            if depth == self.depth:
                continue
            for name, made in _derived(graph, rules, corrector, hints=self.hints):
                if (text := program_hash(made)) not in seen:
                    seen.add(text)
                    funnel[f"rule {name}"] = funnel.get(f"rule {name}", 0) + 1
                    heapq.heappush(waiting, (seconds(made), next(order), depth + 1, made))
        # Kernels are written for the program and as many of the cheapest as that is little work for.
        found: list[Proposal] = []
        most = max(self.candidates, _MOST_KERNELS // max(sum(map(is_windowed, program.nodes)), 1))
        derived = [graph for *_, graph in sorted(looked_at) if graph not in starts]
        priced = {id(graph): price for price, *_, graph in [*waiting, *looked_at]}
        for graph in [*starts, *derived][:most]:
            if found and (clock.now() >= end or stop()):
                break
            layouts = (graph, channels_last(graph))
            for made in (graph, *(fuse_windows(g, target, kernels) for g in layouts if g is not None)):
                if made is not program and any(n.body is not None for n in made.nodes) | (made is graph):
                    found.append(Proposal(made, priced.get(id(made)) or seconds(made)))
                    funnel["priced"] += 1
        found.sort(key=lambda p: p.seconds)
        remark = "" if found else "no rule fits"
        funnel |= corrector.counts
        return Proposals(found[: self.candidates], funnel, complete=not waiting, remark=remark)


def chosen_names(names: tuple[str, ...]) -> None:
    """BadOption for a name that is neither a rule's nor a mutant's."""
    have = (*RULES, *MUTANTS)
    for name in names:
        if name not in have:
            raise BadOption(f"expected a rule of {', '.join(have)}, got '{name}'{did_you_mean(name, have)}")


def checked_mutation(mutate: int, agreement: float) -> None:
    """BadOption for numbers of operators and shares that PET's generator does not take."""
    if not 0 <= mutate <= MOST_OPERATORS:
        raise BadOption(f"expected mutate of 0 to {MOST_OPERATORS} operators, got {mutate}")
    if not 0 < agreement <= 1:
        raise BadOption(f"expected an agreement above 0 and of at most 1, got {agreement}")


def is_derived(node: Node) -> bool:
    """Whether there are rules for it."""
    return is_windowed(node) or is_contraction(node)


def _everywhere(graph: KernelGraph, rule: Rule) -> KernelGraph:
    """`graph` after one application of the rule for each convolution that it fits."""
    for result in [n.result for n in graph.nodes if is_windowed(n)]:
        node = next((n for n in graph.nodes if result in n.results), None)
        graph = (node is not None and rule(graph, node)) or graph
    return graph


def _derived(
    graph: KernelGraph, rules: dict[str, Rule], corrector: Corrector, *, hints: bool
) -> Iterator[tuple[str, KernelGraph]]:
    """What each rule, and each mutant with each repair, makes of each node, where it fits."""
    for node in graph.nodes:
        if is_derived(node):
            for name, rule in rules.items():
                if (made := rule(graph, node)) is not None:
                    yield name, made
            if not hints and is_conv(node):
                sizes = node.operands[1].shape[2:]
                for inner in itertools.product(*(range(1, size + 1) for size in sizes)):
                    if (made := split_kernels(graph, node, inner)) is not None:
                        yield SPLIT, made
            yield from ((found.mutant, made) for found, made in corrector.of(graph, node))
