"""`--saturate-tiles`: the best program that equality saturation finds, by predicted cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.cost.gpus import DEFAULT_TARGET, target
from superopt.errors import BadInput, BadOption, Location
from superopt.transforms.passes import GraphPass, TargetName

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.transforms.tile_saturation.search import SearchOptions, SearchResult


@dataclass(frozen=True)
class SaturateTiles(GraphPass):
    """Rewrite the program as tile loops in every way the rules allow and take the one predicted to be fastest.

    What is taken is certified equivalent (unless `certify=false`); `--superoptimize` also compiles it and checks
    numerics. Remarks say how large the e-graph became, and with `statistics`, what each rule did.
    """

    flag: ClassVar[str] = "saturate-tiles"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose cost model and memory limits decide."""

    iterations: int = 20
    """Iterations of all rules at most."""

    nodes: int = 20_000
    """Nodes in one e-graph at most."""

    memory_mb: int = 3072
    """Memory of one e-graph at most, in MiB."""

    budget: float = 60.0
    """Seconds that saturation and extraction may take together; what was found by then is used."""

    seed: int = 0
    """Seed of the certifying test; the search itself is deterministic."""

    inline: Literal["all", "single", "both"] = "both"
    """How values with several users start: written into each of them, stored, or one e-graph of each."""

    kernels: int = 12
    """Kernels in the program at most."""

    rules: tuple[str, ...] = ()
    """Rules to apply besides the default ones; those to leave out have a minus in front."""

    certify: bool = True
    """Certify what is taken."""

    statistics: bool = False
    """Say of each rule how often it matched, was refused by its guard, and fired."""

    print_egraph: str | None = None
    """Write the first e-graph to this file; its name ends in .dot or .json."""

    def __post_init__(self) -> None:

        target(self.target)
        if not self.budget > 0:
            raise BadOption(f"expected a positive budget in seconds, got {self.budget}")
        if self.seed < 0:
            raise BadOption(f"expected no negative seed, got {self.seed}")
        if self.print_egraph is not None:
            path = Path(self.print_egraph)
            if path.suffix not in (".dot", ".json"):
                raise BadOption(f"expected print-egraph to name a .dot or .json file, got '{path}'")
            if not path.absolute().parent.is_dir():
                raise BadOption(f"expected print-egraph to name a file in a folder that exists, got '{path}'")
        self.search_options()

    def search_options(self) -> SearchOptions:
        """The search's own options."""
        from superopt.transforms.tile_saturation.search import SearchOptions

        return SearchOptions(
            iterations=self.iterations,
            nodes=self.nodes,
            memory_mb=self.memory_mb,
            inline=("all", "single") if self.inline == "both" else (self.inline,),
            rules=self.rules,
            kernels=self.kernels,
        )

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The best program found, or `graph` itself where none is predicted to be faster."""
        from superopt import cost
        from superopt.cost.model import VIEWS
        from superopt.report import SearchReport
        from superopt.transforms.tile_saturation.search import propose

        target = cost.target(self.target)
        found = propose(graph, target, budget=self.budget, options=self.search_options())
        self.report(found, graph.location, diagnostics)
        before = cost.cost(graph, target).seconds
        report = SearchReport(
            by=str(self),
            program=graph.name,
            segment=None,
            input_predicted_seconds=before,
            predicted=found.predicted,
            chosen=None,
            complete=None,
            funnel=found.funnel,
            seconds=found.seconds,
            egraphs=[saturation.report() for saturation in found.saturations],
        )
        diagnostics.searches.append(report)
        for number, (candidate, seconds) in enumerate(zip(found.candidates, found.predicted, strict=True)):
            if seconds >= before:
                break
            if not self.accepted(graph, candidate, diagnostics):
                continue
            report.chosen = number
            kernels = sum(n.op not in VIEWS for n in candidate.nodes)
            diagnostics.remark(
                f"{kernels} kernel{'s' * (kernels != 1)}, predicted {seconds * 1e6:.1f} us instead of "
                f"{before * 1e6:.1f} us",
                graph.location,
            )
            return candidate
        report.remark = reason = found.remark or "no candidate is predicted to be faster"
        diagnostics.remark(f"the program is kept: {reason}", graph.location)
        return graph

    def accepted(self, graph: KernelGraph, candidate: KernelGraph, diagnostics: Diagnostics) -> bool:
        """Whether a candidate is certified equivalent, where that is asked for."""
        if not self.certify:
            return True
        from superopt.errors import IllegalProgram
        from superopt.verify import certify

        try:
            if certify(graph, candidate, seed=self.seed).equivalent:
                return True
            reason = "it is not equivalent"
        except IllegalProgram as error:
            reason = error.message
        diagnostics.warning(f"a candidate was dropped: {reason}", graph.location)
        return False

    def report(self, found: SearchResult, location: Location, diagnostics: Diagnostics) -> None:
        """Remarks on the e-graphs and on the best of each number of kernels, and the file that was asked for."""
        if found.by_kernels:
            best = [f"{n}: {them[0][0] * 1e6:.1f} us" for n, them in sorted(found.by_kernels.items())]
            diagnostics.remark(f"predicted, by number of kernels: {', '.join(best)}", location)
        for saturation in found.saturations:
            diagnostics.remark(saturation.summary(), location)
            if self.statistics:
                for name, matched, refused, fired in saturation.encoder.graph.statistics:
                    if matched:
                        diagnostics.remark(
                            f"{saturation.name}: {name}: matched {matched}, refused {refused}, fired {fired}",
                            location,
                        )
        if self.print_egraph is not None and found.saturations:
            from superopt.transforms.tile_saturation.print_egraph import as_dot, as_json

            path = Path(self.print_egraph)
            encoder = found.saturations[0].encoder
            text = as_dot(encoder) if path.suffix == ".dot" else as_json(encoder)
            try:
                path.write_text(text)
            except OSError as error:
                raise BadInput(f"cannot write '{path}': {error.strerror}") from None
