"""How to call a PyTorch module: where tensors are among its arguments and its results."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from superopt.errors import UNKNOWN, BadInput, Location, UnsupportedProgram
from superopt.transforms.ingest.torch_types import torch_module


class Signature:
    """The example arguments of a module, nested as they were, and (once it has run) what it returns.

    Arguments other than tensors are part of the program and must be the same in every call: None, numbers,
    texts, dtypes, devices and the like. `function` is what is called; an argument may be given by position or by
    name, or left at its default. Raises UnsupportedProgram, at `location`, for an argument whose contents could
    change unseen, such as a cache that is an object of its own.
    """

    def __init__(
        self,
        inputs: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        function: Callable[..., Any] | None = None,
        location: Location = UNKNOWN,
    ) -> None:
        self.location = location
        self.parameters = parameters(function) if function is not None else ()
        given, self.given = self._ordered(inputs, kwargs or {}), (len(inputs), frozenset(kwargs or {}))
        leaves, self.nesting = _pytree().tree_flatten(given)
        self.tensors = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
        defaults = [default for _, default, _ in self.parameters]
        for leaf in leaves:
            if _is_tensor(leaf):
                if kind := _not_dense(leaf):
                    raise UnsupportedProgram(
                        f"expected dense tensors as arguments, got a {kind} one", location
                    )
            elif not (_is_fixed(leaf) or any(leaf is d for d in defaults)):
                hint = "; torch.compile(backend='superopt') takes modules with arguments that are objects"
                raise UnsupportedProgram(
                    f"expected arguments of tensors, numbers and texts, got {type(leaf).__name__}{hint}",
                    location,
                )
        self.examples = [leaves[i] for i in self.tensors]
        self.fixed = [None if _is_tensor(leaf) else leaf for leaf in leaves]
        self.returns: tuple[list[Any], Any] | None = None
        self.apart: list[int] = []  # the results that the module returned not contiguous

    def _ordered(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as far as possible by position, those left out at their defaults."""
        given, named = list(args), dict(kwargs)
        positional = [(n, d) for n, d, by_position in self.parameters if by_position]
        for name, default in positional[len(given) :]:
            if name in named:
                given.append(named.pop(name))
            elif default is not inspect.Parameter.empty:
                given.append(default)
            else:
                break
        for name, default, by_position in self.parameters:
            if not by_position and name not in named and default is not inspect.Parameter.empty:
                named[name] = default
        return tuple(given), {name: named[name] for name in sorted(named)}

    def __getstate__(self) -> dict[str, Any]:
        """Without the example tensors; nestings as the JSON that PyTorch keeps them in."""
        dumps = _pytree().treespec_dumps
        assert self.returns is not None, "the module has run"
        nestings = {"nesting": dumps(self.nesting), "returns": (self.returns[0], dumps(self.returns[1]))}
        return {k: v for k, v in {**self.__dict__, **nestings}.items() if k != "examples"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        loads = _pytree().treespec_loads
        leaves, returned = state["returns"]
        nestings = {"nesting": loads(state["nesting"]), "returns": (leaves, loads(returned))}
        self.__dict__.update({"examples": [], "apart": [], "location": UNKNOWN, **state, **nestings})

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The module's arguments, with `tensors` in place of the example's."""
        given = list(self.fixed)
        for i, value in zip(self.tensors, tensors, strict=True):
            given[i] = value
        return _pytree().tree_unflatten(given, self.nesting)

    def as_called(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same, by position and by name as in the example: wrappers of functions look at names."""
        args, named = self.arguments(tensors)
        count, by_name = self.given
        names = [name for name, _, by_position in self.parameters if by_position]
        named.update(zip(names[count:], args[count:], strict=False))
        return args[:count], {name: value for name, value in named.items() if name in by_name}

    def returned(self, results: Any) -> tuple[Any, ...]:
        """The tensors among `results`, whose nesting is recorded as what the module returns."""
        leaves, nesting = _pytree().tree_flatten(results)
        for leaf in leaves:
            if not (_is_tensor(leaf) or _is_fixed(leaf)):
                hint = "; torch.export.register_dataclass says what is in it" if is_dataclass(leaf) else ""
                raise UnsupportedProgram(
                    f"expected results of tensors, numbers and texts, got {type(leaf).__name__}{hint}",
                    self.location,
                )
        self.returns = ([None if _is_tensor(x) else x for x in leaves], nesting)
        self.places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
        self.apart = [n for n, i in enumerate(self.places) if not leaves[i].is_contiguous()]
        return tuple(leaves[i] for i in self.places)

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """The tensors among the arguments of a call; raises BadInput where the rest differs from the example."""
        given = self._ordered(args, kwargs or {})
        leaves, nesting = _pytree().tree_flatten(given)
        if nesting != self.nesting:
            leaves = self._in_order(given)
        if leaves is None:
            wanted, got = self.arguments(["tensor"] * len(self.tensors)), (tuple(args), dict(kwargs or {}))
            raise BadInput(
                f"expected arguments like the example inputs {_outline(wanted)}, got {_outline(got)}"
            )
        for i, known in enumerate(self.fixed):
            leaf = leaves[i]
            if i in self.tensors:
                if not _is_tensor(leaf):
                    raise BadInput(f"expected a tensor{self._where(i)}, got {_named(leaf)}")
            elif not (leaf is known or (type(leaf) is type(known) and leaf == known)):
                raise BadInput(
                    f"expected {known!r}{self._where(i)}, which the program was made for, got {_named(leaf)}"
                )
        return [leaves[i] for i in self.tensors]

    def _where(self, leaf: int) -> str:
        """Which argument this leaf is or lies in, as far as arguments have names."""
        name = self._paths().get(leaf)
        return f" for '{name}'" if name else ""

    def _paths(self) -> dict[int, str]:
        """The argument that each leaf is or lies in, and the path to it there: `x`, `cache.0.keys`."""
        args, named = _pytree().tree_unflatten(range(len(self.fixed)), self.nesting)
        names = [name for name, _, by_position in self.parameters if by_position]
        found: dict[int, str] = {}
        for name, value in [*zip(names, args, strict=False), *named.items()]:
            for path, leaf in _pytree().tree_leaves_with_path(value):
                keys = [str(_key(key)) for key in path]
                found[leaf] = ".".join([name, *keys])
        return found

    @property
    def names(self) -> list[str]:
        """What a user calls each tensor; empty for those that a function takes as `*args`."""
        paths = self._paths()
        return [paths.get(i, "") for i in self.tensors]

    def _in_order(self, given: Any) -> list[Any] | None:
        """The leaves where dictionaries list their keys in another order than the example's; None elsewhere."""
        try:
            return self.nesting.flatten_up_to(given)
        except ValueError:
            return None

    def nested(self, tensors: Sequence[Any]) -> Any:
        """What the module returns, with `tensors` (or more) as its tensors."""
        assert self.returns is not None, "the module has run"
        leaves, nesting = list(self.returns[0]), self.returns[1]
        for i, value in zip(self.places, tensors, strict=False):
            leaves[i] = value
        return _pytree().tree_unflatten(leaves, nesting)


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, Any, bool], ...]:
    """A function's named parameters, their defaults (`Parameter.empty`), and whether position gives them, too."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kinds = (*by_position, inspect.Parameter.KEYWORD_ONLY)
    return tuple((p.name, p.default, p.kind in by_position) for p in found if p.kind in kinds)


def _pytree() -> Any:
    from torch.utils import _pytree

    return _pytree


def _key(step: Any) -> Any:
    """What a step of PyTorch's paths is taken by: an index, a key, the name of an attribute."""
    return next(getattr(step, n) for n in ("key", "idx", "name") if hasattr(step, n))


