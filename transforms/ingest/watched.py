"""What tells cheaply, in each call, that nothing has changed of what a module's program depends on."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from superopt.transforms.emit.prepared import Seen, seen
from superopt.transforms.ingest.torch_types import torch_module

_MISSING = object()
_BY_VALUE = (bool, int, float, str, type(None))


@dataclass
class Watched:
    """Places, each with the very object that was found there.

    `same` says that none has another; where one has, it may still hold the same. `guarded` are the places that
    torch.compile can guard, as an owner, a name and a value, `read` those where reading suffices for that;
    `blind` says that there are others.
    """

    places: list[tuple[Callable[..., Any], str, Any]] = field(default_factory=list[Any])
    containers: list[tuple[Any, list[Any]]] = field(default_factory=list[Any])
    sizes: list[tuple[Mapping[str, Any], int]] = field(default_factory=list[Any])
    present: list[tuple[Mapping[str, Any], tuple[tuple[str, bool], ...]]] = field(default_factory=list[Any])
    tensors: list[Seen] = field(default_factory=list[Seen])
    guarded: list[tuple[Any, str, Any]] = field(default_factory=list[Any])
    read: list[tuple[Any, str]] = field(default_factory=list[Any])
    blind: bool = False

    def module(self, module: Any) -> None:
        """The class of a module, its submodules, and which parameters and buffers it has."""
        self.class_of(module)
        self.container(module._modules)
        self.guarded += [(module, name, child) for name, child in module._modules.items()]
        for held in (module._parameters, module._buffers):
            self.present.append((held, _presence(held)))
            self.guarded += [(module, name, None) for name, tensor in held.items() if tensor is None]

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """An attribute that the owner itself has."""
        held = getattr(owner, "__dict__", {})
        self.places.append((held.get if name in held else partial(getattr, owner), name, value))
        self._guard(owner, name, value)

    def inherited(self, owner: Any, name: str, value: Any) -> None:
        """An attribute that the owner's class has, and the owner may get for itself."""
        if isinstance(value, types.FunctionType):
            self.read.append((owner, name))
        elif _is_plain(value):
            self._guard(owner, name, value)

    def variable(self, function: types.FunctionType, name: str) -> None:
        """A global of the function."""
        held = function.__globals__
        self.places.append((held.get, name, held[name]))
        owner = sys.modules.get(str(function.__module__))
        if owner is not None and vars(owner) is held:
            self._guard(owner, name, held[name])
        else:
            self.blind = True

    def code(self, function: types.FunctionType) -> None:
        """What a function does."""
        self.places.append((partial(getattr, function), "__code__", function.__code__))
        self.guarded.append((function, "__code__", function.__code__))

    def cell(self, cell: Any) -> bool:
        """A variable of a closure; whether it is empty."""
        try:
            value = cell.cell_contents
        except ValueError:
            return True
        self.places.append((partial(getattr, cell), "cell_contents", value))
        # Who decorates a function does not put another one in its place later.
        self.blind |= not callable(value)
        return False

    def class_of(self, owner: Any) -> None:
        """The class of an object."""
        kind: Any = cast("object", type(owner))
        self.places.append((partial(getattr, owner), "__class__", kind))
        self._guard(owner, "__class__", kind)

    def container(self, container: Any) -> None:
        """A list, a dictionary or the like."""
        self.containers.append((container, _elements(container)))

    def size(self, held: Mapping[str, Any]) -> None:
        """How many attributes an object has."""
        self.sizes.append((held, len(held)))

    def tensor(self, tensor: Any) -> None:
        """A tensor that is a constant of the program."""
        self.tensors.append(seen((tensor,)))
        self.blind = True

    def same(self) -> bool:
        """Whether every place has what it had."""
        return (
            all(get(name, _MISSING) is value for get, name, value in self.places)
            and all(len(held) == count for held, count in self.sizes)
            and all(_presence(held) == known for held, known in self.present)
            and all(_are(_elements(now), known) for now, known in self.containers)
            and all(_as_it_was(known) for known in self.tensors)
        )

    def traced(self) -> None:
        """Read what torch.compile can guard: what it sees here, it compares in each call of what it compiles."""
        for owner, name in self.read:
            getattr(owner, name, None)
        for owner, name, value in self.guarded:
            now = getattr(owner, name, None)
            if now is not value and now != value:
                return

    def _guard(self, owner: Any, name: str, value: Any) -> None:
        kind: Any = cast("object", type(owner))
        readable = isinstance(owner, type | types.ModuleType | torch_module().nn.Module) or (
            kind.__getattribute__ is object.__getattribute__ and not hasattr(kind, "__getattr__")
        )
        holds = isinstance(value, list | tuple | dict | set | frozenset)
        known: Any = value
        if not readable or (holds and not _is_plain(known)):
            self.blind = True
        else:  # what is in a list may change
            self.guarded.append((owner, name, copy.copy(known) if holds else known))


def _presence(held: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    return tuple((name, tensor is not None) for name, tensor in held.items())


def _elements(container: Any) -> list[Any]:
    if isinstance(container, dict):
        held = cast("dict[Any, Any]", container)
        return [*held.keys(), *held.values()]
    return list(container)


def _are(now: list[Any], known: list[Any]) -> bool:
    return len(now) == len(known) and all(a is b for a, b in zip(now, known, strict=True))


def _as_it_was(known: Seen) -> bool:
    tensor = known.tensors[0]()
    return tensor is not None and seen((tensor,)).is_as(known)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("list[Any]", value)))
    if isinstance(value, dict):
        held = cast("dict[Any, Any]", value)
        return all(isinstance(k, _BY_VALUE) for k in held) and all(map(_is_plain, held.values()))
    return isinstance(value, _BY_VALUE)
