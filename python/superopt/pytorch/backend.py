"""`torch.compile(model, backend="superopt")`, and `explain`, which says what it does.

Each graph that torch.compile captures is cut into regions, from whole graphs down to single modules. A region
that superopt can read and that is predicted to be faster becomes one operator, whose kernels are proved; equal
regions, such as those of a model's layers, share one. Inductor, or eager PyTorch, compiles everything else.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from superopt import log
from superopt.api import settings_of
from superopt.cost import target
from superopt.cost.baseline import copy_seconds
from superopt.diagnostics import Diagnostics, counted
from superopt.driver.console import progress as shown
from superopt.errors import BadInput, BadOption, SuperoptError, UnsupportedProgram
from superopt.pipeline import INTERRUPTED, Superoptimize, superoptimize
from superopt.pytorch.module import arguments, as_module, interpreted
from superopt.pytorch.operator import operator
from superopt.pytorch.plans import Kernels, Plans, kernels
from superopt.pytorch.regions import (
    PARAMETER,
    Region,
    around_attention,
    is_attention,
    modules_of,
    region,
    replace_region,
    runs,
)
from superopt.report import TIE
from superopt.run.ranged import superoptimize_range
from superopt.transforms.emit.compile import prepare_compiler
from superopt.transforms.emit.program_source import TORCH_DTYPES
from superopt.transforms.ingest import from_torch
from superopt.transforms.ingest.import_torch import Imported
from superopt.transforms.ingest.torch_types import torch_module
from superopt.verify.ranges import Point, representatives

if TYPE_CHECKING:
    from superopt.program import KernelGraph
    from superopt.run.outcome import Outcome
    from superopt.transforms.emit.launcher import Interpret, Launcher

torch: Any = torch_module()

MOST_OPERATIONS = 100
"""Operations of a graph beyond which it is not read whole."""
REST = ("inductor", "eager")
_LOG = logging.getLogger("superopt")


@dataclass
class Part:
    """What became of one region: `kernels` and predicted seconds where it was replaced, else the `reason`.

    `shared` says that an equal region was met before.
    """

    path: str
    operations: int
    reason: str = ""
    kernels: int = 0
    before: float = 0.0
    after: float = 0.0
    shared: bool = False

    @property
    def replaced(self) -> bool:
        """Whether kernels of superopt compute it."""
        return not self.reason

    def __str__(self) -> str:
        name = self.path or "outside of modules"
        if self.reason:
            return f"kept      {name} ({counted(self.operations, 'operation')}): {self.reason}"
        times = f"{self.after * 1e6:.1f} us predicted, {self.before * 1e6:.1f} us as it was"
        shared = ", shared" if self.shared else ""
        what = f"{counted(self.kernels, 'kernel')}, {times}{shared}"
        return f"replaced  {name} ({counted(self.operations, 'operation')}): {what}"


@dataclass
class Graph:
    """One graph that torch.compile captured: what became of its parts, or why it was kept whole."""

    operations: int
    parts: list[Part] = field(default_factory=list[Part])
    reason: str = ""


@dataclass
class Explanation:
    """What `torch.compile(backend="superopt")` does with a model: its graphs, and why each part was or was not
    replaced."""

    graphs: list[Graph]
    breaks: dict[str, int]

    @property
    def replaced(self) -> list[Part]:
        """The parts that kernels of superopt compute."""
        return [p for g in self.graphs for p in g.parts if p.replaced]

    def __str__(self) -> str:
        lines: list[str] = []
        for i, graph in enumerate(self.graphs):
            said = f": kept whole: {graph.reason}" if graph.reason else ""
            lines.append(f"graph {i}, {counted(graph.operations, 'operation')}{said}")
            lines += [f"  {part}" for part in graph.parts]
        if done := self.replaced:
            before, after = sum(p.before for p in done) * 1e6, sum(p.after for p in done) * 1e6
            lines.append(f"replaced in all: {after:.1f} us predicted, {before:.1f} us as it was")
        lines += [f"graph break{f', {n} times' * (n > 1)}: {why}" for why, n in self.breaks.items()]
        return "\n".join(lines) or "torch.compile captured no graph"

    __repr__ = __str__


def compile_graph(
    graph: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The backend. `options` are the settings of a run (`target`, `budget`, `store`, ...), and

    - `rest`: who compiles what is not replaced, "inductor" or "eager"; by default Inductor on a GPU, else eager;
    - `progress`: whether a bar is shown where standard error is a terminal; elsewhere, `logging` has a line for
      each region that is searched (logger "superopt", level INFO);
    - `interpret`: on a CPU, run the kernels in Triton's interpreter, or by "cpu" their tile programs, compiled,
      and not the original.
    """
    if mode is not None:
        raise BadOption(f"expected no mode with backend='superopt', got '{mode}'")
    return Backend(**dict(options or {}))(graph, inputs)


