"""Every import of a PyTorch module is compared with the module itself: in fp64, and in its own dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.errors import Location, SuperoptError, UnsupportedProgram
from superopt.numerics.checking import accumulated
from superopt.program import KernelGraph
from superopt.transforms.ingest.against_source import DRAWS, first_difference, graph_values
from superopt.transforms.ingest.opened import mapped
from superopt.transforms.ingest.smaller_source import same_reading
from superopt.transforms.ingest.structure import Structure
from superopt.transforms.ingest.torch_types import DTYPE_NAMES, torch_module
from superopt.verify.reduce import work
from superopt.weights import of_weights

Array: TypeAlias = "np.ndarray[Any, Any]"
Call: TypeAlias = "Callable[[Sequence[Any]], tuple[Any, ...]]"

MOST_WORK = 1 << 30
"""Scalar operations of a graph beyond which the module is not run for comparison."""
MOST_ELEMENTS = 1 << 24
"""Of what the module computes; weights, and what is made of them alone, are counted apart."""
MOST_WEIGHTS = 1 << 28
LARGE_WEIGHT = 1 << 20
"""Elements of a weight that is compared as it is, and held in its own dtype until it is used."""
_FEW = 2
"""The extent of a batch or a sequence, where the whole is too large: 1 could be mistaken for what is repeated."""
USUAL_WORK = 1 << 28
"""Beyond this it runs on one draw of inputs, not also on the example inputs."""


@dataclass(frozen=True)
class Read:
    """A module whose weights are arguments, its exported program, the graph read from it, and what else that
    depends on."""

    lifted: Any
    exported: Any
    graph: KernelGraph
    structure: Structure

    @property
    def too_large(self) -> str:
        """Why the module is not run for comparison; empty where it is."""
        given = {self.graph.inputs[i] for i in self.graph.weights}
        values = {*self.graph.inputs, *(v for n in self.graph.nodes for v in n.results)} - of_weights(
            self.graph
        )
        counts = [
            (work(self.graph), MOST_WORK, "operations"),
            (sum(v.type.elements for v in values), MOST_ELEMENTS, "elements"),
            (sum(v.type.elements for v in given), MOST_WEIGHTS, "elements of weights"),
        ]
        said = [f"{n:.1e} {what}, of at most {most:.1e}" for n, most, what in counts if n > most]
        return " and ".join(said)


Given: TypeAlias = tuple[Sequence[Any], Mapping[str, Any] | None]
"""The arguments of a module."""

FEWER = (
    f"{_FEW} examples of its batch",
    f"the first {_FEW} positions",
    f"the first {_FEW} positions, which masks have in other places",
)
"""What `few` keeps of the inputs, from the most to the least."""


def few(
    inputs: Sequence[Any], kwargs: Mapping[str, Any] | None, kept: int
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What `FEWER[kept]` says of the inputs: the first examples of a batch, or the first positions of these.

    These are `_FEW` indices of the first dimensions of each tensor whose extents there are those of the first
    tensor, but not of the last dimension of numbers. Masks, [B, 1, S, S] beside [B, S, D], have positions in
    their last two dimensions.
    """
    torch = torch_module()
    tree = torch.utils._pytree
    held = [t for t in tree.tree_leaves((inputs, kwargs)) if isinstance(t, torch.Tensor) and t.dim()]
    extents = held[0].shape[: min(kept, 1) + 1] if held else ()

    def part(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        last = t.dim() - 1 if t.is_floating_point() and t.dim() > 1 else t.dim()
        cut = {i for i, (a, b) in enumerate(zip(t.shape[:last], extents, strict=False)) if a == b}
        if kept == 2 and len(extents) == 2 and t is not held[0] and 1 not in cut:
            cut |= {i for i in range(max(t.dim() - 2, 0), t.dim()) if t.shape[i] == extents[1]}
        for i in cut:
            t = t.narrow(i, 0, min(_FEW, t.shape[i]))
        return t

    return mapped(part, (tuple(inputs), dict(kwargs or {})))


def _shapes(given: Given) -> list[Any]:
    """Of all tensors, those too that objects hold: `few` cuts these."""
    shapes: list[Any] = []

    def seen(leaf: Any) -> Any:
        if isinstance(leaf, torch_module().Tensor):
            shapes.append(leaf.shape)
        return leaf

    mapped(seen, given)
    return shapes


def check_import(
    read: Read,
    given: Given,
    reading: Callable[[Sequence[Any], Mapping[str, Any] | None], Read],
    diagnostics: Diagnostics,
    location: Location,
) -> None:
    """Raise UnsupportedProgram, located, where a graph and its module compute different numbers.

    What is too large to run is compared on fewer of the examples or positions that were `given`, where the graph
    that `reading` gives of them is the same but for extents. A remark says so, or what was not compared, and why.
    """
    if not (reason := read.too_large):
        return _check(read, diagnostics, location)
    others: list[str] = []
    tried = [_shapes(given)]
    for kept, what in enumerate(FEWER):
        fewer = few(*given, kept)
        if (shapes := _shapes(fewer)) in tried:  # reading takes seconds
            others += [f"there are no more than {what}"] if kept < 2 else []
            continue
        tried.append(shapes)
        try:
            small = reading(*fewer)
        except SuperoptError as error:
            others.append(f"on {what}, {error.message}")
            continue
        pairs = zip(read.lifted.examples, small.lifted.examples, strict=True)
        extents = {a: b for x, y in pairs for a, b in zip(x.shape, y.shape, strict=True) if a != b}
        if small.too_large:
            others.append(f"on {what}, {small.too_large}")
        elif not same_reading(read.graph, small.graph, extents):
            others.append(f"on {what}, it is read as other operators")
        else:
            diagnostics.remark(f"the import is compared with the module on {what}: {reason}", location)
            return _check(small, diagnostics, location)
    diagnostics.remark(
        f"the import is not compared with the module: {'; '.join([reason, *others])}", location
    )
    return None


def _check(read: Read, diagnostics: Diagnostics, location: Location) -> None:
    """Compare a graph with its module.

    The arguments are the example inputs and weights, then seeded numbers of their size, so that weights
    initialized to zeros or ones count. A remark says what was not compared, and why.
    """
    lifted, graph, cost = read.lifted, read.graph, work(read.graph)
    arguments = [*lifted.examples, *lifted.weights]
    large = {i for i in graph.weights if _is_large(arguments[i])}
    # In what is everywhere the same, such as a product that starts with zeros, faults before it would not show.
    kept = {i for i in large if not _is_uniform(arguments[i])}
    draws = {"drawn": _drawn(arguments, len(lifted.examples), kept)}
    if cost <= USUAL_WORK:
        draws = {"example": arguments, **draws}
    compared = 0
    for name, drawn in draws.items():
        with products_in_f32(drawn):
            narrow = _outputs(lifted, graph, drawn, location, typed=True)
        wide: list[Array] | None = None
        try:
            wide = _in_wider(lifted, graph, drawn, large, location, torch_module().float64)
        except SuperoptError as error:
            diagnostics.remark(
                f"the import is not compared with the module in fp64: {error.message}", location
            )
        try:
            inputs = [_held_array(t) if i in large else _array(t) for i, t in enumerate(drawn)]
            reference = narrow if wide is None else wide
            if wide is None:
                found = first_difference(graph, inputs, name, narrow, None)
            else:
                again = partial(_rounded_again, lifted, graph, drawn, location)
                in_f32 = _in_f32(read, drawn, large, narrow, location)
                found = first_difference(graph, inputs, name, wide, narrow, again, in_f32)
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


def _in_wider(
    lifted: Any, graph: KernelGraph, drawn: Sequence[Any], large: Container[int], location: Location, to: Any
) -> list[Array]:
    """The module's results where all is computed in the dtype `to`. Large weights are held in their own."""
    with _widened(to):
        given = [
            t if i in large or not t.is_floating_point() else t.detach().to(to) for i, t in enumerate(drawn)
        ]
        return _outputs(lifted, graph, given, location)


def _in_f32(
    read: Read, drawn: Sequence[Any], large: Container[int], narrow: list[Array], location: Location
) -> list[Array] | None:
    """The module's results in f32, which may be those in its own dtypes.

    None where it does not run so, and where it has a number that leaves no trace in the graph, as f16 makes 1 of
    1.0001.
    """
    graph, torch = read.graph, torch_module()
    held = {v.dtype for v in [*graph.inputs, *(v for n in graph.nodes for v in n.results)]}
    dtypes = [DTYPE_NAMES[name] for name in ("f16", "bf16") if name in held]
    if not dtypes:
        return narrow
    for node in read.exported.graph.nodes:
        for number in torch.utils._pytree.tree_leaves((node.args, node.kwargs)):
            if isinstance(number, float) and number not in (0.0, 1.0, -1.0):
                kept = {torch.tensor(number, dtype=dtype).item() for dtype in dtypes}
                if not kept.isdisjoint((1, -1)) or (0 in kept and node.target is torch.ops.aten.mul.Tensor):
                    return None
    try:
        return _in_wider(read.lifted, graph, drawn, large, location, torch.float32)
    except SuperoptError:
        return None


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


def _products() -> list[Any]:
    """PyTorch's products and convolutions: sums of products."""
    aten = torch_module().ops.aten
    return [aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.linear, aten.convolution]


@contextmanager
def products_in_f32(arguments: Sequence[Any]) -> Generator[None]:
    """With such arguments, products of f16 and bf16 on the CPU are computed in f32 inside it, and rounded once,
    as by matrix units: few processors have these numbers, and PyTorch takes forty times as long for a 3-D
    convolution.
    """
    torch = torch_module()
    from torch.utils._python_dispatch import TorchDispatchMode

    narrow = torch.float16, torch.bfloat16
    chosen = {product.default for product in _products()}

    class InF32(TorchDispatchMode):
        """Products of operands that are all of one narrow dtype; PyTorch says what is wrong with others."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = [x for x in args if isinstance(x, torch.Tensor)] if func in chosen else []
            dtypes = {x.dtype for x in tensors}
            if len(dtypes) != 1 or dtypes.isdisjoint(narrow) or any(x.device.type != "cpu" for x in tensors):
                return func(*args, **(kwargs or {}))
            wide = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
            return func(*wide, **(kwargs or {})).to(dtypes.pop())

    if all(t.dtype not in narrow for t in arguments):
        yield
        return
    with InF32():
        yield


def run_module(lifted: Any, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The module's results, and the contents of its arguments afterwards; raises what the module raises."""
    torch = torch_module()
    given = [t.detach().clone() for t in arguments]
    with torch.no_grad():
        return list(lifted(*given)), given


def _outputs(
    lifted: Any, graph: KernelGraph, arguments: Sequence[Any], location: Location, *, typed: bool = False
) -> list[Array]:
    """The module's numbers for each output of `graph`; raises UnsupportedProgram where it does not run, and where
    it assigns to an argument that the graph does not state as overwritten; if `typed`, where dtypes differ."""
    aliases = graph.aliases or (-1,) * len(graph.outputs)
    try:
        results, after = run_module(lifted, arguments)
        made = [results[i] if i < len(results) else after[aliases[i]] for i in range(len(graph.outputs))]
        numbers = [_array(t) for t in made]
    except Exception as error:  # anything that the module raises on other numbers or in f64
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise UnsupportedProgram(f"it raises {type(error).__name__}: {first}", location) from error
    for i, (tensor, value) in enumerate(zip(made, graph.outputs, strict=True)):
        if typed and not _is_held_as(tensor.dtype, value.dtype):
            what = f"result {i} has elements of {value.dtype}, not of {tensor.dtype}"
            raise UnsupportedProgram(
                f"expected to read what the module computes, got a graph whose {what}", location
            )
    return numbers


def _is_held_as(of_module: Any, of_graph: str) -> bool:
    """Whether a result of the graph may stand for one of the module: unsigned integers are not in MLIR, and f64
    may be narrowed."""
    torch = torch_module()
    known = {torch.uint8: "i8", torch.float64: "f32"}
    return of_module == DTYPE_NAMES[of_graph] or known.get(of_module) == of_graph


def _rounded_again(
    lifted: Any, graph: KernelGraph, arguments: Sequence[Any], location: Location
) -> list[list[Array]]:
    """The module's results, those of each of its operators off by a drawn part of a unit of the last place
    (Parker, Monte Carlo Arithmetic, 1997, section 3), and sums by as much as another order of their terms may be;
    none where it does not run so."""
    torch = torch_module()
    from torch.utils._python_dispatch import TorchDispatchMode

    generator, aten = torch.Generator().manual_seed(0), torch.ops.aten
    sums = {packet.default for packet in _products()} | {
        aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim
    }  # fmt: skip

    def lost(x: Any) -> Any:
        return 2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1

    class Rounded(TorchDispatchMode):
        """Every result in another place but those that share memory."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if any(result.alias_info is not None for result in func._schema.returns):
                return made
            if func in sums and made.is_floating_point():
                terms = [x.double().abs() if isinstance(x, torch.Tensor) else x for x in args]
                magnitude = func(*terms, **(kwargs or {})).abs()
                made = accumulated(made.double(), magnitude, lost(made)).to(made.dtype)
            return torch.utils._pytree.tree_map(self.off, made)

        def off(self, x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                return x
            return (x.double() * (1 + torch.finfo(x.dtype).eps * lost(x))).to(x.dtype)

    try:
        with products_in_f32(arguments), Rounded():
            return [_outputs(lifted, graph, arguments, location) for _ in range(DRAWS)]
    except UnsupportedProgram:
        return []


def _drawn(arguments: Sequence[Any], count: int, kept: Container[int] = ()) -> list[Any]:
    """Seeded: normal numbers as large as the first `count`, slightly changed weights; integers are unchanged, and
    what is to be `kept`."""
    torch = torch_module()
    generator = torch.Generator().manual_seed(0)

    def drawn(i: int, t: Any) -> Any:
        if not t.is_floating_point() or i in kept:
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


def _is_large(t: Any) -> bool:
    return t.is_floating_point() and t.numel() > LARGE_WEIGHT and t.dtype != torch_module().float64


def _is_uniform(t: Any) -> bool:
    least, most = t.detach().float().aminmax()
    return bool(least == most)


def _held_array(t: Any) -> Array:
    """As f32, which holds all numbers of narrower dtypes: what is too large to be held in fp64."""
    return t.detach().cpu().contiguous().float().numpy()


def _array(t: Any) -> Array:
    t = t.detach().cpu().contiguous()
    return (t.double() if t.is_floating_point() else t).numpy()


@contextmanager
def _widened(to: Any) -> Generator[None]:
    """Conversions to narrower floating-point types than `to`, f32 or f64, and constants made in them, give `to`
    inside it."""
    torch = torch_module()
    from torch.utils._python_dispatch import TorchDispatchMode

    narrow = {torch.float16, torch.bfloat16, torch.float32} - {to}

    class Widen(TorchDispatchMode):
        """Every operator on wider numbers: the dtypes requested, and the tensors that the module holds."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def wide(x: Any) -> Any:
                if isinstance(x, torch.dtype) and x in narrow:
                    return to
                held = isinstance(x, torch.Tensor) and x.dtype in narrow and not func._schema.is_mutable
                return x.to(to) if held else x

            args, kwargs = torch.utils._pytree.tree_map(wide, (args, kwargs or {}))
            return func(*args, **kwargs)

    before = torch.get_default_dtype()
    torch.set_default_dtype(to)
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
        with _widened(torch.float64), torch.no_grad():
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
