"""Regions: consecutive operations of a graph that torch.compile hands over, each a graph of its own.

A region is cut where modules of the model begin and end, so that equal layers give equal regions.
"""

from __future__ import annotations

import hashlib
import operator as operators
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import UnsupportedProgram
from superopt.program import power_of_two
from superopt.run.ranged import axis
from superopt.transforms.ingest.torch_types import torch_module
from superopt.verify.ranges import Axis, Point, representatives

torch: Any = torch_module()

PARAMETER = "superopt parameter"
"""Where a graph's input is a parameter of the model, its node's metadata hold the parameter under this key."""
MOST_KNOWN = 1 << 20
"""A larger bound of an extent is none that anybody meant."""


@dataclass(frozen=True)
class Region:
    """Consecutive nodes of a graph: those outside that it reads, those inside that are read outside.

    `graph` computes `outputs` from `inputs`, each with its dimensions in the order in which memory holds them, so
    that kernels take what is transposed as it lies there; `held` and `orders` say where a dimension of the input
    or output is then, None where each stays. Operations outside may depend on that order, as `view` does. An
    input with gaps in its memory is `copied` in each call. `path` is the module that it lies in, as the model
    names it. `over` are the extents that the shapes of its inputs depend on, for which torch.compile has symbols.
    """

    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    graph: Any
    path: str
    over: tuple[Axis, ...] = ()
    held: tuple[tuple[int, ...] | None, ...] = ()
    orders: tuple[tuple[int, ...] | None, ...] = ()
    copied: tuple[int, ...] = ()

    def taken(self, tensors: Sequence[Any]) -> list[Any]:
        """The inputs as `graph` takes them: the same memory, with the dimensions in its order."""
        return [t if o is None else t.permute(_inverse(o)) for t, o in zip(tensors, self.held, strict=True)]

    @property
    def copied_bytes(self) -> list[int]:
        """Of each input that is copied in each call."""
        examples = self.examples(representatives(self.over)) if self.copied else []
        return [examples[i].numel() * examples[i].element_size() for i in self.copied]

    def restored(self, made: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, of what `graph` computes: the same memory, with the dimensions in their order."""
        return tuple(t if o is None else t.permute(o) for t, o in zip(made, self.orders, strict=True))

    @property
    def key(self) -> str:
        """Equal for regions that compute the same of tensors of equal shapes, strides, dtypes and devices.

        The layouts of what is computed belong to it: they tell apart what a default dtype or autocast changes.
        """
        numbers = {node: _Number(i) for i, node in enumerate(self.graph.graph.nodes)}
        digest = hashlib.sha256()
        for node in self.graph.graph.nodes:
            about = "" if node.op in ("placeholder", "output") else _name(node.target)
            about += _layout(node)
            args = torch.fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
            digest.update(f"{node.op} {about} {args!r}\n".encode())
        digest.update(repr(self.over).encode())
        return digest.hexdigest()

    @property
    def portable(self) -> bool:
        """Whether `key` means the same in every process: the functions are PyTorch's, the constants plain."""
        nodes = [n for n in self.graph.graph.nodes if n.op not in ("placeholder", "output")]
        leaves = torch.utils._pytree.tree_leaves([(n.args, n.kwargs) for n in nodes])
        return all(n.op == "call_method" or _is_torchs(n.target) for n in nodes) and all(
            map(_is_plain, leaves)
        )

    def examples(self, extents: Point = ()) -> list[Any]:
        """Tensors like those that it reads, with these extents: the model's parameters, normal numbers for what
        is computed, zeros for integers, which may be indices."""
        generator = torch.Generator().manual_seed(0)
        taken = zip(self.over, extents, strict=True)
        sizes = {(i, d): times * n for axis, n in taken for i, d, times in axis.places}

        def example(number: int, node: Any) -> Any:
            if (held := node.meta.get(PARAMETER)) is not None:
                return self._ordered(held.detach().cpu(), number)
            like = self._ordered(node.meta["example_value"], number)
            shape = [sizes.get((number, d), n) for d, n in enumerate(like.shape)]
            if like.is_floating_point():
                made = torch.randn(shape, generator=generator, dtype=torch.float32)
                return made.to(like.dtype)
            return torch.zeros(shape, dtype=like.dtype)

        return [example(i, node) for i, node in enumerate(self.inputs)]

    def _ordered(self, tensor: Any, number: int) -> Any:
        order = self.held[number]
        return tensor if order is None else tensor.permute(_inverse(order))


class _Number(int):
    """The number of a node, told apart from the number itself."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def region(nodes: Sequence[Any], path: str, owner: Any) -> Region:
    """The region of these nodes of `owner`; raises UnsupportedProgram for one that cannot stand alone."""
    inside = set(nodes)
    inputs = list(dict.fromkeys(a for n in nodes for a in n.all_input_nodes if a not in inside))
    outputs = [n for n in nodes if any(user not in inside for user in n.users)]
    for node in nodes:
        if node.op not in ("call_function", "call_method"):
            raise UnsupportedProgram(f"expected operations, got '{node.op}' of '{node.target}'")
    for node in (*inputs, *outputs):
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            raise UnsupportedProgram(f"expected tensors to go in and out, got {type(value).__name__}")
    memory = [n.meta["example_value"].untyped_storage()._cdata for n in (*inputs, *outputs)]
    for i, node in enumerate(outputs, len(inputs)):
        if memory.count(memory[i]) > 1:  # what is written through one would be seen through the other
            raise UnsupportedProgram(f"expected results in memory of their own, got a view: '{node.name}'")
    graph = torch.fx.Graph()
    held, copied, shapes, new = list[Any](), list[int](), list[Any](), dict[Any, Any]()
    for i, node in enumerate(inputs):
        tensor, order = node.meta["example_value"], None
        try:
            order = _order(tensor, node.name)
        except UnsupportedProgram:
            copied.append(i)
        new[node] = graph.placeholder(f"x{i}")
        new[node].meta["example_value"] = tensor if order is None else tensor.permute(_inverse(order))
        held.append(order)
        shapes.append(new[node].meta["example_value"].shape)
    for node, order in zip(inputs, held, strict=True):
        if order is not None:
            new[node] = graph.call_method("permute", (new[node], order))
    over = _axes(shapes)
    for node in nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
    orders = [_order(n.meta["example_value"], n.name) for n in outputs]
    graph.output(tuple(
        new[n] if order is None else graph.call_method("permute", (new[n], _inverse(order)))
        for n, order in zip(outputs, orders, strict=True)
    ))  # fmt: skip
    module = torch.fx.GraphModule(owner, graph)
    ends = tuple(nodes), tuple(inputs), tuple(outputs)
    return Region(*ends, module, path, over, tuple(held), tuple(orders), tuple(copied))


def _order(tensor: Any, name: str) -> tuple[int, ...] | None:
    """For each dimension, which it is in the order in which memory holds them; None where that is theirs.

    Raises UnsupportedProgram for a tensor with gaps in its memory, which no result of an operator has.
    """
    if tensor.is_contiguous():
        return None
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda d: -strides[d])
    if not tensor.permute(order).is_contiguous():
        raise UnsupportedProgram(f"expected results without gaps in memory, got others: '{name}'")
    return _inverse(order)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda d: order[d]))


def _axes(shapes: Sequence[Any]) -> tuple[Axis, ...]:
    """The symbols in these shapes of inputs, within the bounds that torch.compile knows.

    An expression, such as the length of a cache to which a token was appended, is an extent of its own.
    Where no largest extent is known, it is four times the present one, or 1024. Raises UnsupportedProgram for
    extents that are no multiple of one.
    """
    places: dict[Any, list[tuple[int, int, int]]] = {}
    known: dict[Any, tuple[Any, int]] = {}
    for i, shape in enumerate(shapes):
        for d, extent in enumerate(shape):
            if isinstance(extent, int):
                continue
            times, symbol = extent.node.expr.as_coeff_Mul()
            if not times.is_Integer or times < 1:
                raise UnsupportedProgram(
                    f"expected extents that are multiples of an expression, got {extent}"
                )
            places.setdefault(symbol, []).append((i, d, int(times)))
            known[symbol] = extent.node.shape_env.bound_sympy(symbol), extent.node.hint // int(times)
    found: list[Axis] = []
    for symbol, where in places.items():
        bounds, hint = known[symbol]
        low = max(int(bounds.lower), 1)
        most = max(power_of_two(4 * hint), 1024, low + 1)
        high = most if bounds.upper > MOST_KNOWN else max(int(bounds.upper), low + 1)
        name = str(symbol) if symbol.is_Symbol else f"extent{len(found)}"
        found.append(axis(name, low, high, where))
    return tuple(found)


def replace_region(found: Region, function: Callable[..., Sequence[Any]]) -> None:
    """Let `function` compute the region's outputs from its inputs; the graph's owner has to be compiled again."""
    graph, inside = found.nodes[0].graph, set(found.nodes)

    def outside(user: Any) -> bool:
        return user not in inside

    with graph.inserting_before(found.nodes[-1].next):
        call = graph.call_function(function, found.inputs)
        for i, node in enumerate(found.outputs):
            taken = graph.call_function(operators.getitem, (call, i))
            taken.meta["example_value"] = node.meta["example_value"]
            node.replace_all_uses_with(taken, delete_user_cb=outside)
    for node in reversed(found.nodes):
        graph.erase_node(node)


def modules_of(node: Any) -> tuple[str, ...]:
    """The modules that a node lies in, outermost first, as the model names them."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    return tuple(_plain(path) for path, _ in stack.values())


def runs(nodes: Iterable[Any], depth: int) -> list[tuple[str, list[Any]]]:
    """Maximal runs of nodes that lie in the same module at this depth, or directly in one above it."""
    found: list[tuple[str, list[Any]]] = []
    for node in nodes:
        path = modules_of(node)[: depth + 1]
        name = path[-1] if path else ""
        if not found or found[-1][0] != name:
            found.append((name, []))
        found[-1][1].append(node)
    return found


def is_attention(node: Any) -> bool:
    """Whether PyTorch has a kernel of its own for this call, which computes attention."""
    return node.target is torch.nn.functional.scaled_dot_product_attention


def around_attention(nodes: Sequence[Any]) -> list[list[Any]]:
    """The runs of nodes between calls of attention, and each such call alone."""
    found: list[list[Any]] = []
    for node in nodes:
        if not found or is_attention(node) or is_attention(found[-1][-1]):
            found.append([])
        found[-1].append(node)
    return found


def _plain(path: str) -> str:
    """`L['self'].model.layers.0.mlp`, or the same with `_modules['0']`, as `model.layers.0.mlp`.

    A decorator of `forward`, as transformers has them, knows the module as `args[0]`.
    """
    path = re.sub(r"L\['args'\]\[0\]|L\['\w+'\]", "", path).replace("._modules", "").replace("getattr", "")
    return path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "").strip(".")


def _layout(node: Any) -> str:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return ""
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device.type}"


def _is_torchs(target: Any) -> bool:
    """Whether PyTorch or Python defines the function, so that its name and their versions say what it does."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _name(target).startswith(("torch._ops.aten.", "torch._ops.prims."))
    root = str(getattr(target, "__module__", None)).partition(".")[0]
    return root in ("torch", "_operator", "operator", "builtins", "math") and " " not in _name(target)


def _is_plain(leaf: Any) -> bool:
    kinds = (bool, int, float, complex, str, slice, range, type(None), type(Ellipsis), torch.fx.Node,
             torch.dtype, torch.device, torch.layout, torch.memory_format)  # fmt: skip
    return isinstance(leaf, kinds)


def _name(target: Any) -> str:
    if isinstance(target, str):
        return target
    if (name := getattr(target, "__qualname__", None)) and "<" not in name:
        return f"{getattr(target, '__module__', '')}.{name}"
    return f"{target!r} {id(target)}"