def _is_tensor(leaf: Any) -> bool:
    import torch  # not `torch_module`, whose cache torch.compile warns about

    return isinstance(leaf, torch.Tensor)


def _not_dense(tensor: Any) -> str:
    """What kind of tensor this is, where its elements are no plain block of numbers; else empty."""
    if tensor.is_nested:
        return "nested"
    return "" if tensor.layout == torch_module().strided else str(tensor.layout).removeprefix("torch.")


def _is_fixed(leaf: Any) -> bool:
    """Whether `leaf` can never change, so that comparing it in each call suffices."""
    torch = torch_module()
    kinds = (bool, int, float, complex, str, bytes, slice, range, enum.Enum, type(None), type(Ellipsis),
             torch.dtype, torch.device, torch.layout, torch.memory_format)  # fmt: skip
    return isinstance(leaf, kinds)


def _named(leaf: Any) -> str:
    if _is_tensor(leaf):
        return "tensor"
    return repr(leaf) if _is_fixed(leaf) else type(leaf).__name__


def _outline(given: tuple[Any, Any]) -> str:
    """Arguments with the word `tensor` for each tensor; those by name follow in braces, where there are any."""
    leaves, nesting = _pytree().tree_flatten(given)
    named = ["tensor" if _is_tensor(leaf) else leaf for leaf in leaves]
    args, kwargs = _pytree().tree_unflatten(named, nesting)
    return " ".join(repr(x).replace("'tensor'", "tensor") for x in (args, *([kwargs] if kwargs else [])))