@dataclass
class Found:
    """What is known of a region: why it is `unreadable`, or empty; its program, if this process read it; once it
    was searched, the kernels, or why there are none."""

    unreadable: str
    program: Imported | None = None
    made: Kernels | str | None = None


class Backend:
    """Compiles graphs; `graphs` records what became of each. `planning` searches anywhere, and replaces nothing.

    Raises BadOption for unknown options.
    """

    def __init__(
        self,
        *,
        rest: str | None = None,
        interpret: Interpret = False,
        planning: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        if rest is not None and rest not in REST:
            raise BadOption(f"expected rest to be one of {', '.join(REST)}, got '{rest}'")
        self.settings, self.rest = settings_of(settings, Backend), rest
        self.interpret: Interpret = interpret
        self.planning = planning
        self.progress, self.heard = progress, Diagnostics()
        self.plans = Plans(self.settings)
        self.graphs: list[Graph] = []

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """A function that computes the graph."""
        nodes = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
        said = Graph(len(nodes))
        self.graphs.append(said)
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        said.reason = self._kept_whole(tensors) or _transformed(nodes)
        if said.reason and said.reason not in _SAID:
            _SAID.add(said.reason)
            warnings.warn(f"superopt replaces nothing of this graph: {said.reason}", stacklevel=2)
        if not said.reason:
            for node, given in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
                if isinstance(given, torch.nn.Parameter):
                    node.meta[PARAMETER] = given
            with shown(self.heard, show=self.progress):
                self._descend(nodes, "the whole graph", 0, graph, said.parts)
            for part in said.parts:
                facts = {name: fact for name, fact in vars(part).items() if name != "path"}
                log.event("part", part=part.path, replaced=part.replaced and not self.planning, **facts)
            graph.graph.lint()
            graph.recompile()
        else:
            log.event(
                "part", part="the whole graph", replaced=False, operations=len(nodes), reason=said.reason
            )
        if self.planning:
            return graph.forward
        rest = self.rest or ("inductor" if any(t.is_cuda for t in tensors) else "eager")
        if rest == "eager":
            return graph.forward
        return torch._dynamo.lookup_backend(rest)(graph, list(inputs))

    def _kept_whole(self, tensors: Sequence[Any]) -> str:
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return "gradients are asked for; torch.no_grad() turns them off"
        if not (self.interpret or self.planning or any(t.is_cuda for t in tensors)):
            return "its tensors are on the CPU; interpret=True runs kernels there, in Triton's interpreter"
        return ""

    def _descend(self, nodes: Sequence[Any], path: str, depth: int, owner: Any, parts: list[Part]) -> None:
        """Replace the nodes as a whole, or those of the modules among them, or leave them as they are."""
        why, together = self._readable(nodes, path, owner), False
        if not why:
            part = self._replaced(nodes, path, owner)
            between = [] if part.replaced else around_attention(nodes)
            if len(between) > 1:
                for run in between:  # PyTorch's kernel for attention may be what cannot be beaten
                    if is_attention(run[0]):
                        together = f"for the {len(nodes)} operations with it {part.reason}"
                        reason = f"attention is PyTorch's; {together}"
                        parts.append(Part(_named(run), 1, reason, shared=part.shared))
                    else:
                        self._descend(run, _named(run), depth, owner, parts)
                return
            if part.before:  # it has kernels, whether they are faster or not
                parts.append(part)
                return
            why, together = part.reason, True
        inner = runs(nodes, depth)
        deepest = max((len(modules_of(n)) for n in nodes), default=0)
        while len(inner) == 1 and depth < deepest:
            depth += 1
            inner = runs(nodes, depth)
        if len(inner) == 1:
            parts.append(Part(path, len(nodes), why))
            return
        if together:  # superopt reads the whole, but its parts alone may have kernels
            for name, run in inner:
                self._descend(run, name, depth + 1, owner, parts)
            return
        group: list[Any] = []
        names: list[str] = []

        def close() -> None:
            if group:
                parts.append(self._replaced(group, _together(names), owner))
            group.clear()
            names.clear()

        for name, run in inner:
            alone = name.rpartition(".")[2].isdecimal()  # one of equal layers: it stays equal to them
            if alone or self._readable([*group, *run], _together([*names, name]), owner):
                close()
                if alone or self._readable(run, name, owner):
                    self._descend(run, name, depth + 1, owner, parts)
                    continue
            group += run
            names.append(name)
        close()

    def _readable(self, nodes: Sequence[Any], path: str, owner: Any) -> str:
        """Empty where superopt reads the nodes as one program, else why it does not."""
        if len(nodes) > MOST_OPERATIONS:
            return f"expected at most {MOST_OPERATIONS} operations, got {len(nodes)}"
        try:
            return self._found(region(nodes, path, owner)).unreadable
        except SuperoptError as error:
            return error.message

    def _replaced(self, nodes: Sequence[Any], path: str, owner: Any) -> Part:
        """Search for the nodes' program, and put kernels in their place if they are predicted to be faster."""
        cut = region(nodes, path, owner)
        part, found = Part(path, len(nodes)), self._found(cut)
        part.shared = found.made is not None
        if found.made is None:
            found.made = self.plans.made(cut)
        if found.made is None:
            found.made = self._searched(cut, found)
        if isinstance(found.made, str):
            part.reason = found.made
            return part
        report, gpu = found.made.report, target(found.made.report.target)
        copies = sum(copy_seconds(size, gpu) for size in cut.copied_bytes)
        (part.before, way), part.after = report.best_before, report.predicted_seconds + copies
        part.kernels = len(report.kernels)
        if report.faster and part.after * TIE >= part.before:
            part.reason = (
                f"its kernels are predicted to be faster than {way}, {part.before * 1e6:.1f} us, but not with "
                f"copies of arguments that have gaps in memory: {copies * 1e6:.1f} us"
            )
        elif not report.faster:
            part.reason = f"nothing is predicted to be faster than {way}: {part.before * 1e6:.1f} us"
        elif not self.planning:
            try:
                runs_as = interpreted(found.made.launcher, self.interpret)
            except BadInput as error:  # kernels for a range are not compiled for a CPU
                part.reason = error.message
            else:
                replace_region(cut, _caller(runs_as, cut))
        return part

    def _found(self, cut: Region) -> Found:
        """What is known of a region: by this process, by the store, else by reading it."""
        name = (cut.key, self.settings)
        if name not in _KNOWN:
            unreadable = self.plans.reading(cut)
            if unreadable is None:
                prepare_compiler()  # while PyTorch exports the region
                self.heard.progress(f"{cut.path or 'a graph'}: reading", None)
                _KNOWN[name] = _read(cut)
                self.plans.keep_reading(cut, _KNOWN[name].unreadable)
            else:
                _KNOWN[name] = Found(unreadable)
        return _KNOWN[name]

    def _searched(self, cut: Region, found: Found) -> Kernels | str:
        """The kernels for a region, or why it has none: not even itself as kernels, or none for a range."""
        name, begun = cut.path or "a graph", time.process_time()
        _LOG.info("%s: searching, as it is not known yet", name)
        try:
            with log.about(name):
                outcome = self._outcome(cut, found)
        except SuperoptError as error:
            if not cut.over and not isinstance(error, UnsupportedProgram):
                raise
            self.plans.keep_made(cut, error.message)
            return error.message
        except Exception as error:  # a fault of superopt: the model still runs, and nothing is kept of it
            return _said(cut, "could not optimize", error)
        finally:
            _LOG.info("%s: done after %.0f s of processor time", name, time.process_time() - begun)
        if INTERRUPTED not in outcome.report.remarks:
            self.plans.keep_made(cut, outcome)
        return kernels(outcome)

    def _outcome(self, cut: Region, found: Found) -> Outcome:
        """The result of a run; raises as `superoptimize_range` where extents of the region are symbols."""
        heard = self.heard.part(cut.path or "a graph")
        if not cut.over:
            program = found.program or _imported(cut, ())
            return superoptimize(program.graph, self.settings, heard)

        def source(extents: Point) -> KernelGraph:
            return _imported(cut, extents).graph

        with _outside():
            return superoptimize_range(source, cut.over, self.settings, heard)


_SAID: set[str] = set()
"""Why graphs were kept whole, as far as it was said."""
_KNOWN: dict[tuple[str, Superoptimize], Found] = {}
"""Regions of this process by structure and settings."""


def _read(cut: Region) -> Found:
    """The region's program, or why there is none."""
    try:
        program = _imported(cut, representatives(cut.over))
    except SuperoptError as error:
        return Found(error.message)
    except Exception as error:  # the graph is the user's, and PyTorch still computes it
        return Found(_said(cut, "could not read", error))
    if program.graph.aliases:
        return Found("it overwrites an argument")
    if not program.operators:
        return Found("it has no operation that a kernel could compute")
    for node, value in zip(cut.outputs, program.graph.outputs, strict=False):
        # Autocast is on for one kind of device, and programs are read on the CPU.
        wanted, got = str(node.meta["example_value"].dtype), TORCH_DTYPES[value.dtype]
        if wanted != got:
            return Found(f"expected '{node.name}' of {wanted}, as torch.compile has it, got {got} on the CPU")
    return Found("", program)


def _said(cut: Region, what: str, error: Exception) -> str:
    """Warn of an error that is nobody's mistake; returns it in one line."""
    why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    warnings.warn(f"superopt {what} {cut.path or 'a graph'}: {why}", stacklevel=2)
    return why


def _imported(cut: Region, extents: Point) -> Imported:
    """The region's program, at these extents of its axes."""
    with contextlib.redirect_stderr(io.StringIO()), torch.no_grad(), _outside():
        return from_torch(cut.graph, cut.examples(extents))


@contextlib.contextmanager
def _outside() -> Any:
    """Out of the fake tensors that torch.compile works with."""
    from torch._guards import tracing
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily(), tracing(None):
        yield


def _caller(launcher: Launcher, cut: Region) -> Callable[..., Sequence[Any]]:
    """The kernels; for extents out of their range, what was there before."""
    call, count = operator(launcher), len(cut.outputs)

    def superopt(*tensors: Any) -> Sequence[Any]:
        taken = cut.taken(tensors)
        made = call(taken)[:count] if launcher.takes(taken) else cut.graph(*taken)
        return cut.restored(made)

    return superopt


def _transformed(nodes: Sequence[Any]) -> str:
    """Why nothing is cut out of a graph that enters torch.func: a part may enter what another one leaves."""
    for node in nodes:
        if "_functorch" in (getattr(node.target, "__module__", None) or ""):
            return f"torch.func is at work in it: '{node.name}'"
    return ""


def _named(nodes: Sequence[Any]) -> str:
    return _together([next(reversed(modules_of(n)), "") for n in nodes])


def _together(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(n for n in names if n))
    return f"{distinct[0]} to {distinct[-1]}" if len(distinct) > 2 else " + ".join(distinct)


def explain(
    model: Any, inputs: Any = (), kwargs: Mapping[str, Any] | None = None, **settings: Any
) -> Explanation:
    """What `torch.compile(model, backend="superopt", options=settings)` does with one call of the model.

    Searches without a GPU; the model runs as it is, under torch.no_grad(). `inputs` is a tuple of arguments, one
    tensor, or a dictionary of arguments by name. Of a class of modules, one is made. Raises BadOption for unknown
    settings, BadInput for what is no model.
    """
    if isinstance(model, type):  # compiling a class would change it, and all that is compiled later
        model = as_module(cast("Any", model))
    if not callable(model):
        raise BadInput(f"expected a module or function, got {type(model).__name__}")
    args, named = arguments(inputs, kwargs)
    backend = Backend(planning=True, **settings)
    before = _counts()
    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=False)(*args, **named)
    grown = {kind: counts - before[kind] for kind, counts in _counts().items()}
    breaks = grown["graph_break"]
    if grown["resumes"] or not backend.graphs:  # else what could not be traced was not met
        breaks |= grown["unimplemented"]
    return Explanation(backend.graphs, {_break(why): n for why, n in breaks.items()})


def _counts() -> dict[str, Counter[str]]:
    """What torch.compile counts of where it begins another graph: branches are not among its graph breaks."""
    counters: Any = torch._dynamo.utils.counters
    return {kind: Counter(counters[kind]) for kind in ("graph_break", "unimplemented", "resumes")}


def _break(why: str) -> str:
    """The reason of a graph break in one line, with the place in the user's code where PyTorch says it."""
    place = re.search(r'File "(.*)", line (\d+)', why)
    return why.split("\n")[0].rstrip(".") + (f" at {place[1]}:{place[2]}" if place else "")
