"""How to call a PyTorch module: where tensors are among its arguments and its results."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import UNKNOWN, BadInput, Location, UnsupportedProgram
from superopt.transforms.ingest.opened import (
    Kind,
    Opened,
    Opening,
    Placed,
    Same,
    class_of,
    classes,
    closed,
    put,
    register,
    trees,
)
from superopt.transforms.ingest.torch_types import torch_module


@dataclass(frozen=True)
class Given:
    """In what a call leaves in its arguments: the tensor of them with this number."""

    number: int


@dataclass(frozen=True)
class Made:
    """The same: the result with this number."""

    number: int


class Signature:
    """The example arguments of a module, nested as they were, and (once it has run) what it returns and leaves.

    Arguments other than tensors are part of the program and must be the same in every call: None, numbers,
    texts, dtypes, devices and the like. Objects, such as a cache of keys and values, are taken by their
    attributes (`transforms.ingest.opened`). `function` is what is called; an argument may be given by position
    or by name, or left at its default. What a call changes in lists, dictionaries and objects, `finished`
    changes, too: `left` is what they hold after a call, None where that is what they held. Raises
    UnsupportedProgram, at `location`, for an argument whose contents could change unseen.
    """

    def __init__(
        self,
        inputs: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        function: Callable[..., Any] | None = None,
        location: Location = UNKNOWN,
    ) -> None:
        register()
        self.location = location
        self.parameters = parameters(function) if function is not None else ()
        given, self.given = self._ordered(inputs, kwargs or {}), (len(inputs), frozenset(kwargs or {}))
        opening = self.opening()
        given = opening.opened(given)
        if (leaf := opening.refused) is not None:
            hint = "; torch.compile(backend='superopt') takes modules with arguments that are objects"
            what = f"expected arguments of tensors, numbers, texts and objects that hold these, got {_type(leaf)}"
            raise UnsupportedProgram(what + hint, location)
        if opening.twice:
            raise UnsupportedProgram(
                "expected each object in one place of the arguments, got one in two", location
            )
        self.classes: dict[str, type[Any]] = {f"{k.__module__}.{k.__qualname__}": k for k in classes(given)}
        self.opens = bool(opening.objects)
        leaves, self.nesting = trees().tree_flatten(given)
        self.tensors = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
        for leaf in leaves:
            if _is_tensor(leaf) and (kind := _not_dense(leaf)):
                raise UnsupportedProgram(f"expected dense tensors as arguments, got a {kind} one", location)
        self.examples = [leaves[i] for i in self.tensors]
        self.fixed = [None if _is_tensor(leaf) else leaf for leaf in leaves]
        self.returns: tuple[list[Any], Any] | None = None
        self.left: tuple[list[Any], Any] | None = None
        self.apart: list[int] = []  # the results that the module returned not contiguous

    def opening(self, same: Opening | None = None) -> Opening:
        """What opens objects in arguments, or in results (`same`: the arguments')."""
        defaults = [default for _, default, _ in self.parameters]
        return Opening(
            lambda leaf: _is_tensor(leaf) or _is_fixed(leaf) or any(leaf is d for d in defaults), same
        )

    @property
    def has_state(self) -> bool:
        """Whether arguments are objects, or hold something else after a call."""
        return self.opens or self.left is not None

    @property
    def kinds(self) -> list[type[Any]]:
        """The classes of the arguments that are objects."""
        if not self.opens:
            return []
        return list(self.classes.values()) or classes(self._nested(self.fixed))

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
        dumps = trees().treespec_dumps
        assert self.returns is not None, "the module has run"
        nestings: dict[str, Any] = {"nesting": dumps(self.nesting)}
        for name in ("returns", "left"):
            made = getattr(self, name)
            nestings[name] = made and (made[0], dumps(made[1]))
        return {k: v for k, v in {**self.__dict__, **nestings}.items() if k not in ("examples", "classes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        register()
        loads = trees().treespec_loads
        nestings: dict[str, Any] = {"nesting": loads(state["nesting"])}
        for name in ("returns", "left"):
            nestings[name] = state[name] and (state[name][0], loads(state[name][1]))
        self.__dict__.update(
            {"examples": [], "classes": {}, "apart": [], "location": UNKNOWN, **state, **nestings}
        )

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The module's arguments, with `tensors` in place of the example's."""
        given = list(self.fixed)
        for i, value in zip(self.tensors, tensors, strict=True):
            given[i] = value
        return closed(self._nested(given))

    def _nested(self, leaves: Sequence[Any]) -> Any:
        return trees().tree_unflatten(list(leaves), self.nesting)

    def as_called(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same, by position and by name as in the example: wrappers of functions look at names."""
        args, named = self.arguments(tensors)
        count, by_name = self.given
        names = [name for name, _, by_position in self.parameters if by_position]
        named.update(zip(names[count:], args[count:], strict=False))
        return args[:count], {name: value for name, value in named.items() if name in by_name}

    def returned(
        self,
        results: Any,
        called: tuple[Sequence[Any], Mapping[str, Any]],
        before: Opening,
        tensors: Sequence[Any],
    ) -> tuple[Any, ...]:
        """The tensors among `results`, then those that the call left in its arguments and that are neither.

        `called` are the arguments, after the call, `before` has the objects among them, before it, and `tensors`
        are the tensors that it was given. The first call records what the module returns and leaves.
        """
        opening = self.opening(before)
        leaves, nesting = trees().tree_flatten(opening.opened(results))
        if opening.refused is not None or opening.twice:
            what = "an object twice" if opening.refused is None else _type(opening.refused)
            raise UnsupportedProgram(
                f"expected results of tensors, numbers, texts and objects that hold these, got {what}",
                self.location,
            )
        made = [leaf for leaf in leaves if _is_tensor(leaf)]
        left = self._left(called, tensors, made)
        if self.returns is None:  # later calls have other dtypes
            self.returns, self.left = ([None if _is_tensor(x) else x for x in leaves], nesting), left
            self.places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
            self.apart = [n for n, tensor in enumerate(made) if not tensor.is_contiguous()]
        return tuple(made)

    def _left(
        self, called: tuple[Sequence[Any], Mapping[str, Any]], tensors: Sequence[Any], made: list[Any]
    ) -> tuple[list[Any], Any] | None:
        """What a call leaves in its arguments, None where it is what they held; adds new tensors to `made`."""
        opening, ordered = self.opening(), self._ordered(*called)
        after, nesting = trees().tree_flatten(opening.opened(ordered))
        if opening.refused is not None or opening.twice:
            what = "an object twice" if opening.refused is None else _type(opening.refused)
            raise UnsupportedProgram(
                f"expected a module that leaves tensors, numbers, texts and objects that hold these in its "
                f"arguments, got {what}",
                self.location,
            )
        given: list[Any] = list(self.fixed)
        for i, tensor in zip(self.tensors, tensors, strict=True):
            given[i] = tensor
        if nesting == self.nesting and all(map(_is_same, after, given)):
            return None
        for kind in _kinds(nesting):
            if kind not in (Opened, list, tuple, dict):
                raise UnsupportedProgram(
                    "expected a module that changes lists, dictionaries and objects among its arguments, got "
                    f"one that changes a {kind.__name__}, or what is beside it",
                    self.location,
                )
        if _twice(ordered):
            raise UnsupportedProgram(
                "expected a module to change arguments that are each in one place, got one in two",
                self.location,
            )
        leaves: list[Any] = []
        for leaf in after:
            if not _is_tensor(leaf):
                leaves.append(leaf)
            elif (number := _index(leaf, tensors)) is not None:
                leaves.append(Given(number))
            else:
                if _index(leaf, made) is None:
                    made.append(leaf)
                leaves.append(Made(_index(leaf, made) or 0))
        return leaves, nesting

    def finished(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Any], made: Sequence[Any]
    ) -> Any:
        """What the module returns; its arguments, which hold `tensors`, hold then what it leaves in them.

        `made` are the results of the program.
        """
        if not self.has_state:
            return self.nested(made)
        opening, given = self.opening(), self._ordered(args, kwargs)
        if self.opens:
            opening.opened(given)
        device = next((t.device for t in (*tensors, *made)), None)

        def now(leaf: Any) -> Any:
            if isinstance(leaf, Given):
                return tensors[leaf.number]
            if isinstance(leaf, Placed):
                return device
            return made[leaf.number] if isinstance(leaf, Made) else leaf

        if self.left is not None:
            put(given, trees().tree_unflatten([now(x) for x in self.left[0]], self.left[1]))
        return closed(trees().tree_map(now, self._opened(made)), opening.objects)

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """The tensors among the arguments of a call; raises BadInput where the rest differs from the example."""
        given = self._ordered(args, kwargs or {})
        if self.opens:
            opening = self.opening()
            given = opening.opened(given)
            for kind in map(class_of, opening.objects):
                if self.classes.get(name := f"{kind.__module__}.{kind.__qualname__}", kind) is not kind:
                    raise BadInput(f"expected objects of {name} as it was, got another class of that name")
        if self.left is not None and _twice(given):
            raise BadInput("expected arguments that are each in one place, got one in two")
        leaves, nesting = trees().tree_flatten(given)
        if nesting != self.nesting:
            leaves = self._in_order(given)
        if leaves is None and self.opens and (said := self._difference(given)):
            raise BadInput(said)
        if leaves is None:
            shown = ["tensor" if i in self.tensors else x for i, x in enumerate(self.fixed)]
            wanted, got = self._nested(shown), given if self.opens else (tuple(args), dict(kwargs or {}))
            raise BadInput(
                f"expected arguments like the example inputs {_outline(wanted)}, got {_outline(got)}"
            )
        for i, known in enumerate(self.fixed):
            leaf = leaves[i]
            if i in self.tensors:
                if not _is_tensor(leaf):
                    raise BadInput(f"expected a tensor{self._where(i)}, got {_named(leaf)}")
            elif not _is_same(leaf, known):
                raise BadInput(
                    f"expected {known!r}{self._where(i)}, which the program was made for, got {_named(leaf)}"
                )
        return [leaves[i] for i in self.tensors]

    def _where(self, leaf: int) -> str:
        """Which argument this leaf is or lies in, as far as arguments have names."""
        name = self._paths().get(leaf)
        return f" for '{name}'" if name else ""

    def _difference(self, given: Any) -> str:
        """The first leaf that differs from the example's, in arguments that are nested otherwise."""
        leaves = ["tensor" if i in self.tensors else _named(leaf) for i, leaf in enumerate(self.fixed)]
        known = {path: leaves[i] for i, path in self._paths().items()}
        flat, nesting = trees().tree_flatten(given)
        now = {path: _named(flat[i]) for i, path in self._paths(nesting).items()}
        for path in [*known, *now]:
            was, got = known.get(path, "nothing"), now.get(path, "nothing")
            if was != got:
                return f"expected {was} for '{path}', which the program was made for, got {got}"
        return ""

    def _paths(self, nesting: Any = None) -> dict[int, str]:
        """The argument that each leaf is or lies in, and the path to it there: `x`, `cache.0.keys`."""
        nesting = self.nesting if nesting is None else nesting
        args, named = trees().tree_unflatten(range(nesting.num_leaves), nesting)
        names = [name for name, _, by_position in self.parameters if by_position]
        found: dict[int, str] = {}
        for name, value in [*zip(names, args, strict=False), *named.items()]:
            for path, leaf in trees().tree_leaves_with_path(value):
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
        return closed(self._opened(tensors))

    def _opened(self, tensors: Sequence[Any]) -> Any:
        assert self.returns is not None, "the module has run"
        leaves, nesting = list(self.returns[0]), self.returns[1]
        for i, value in zip(self.places, tensors, strict=False):
            leaves[i] = value
        return trees().tree_unflatten(leaves, nesting)


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, Any, bool], ...]:
    """A function's named parameters, their defaults (`Parameter.empty`), and whether position gives them, too."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kinds = (*by_position, inspect.Parameter.KEYWORD_ONLY)
    return tuple((p.name, p.default, p.kind in by_position) for p in found if p.kind in kinds)


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
             torch.dtype, torch.device, torch.layout, torch.memory_format, Kind, Same, Placed)  # fmt: skip
    return isinstance(leaf, kinds)


def _is_same(leaf: Any, known: Any) -> bool:
    """Whether a leaf is the tensor that is known, or equal to what is known."""
    if _is_tensor(leaf) or _is_tensor(known):
        return leaf is known
    return leaf is known or (type(leaf) is type(known) and leaf == known)


def _index(tensor: Any, among: Sequence[Any]) -> int | None:
    return next((i for i, other in enumerate(among) if other is tensor), None)


def _kinds(nesting: Any) -> set[Any]:
    """The types of the nodes of a tree."""
    if nesting.is_leaf():
        return set()
    return {nesting.type}.union(*map(_kinds, nesting.children()))


def _twice(tree: Any) -> bool:
    """Whether a list, a dictionary or an object stands in two places of a tree."""
    seen: list[Any] = []
    again = False

    def note(node: Any) -> bool:
        nonlocal again
        if isinstance(node, list | dict):
            again = again or any(node is x for x in seen)
            seen.append(node)
        return False

    trees().tree_leaves(tree, is_leaf=note)
    return again


def _type(leaf: Any) -> str:
    return type(leaf).__name__


def _named(leaf: Any) -> str:
    if _is_tensor(leaf):
        return "tensor"
    return repr(leaf) if _is_fixed(leaf) else type(leaf).__name__


def _outline(given: tuple[Any, Any]) -> str:
    """Arguments with the word `tensor` for each tensor; those by name follow in braces, where there are any."""
    leaves, nesting = trees().tree_flatten(given)
    named = ["tensor" if _is_tensor(leaf) else leaf for leaf in leaves]
    args, kwargs = trees().tree_unflatten(named, nesting)
    return " ".join(repr(x).replace("'tensor'", "tensor") for x in (args, *([kwargs] if kwargs else [])))
