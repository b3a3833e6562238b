"""Every import of a PyTorch module is compared with the module itself: in fp64, and in its own dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.errors import Location, SuperoptError, UnsupportedProgram
from superopt.program import KernelGraph
from superopt.transforms.ingest.against_source import DRAWS, first_difference, graph_values
from superopt.transforms.ingest.smaller_source import same_reading
from superopt.transforms.ingest.torch_types import torch_module
from superopt.verify.reduce import elements, work

Array: TypeAlias = "np.ndarray[Any, Any]"
Call: TypeAlias = "Callable[[Sequence[Any]], tuple[Any, ...]]"

MOST_WORK = 1 << 30
"""Scalar operations of a graph beyond which the module is not run for comparison."""
MOST_ELEMENTS = 1 << 24
_EXAMPLES = 2
"""Of a batch, where the whole is too large: with one, a batch could be mistaken for what is repeated."""
USUAL_WORK = 1 << 28
"""Beyond this it runs on one draw of inputs, not also on the example inputs."""


@dataclass(frozen=True)
class Read:
    """A module whose weights are arguments, its exported program, and the graph read from it."""

    lifted: Any
    exported: Any
    graph: KernelGraph

    @property
    def too_large(self) -> str:
        """Why the module is not run for comparison; empty where it is."""
        cost, size = work(self.graph), elements(self.graph)
        if cost <= MOST_WORK and size <= MOST_ELEMENTS:
            return ""
        most = f"{MOST_WORK:.1e} on {MOST_ELEMENTS:.1e}"
        return f"{cost:.1e} operations on {size:.1e} elements, of at most {most}"


def sub_batch(
    inputs: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The first examples of a batch: of each tensor whose first extent is that of the first tensor."""
    torch = torch_module()
    tree = torch.utils._pytree
    held = [t for t in tree.tree_leaves((inputs, kwargs)) if isinstance(t, torch.Tensor) and t.dim()]
    batch = held[0].shape[0] if held else 0

    def part(t: Any) -> Any:
        of_batch = isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == batch
        return t[:_EXAMPLES] if of_batch else t

    return tree.tree_map(part, (tuple(inputs), dict(kwargs or {})))


def check_import(
    read: Read, smaller: Callable[[], Read], diagnostics: Diagnostics, location: Location
) -> None:
    """Raise UnsupportedProgram, located, where a graph and its module compute different numbers.

    What is too large to run is compared on the first examples of its batch (`smaller`), where the graph read of
    these is the same but for extents. A remark says so, or what was not compared, and why.
    """
    if not (reason := read.too_large):
        return _check(read, diagnostics, location)
    try:
        small = smaller()
    except SuperoptError as error:
        small, other = None, f"on {_EXAMPLES} examples, {error.message}"
    else:
        other = f"on {_EXAMPLES} examples, {small.too_large}" if small.too_large else ""
        batches = zip(read.lifted.examples, small.lifted.examples, strict=True)
        extents = {a.shape[0]: b.shape[0] for a, b in batches if a.shape != b.shape}
        if not extents:
            other = "it has no batch of more examples"
        elif not other and not same_reading(read.graph, small.graph, extents):
            other = f"on {_EXAMPLES} examples, it is read as other operators"
    if other or small is None:
        diagnostics.remark(f"the import is not compared with the module: {reason}; {other}", location)
        return None
    diagnostics.remark(
        f"the import is compared with the module on {_EXAMPLES} examples of its batch: {reason}", location
    )
    return _check(small, diagnostics, location)


