"""Arguments and results that are objects of Python's classes, such as a cache of keys and values, as attributes.

An object is opened where attributes are all that it has: tensors, plain values, containers of these, classes,
and other such objects. What is opened is a node of PyTorch's trees, so its tensors stand beside those of other
arguments.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass
from typing import Any, cast

from superopt.errors import BadInput
from superopt.transforms.ingest.torch_types import torch_module


@dataclass
class Opened:
    """An object: its class by name, and its attributes."""

    kind: str
    held: dict[str, Any]

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.held.items())
        return f"{self.kind.rpartition('.')[2]}({inner})"


@dataclass(frozen=True)
class Kind:
    """A class that an attribute holds, by its name."""

    name: str

    def __repr__(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Same:
    """In results: the object of the arguments with this number."""

    number: int


@dataclass(frozen=True, eq=False)
class Placed:
    """The device that an attribute holds: that of the tensors, wherever they are."""

    device: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placed)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return repr(self.device)


class Opening:
    """Opens what is in a tree, and remembers which objects there were, in order.

    `plain` says what stays as it is. `refused` is the first thing that can be neither, `twice` whether an object
    stands in two places. `same` opened another tree, whose objects become `Same` here.
    """

    def __init__(self, plain: Callable[[Any], bool], same: Opening | None = None) -> None:
        self.plain = plain
        self.objects: list[Any] = []
        self.twice = False
        self.refused: Any = None
        self._same = {} if same is None else {id(x): i for i, x in enumerate(same.objects)}

    def opened(self, tree: Any) -> Any:
        """The tree, with objects opened."""
        return trees().tree_map(self._leaf, tree, is_leaf=self._is_opened)

    def _is_opened(self, node: Any) -> bool:
        """Whether a node that PyTorch's trees know is opened like other objects, so that it can be changed."""
        if self.plain(node) or not _has_attributes_alone(class_of(node)):
            return False
        inner = Opening(self.plain)
        for held in attributes(node).values():
            inner.opened(held)
        return inner.refused is None

    def _leaf(self, leaf: Any) -> Any:
        if self.plain(leaf):
            return leaf
        if isinstance(leaf, type):
            return Kind(_known(cast("type[Any]", leaf)))
        if (number := self._same.get(id(leaf))) is not None:
            return Same(number)
        if any(leaf is x for x in self.objects):
            self.twice = True
            return leaf
        if not _has_attributes_alone(class_of(leaf)):
            self.refused = leaf if self.refused is None else self.refused
            return leaf
        self.objects.append(leaf)
        device = torch_module().device
        held = {
            n: Placed(x) if isinstance(x, device) else self.opened(x) for n, x in attributes(leaf).items()
        }
        return Opened(_known(class_of(leaf)), held)


def closed(tree: Any, objects: list[Any] | None = None) -> Any:
    """The tree with objects again: new ones, but for those that stand for one of `objects`.

    Raises BadInput for an object of a class that is not there.
    """

    def made(leaf: Any) -> Any:
        if isinstance(leaf, Opened):
            new: Any = object.__new__(_class(leaf.kind))
            attributes(new).update({name: closed(x, objects) for name, x in leaf.held.items()})
            return new
        if isinstance(leaf, Same):
            assert objects is not None
            return objects[leaf.number]
        if isinstance(leaf, Placed):
            return leaf.device
        return _class(leaf.name) if isinstance(leaf, Kind) else leaf

    return trees().tree_map(made, tree, is_leaf=_is_object)


def _is_object(node: Any) -> bool:
    return isinstance(node, Opened)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with containers and objects of its own, and `function` of each leaf; objects that cannot be opened
    are leaves."""
    register()
    is_tensor = torch_module().is_tensor

    def is_plain(leaf: Any) -> bool:
        return is_tensor(leaf) or not _has_attributes_alone(class_of(leaf))

    opening = Opening(is_plain)
    opened = opening.opened(tree)
    if opening.twice:
        return trees().tree_map(function, tree)
    return closed(trees().tree_map(function, opened))


def snapshot(tree: Any) -> Any:
    """The tree with containers and objects of its own, so that later changes of these do not show."""

    def same(leaf: Any) -> Any:
        return leaf

    return mapped(same, tree)


def put(now: Any, after: Any) -> Any:
    """What a call leaves in an argument: changes `now` to hold what `after`, a tree of opened objects, says.

    Containers and objects stay the same ones; returns `now`, or what has to stand in its place.
    """
    if isinstance(after, Opened):
        if _known(class_of(now)) != after.kind:
            return closed(after)
        held = attributes(now)
        for name in [n for n in held if n not in after.held]:
            delattr(now, name)
        for name, value in after.held.items():
            object.__setattr__(now, name, put(held.get(name), value))
        return now
    if isinstance(after, dict) and isinstance(now, MutableMapping):
        known, new = cast("MutableMapping[Any, Any]", now), cast("Mapping[Any, Any]", after)
        made = {key: put(known.get(key), value) for key, value in new.items()}
        known.clear()
        known.update(made)
        return known
    if isinstance(after, list | tuple):
        elements = list(cast("list[Any]", after))
        before: list[Any] = list(cast("list[Any]", now)) if isinstance(now, list | tuple) else []
        before += [None] * (len(elements) - len(before))
        made_of = [put(a, b) for a, b in zip(before, elements, strict=False)]
        if isinstance(after, list) and isinstance(now, MutableSequence):
            cast("list[Any]", now)[:] = made_of
            return cast("list[Any]", now)
        if isinstance(now, tuple) and len(now) == len(made_of):  # pyright: ignore[reportUnknownArgumentType]
            same = all(a is b for a, b in zip(cast("tuple[Any, ...]", now), made_of, strict=True))
            return cast("tuple[Any, ...]", now) if same else closed(after)
    return closed(after)


def trees() -> Any:
    """PyTorch's trees; `register` lets them know what is opened. torch.compile traces this, and no cache."""
    from torch.utils import _pytree

    return _pytree


@functools.cache
def register() -> None:
    """Make what is opened a node of PyTorch's trees."""
    _pytree = trees()

    def flatten(opened: Opened) -> tuple[list[Any], Any]:
        return list(opened.held.values()), (opened.kind, tuple(opened.held))

    def flatten_with_keys(opened: Opened) -> tuple[list[Any], Any]:
        held = opened.held.items()
        return [(_pytree.GetAttrKey(n), x) for n, x in held], (opened.kind, tuple(opened.held))

    def unflatten(values: Any, context: Any) -> Opened:
        return Opened(context[0], dict(zip(context[1], values, strict=True)))

    def read(text: str) -> Any:
        kind, names = json.loads(text)
        return kind, tuple(names)

    _pytree.register_pytree_node(
        Opened,
        flatten,
        unflatten,
        serialized_type_name="superopt.Opened",
        to_dumpable_context=json.dumps,
        from_dumpable_context=read,
        flatten_with_keys_fn=flatten_with_keys,
    )


_CLASSES: dict[str, type[Any]] = {}
"""The classes that were opened in this process, by name: one of a function is found nowhere else."""


def classes(tree: Any) -> list[type[Any]]:
    """The classes of the objects that are opened in a tree."""
    found: dict[str, type[Any]] = {}

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Opened):
            found[leaf.kind] = _class(leaf.kind)
            trees().tree_map(note, leaf.held, is_leaf=_is_object)
        return leaf

    trees().tree_map(note, tree, is_leaf=_is_object)
    return list(found.values())


def class_of(held: Any) -> type[Any]:
    """The class of an object."""
    return cast("type[Any]", type(held))


def attributes(held: Any) -> dict[str, Any]:
    """The attributes that an object itself has."""
    return cast("dict[str, Any]", held.__dict__)


def _known(kind: type[Any]) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    _CLASSES[name] = kind
    return name


def _class(name: str) -> type[Any]:
    """The class of this name; raises BadInput where the Python module that has it was not imported."""
    if name in _CLASSES:
        return _CLASSES[name]
    parts = name.split(".")
    for i in range(len(parts) - 1, 0, -1):
        if (found := sys.modules.get(".".join(parts[:i]))) is not None:
            for part in parts[i:]:
                found = getattr(found, part, None)
            if isinstance(found, type):
                return cast("type[Any]", found)
    raise BadInput(
        f"expected the class {name}, which results are objects of, to be imported, got no such class"
    )


@functools.cache
def _has_attributes_alone(kind: type[Any]) -> bool:
    """Whether objects of a class are their attributes: it is Python's, of no class in C, without slots."""
    if kind.__module__.partition(".")[0] in ("torch", "builtins"):
        return False
    if issubclass(kind, torch_module().nn.Module) or any(vars(c).get("__slots__") for c in kind.__mro__):
        return False
    if kind.__setattr__ is not object.__setattr__ or kind.__getattribute__ is not object.__getattribute__:
        return False
    try:  # what Python itself asks before it copies one
        reduced: tuple[Any, ...] = object.__reduce_ex__(object.__new__(kind), 2)  # pyright: ignore[reportAssignmentType]
    except TypeError:
        return False
    return len(reduced) == 5 and not reduced[2] and reduced[3] is None and reduced[4] is None