def _check(read: Read, diagnostics: Diagnostics, location: Location) -> None:
    """Compare a graph with its module.

    The arguments are the example inputs and weights, then seeded numbers of their size, so that weights
    initialized to zeros or ones count. A remark says what was not compared, and why.
    """
    lifted, graph, cost = read.lifted, read.graph, work(read.graph)
    arguments = [*lifted.examples, *lifted.weights]
    draws = {"drawn": _drawn(arguments, len(lifted.examples))}
    if cost <= USUAL_WORK:
        draws = {"example": arguments, **draws}
    compared = 0
    for name, drawn in draws.items():
        narrow = _outputs(lifted, graph, drawn, location)
        wide: list[Array] | None = None
        try:
            with _widened():
                wide = _outputs(lifted, graph, [_double(t) for t in drawn], location)
        except SuperoptError as error:
            diagnostics.remark(
                f"the import is not compared with the module in fp64: {error.message}", location
            )
        try:
            inputs = [_array(t) for t in drawn]
            reference = narrow if wide is None else wide
            again = partial(_rounded_again, lifted, graph, drawn, location)
            narrow_too = (None, None) if wide is None else (narrow, again)
            found = first_difference(graph, inputs, name, reference, *narrow_too)
        except UnsupportedProgram as error:
            diagnostics.remark(f"the import is not compared with the module: {error.message}", location)
            return
        if found is not None:
            place = _place(read.exported, graph, drawn, found.output)
            raise found.error("the module", place or location)
        compared += sum(int(np.isfinite(x).sum()) for x in reference)
    if not compared and graph.outputs:
        diagnostics.remark(
            "the import is not compared with the module: none of its results is a finite number", location
        )


@contextmanager
def one_thread() -> Generator[None]:
    """PyTorch on one thread: a forked process, in which the command line works, lacks its others."""
    torch = torch_module()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_module(lifted: Any, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The module's results, and the contents of its arguments afterwards; raises what the module raises."""
    torch = torch_module()
    given = [t.detach().clone() for t in arguments]
    with torch.no_grad():
        return list(lifted(*given)), given


def _outputs(lifted: Any, graph: KernelGraph, arguments: Sequence[Any], location: Location) -> list[Array]:
    """The module's numbers for each output of `graph`; raises UnsupportedProgram where it does not run, and where
    it assigns to an argument that the graph does not state as overwritten."""
    try:
        results, after = run_module(lifted, arguments)
    except Exception as error:  # anything that the module raises on other numbers or in f64
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise UnsupportedProgram(f"it raises {type(error).__name__}: {first}", location) from error
    aliases = graph.aliases or (-1,) * len(graph.outputs)
    return [_array(results[i] if i < len(results) else after[aliases[i]]) for i in range(len(graph.outputs))]


def _rounded_again(
    lifted: Any, graph: KernelGraph, arguments: Sequence[Any], location: Location
) -> list[list[Array]]:
    """The module's results, those of each of its operators off by a drawn part of a unit of the last place
    (Parker, Monte Carlo Arithmetic, 1997, section 3); none where it does not run so."""
    torch = torch_module()
    from torch.utils._python_dispatch import TorchDispatchMode

    generator = torch.Generator().manual_seed(0)

    class Rounded(TorchDispatchMode):
        """Every result in another place but those that share memory."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if any(result.alias_info is not None for result in func._schema.returns):
                return made
            return torch.utils._pytree.tree_map(self.off, made)

        def off(self, x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                return x
            share = 2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1
            return (x.double() * (1 + torch.finfo(x.dtype).eps * share)).to(x.dtype)

    try:
        with Rounded():
            return [_outputs(lifted, graph, arguments, location) for _ in range(DRAWS)]
    except UnsupportedProgram:
        return []


def _drawn(arguments: Sequence[Any], count: int) -> list[Any]:
    """Seeded: normal numbers as large as the first `count`, slightly changed weights; integers are unchanged."""
    torch = torch_module()
    generator = torch.Generator().manual_seed(0)

    def drawn(i: int, t: Any) -> Any:
        if not t.is_floating_point():
            return t
        noise = torch.randn(t.shape, generator=generator, dtype=torch.float32)
        if i < count:
            size = float(t.detach().double().square().mean().sqrt()) if t.numel() else 0.0
            return (noise * (size if 0 < size < math.inf else 1.0)).to(t.dtype)
        size = float(t.detach().abs().max()) if t.numel() else 0.0
        moved = t.detach().float() * (1 + 0.1 * noise.clamp(-2, 2)) + 0.02 * noise.flip(
            0 if t.dim() else []
        ) * (size or 1.0)
        return moved.to(t.dtype)

    return [drawn(i, t) for i, t in enumerate(arguments)]


def _double(t: Any) -> Any:
    return t.detach().double() if t.is_floating_point() else t.detach()


def _array(t: Any) -> Array:
    t = t.detach().cpu().contiguous()
    return (t.double() if t.is_floating_point() else t).numpy()


@contextmanager
def _widened() -> Generator[None]:
    """Conversions to narrower floating-point types, and constants made in them, give f64 inside it."""
    torch = torch_module()
    from torch.utils._python_dispatch import TorchDispatchMode

    narrow = (torch.float16, torch.bfloat16, torch.float32)

    class Widen(TorchDispatchMode):
        """Every operator on f64: the dtypes requested, and the tensors that the module holds."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def wide(x: Any) -> Any:
                if isinstance(x, torch.dtype) and x in narrow:
                    return torch.float64
                held = isinstance(x, torch.Tensor) and x.dtype in narrow and not func._schema.is_mutable
                return x.double() if held else x

            args, kwargs = torch.utils._pytree.tree_map(wide, (args, kwargs or {}))
            return func(*args, **kwargs)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widen():
            yield
    finally:
        torch.set_default_dtype(before)


# --- the first place that differs -------------------------------------------------------------------------


def _place(exported: Any, graph: KernelGraph, arguments: Sequence[Any], output: int) -> Location | None:
    """The location of the first operator whose result is missing in the graph, among those that lead to the wrong
    output and not to a result in the graph; None where it cannot be determined.

    Values are recognized by their numbers, sorted: the graph may hold them in another shape.
    """
    torch = torch_module()
    seen: dict[Any, Any] = {}

    class Recorder(torch.fx.Interpreter):
        """Keeps every result."""

        def run_node(self, n: Any) -> Any:
            seen[n] = super().run_node(n)  # pyright: ignore[reportUnknownMemberType]
            return seen[n]

    program = exported.module()
    try:
        with _widened(), torch.no_grad():
            Recorder(program).run(*[_double(t).clone() for t in arguments])
    except Exception:  # without a trace of the module in fp64 the place is unknown
        return None
    values = graph_values(graph, [_array(t) for t in arguments], faithful=False).values()
    known: dict[int, list[Array]] = {}
    for x in values:
        known.setdefault(x.size, []).append(np.sort(np.asarray(x, np.float64), axis=None))

    def present(made: Any) -> bool:
        if not isinstance(made, torch.Tensor) or not made.is_floating_point():
            return True
        mine = np.sort(_array(made), axis=None)
        return any(
            np.allclose(mine, x, rtol=1e-3, atol=1e-6, equal_nan=True) for x in known.get(mine.size, ())
        )

    (end,) = [n for n in program.graph.nodes if n.op == "output"]
    results = torch.utils._pytree.tree_leaves(end.args)
    if output >= len(results) or not hasattr(results[output], "all_input_nodes"):
        return None
    at = results[output]
    while missing := [n for n in at.all_input_nodes if n in seen and not present(seen[n])]:
        at = missing[0]
    return _stands(at)


def _stands(node: Any) -> Location | None:
    """The innermost line of the user's code in a node's stack trace."""
    found: Location | None = None
    for line in str(node.meta.get("stack_trace") or "").splitlines():
        head, _, tail = line.strip().partition('", line ')
        if head.startswith('File "') and tail:
            found = Location(head.removeprefix('File "'), int(tail.partition(",")[0]), 1)
    return found
