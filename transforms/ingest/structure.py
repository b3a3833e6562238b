"""What a module's program depends on besides its arguments, parameters and buffers.

A call of the module is recorded: which Python functions run, and which names their code has. The structure is
what those names mean, as text: attributes of the module, of its parts, of their classes and of objects that they
hold; globals, defaults and closures of the functions; the functions' code. PyTorch's own code, and Python's, is
taken to stay as it is. What is read under a name that is computed (`getattr(self, f"w{i}")`) is not seen, nor are
elements of containers with more than `MOST_ELEMENTS`.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from superopt.transforms.ingest.standing import stood_for
from superopt.transforms.ingest.torch_types import torch_module
from superopt.transforms.ingest.watched import Watched

MOST_ELEMENTS = 1000
_MOST_TEXT = 100
_OURS = ("superopt.transforms.ingest.", "superopt.pytorch.")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range, enum.Enum)
_BRACKETS = {"list": "[]", "tuple": "()", "set": "{}", "dict": "{}"}
Ran: TypeAlias = dict[int, tuple[types.CodeType, str]]
"""Code that ran, by its identity, each with the name of the Python module that it belongs to."""


@dataclass(frozen=True)
class Reads:
    """The names that a call reads, digests of the functions that run in it, and what it changes by itself."""

    names: frozenset[str]
    codes: frozenset[str]
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Structure:
    """What each thing that a call reads was, as text, by what it is called in messages."""

    reads: Reads
    found: Mapping[str, str]


@contextmanager
def recorded() -> Generator[Ran]:
    """Notes the Python functions that this thread runs inside of it."""
    ran: Ran = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and id(frame.f_code) not in ran:
            ran[id(frame.f_code)] = frame.f_code, str(frame.f_globals.get("__name__", ""))

    # A profiler written in C could not be set again by Python.
    profiled, before = sys.getprofile() is not None, sys.gettrace()
    sys.settrace(note) if profiled else sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.settrace(before) if profiled else sys.setprofile(None)


def reads(ran: Ran) -> Reads:
    """What these functions read."""
    names: set[str] = set()
    codes: set[str] = set()
    for code, module in ran.values():
        if module.startswith(_OURS) or (_is_torchs(module) and not module.startswith("torch.nn.")):
            continue
        names.update(code.co_names)
        names.update(c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
        if not _is_known(module):
            codes.add(_digest(code))
    return Reads(frozenset(names), frozenset(codes))


def structure(
    module: Any, read: Reads, watched: Watched | None = None, kinds: Iterable[type] = ()
) -> Structure:
    """The module as it is now; `watched` takes what tells cheaply that it still is. `kinds` are the classes of
    arguments that are objects."""
    walk = _Walk(read, Watched() if watched is None else watched)
    walk.inside.update(id(m) for part in module.modules() for m in (part, stood_for(part)))
    walk.module(module, "")
    for kind in dict.fromkeys(c for k in kinds for c in k.__mro__):
        walk.named(kind, f" of {kind.__name__}")
    return Structure(read, walk.found)


def steady(before: Structure, after: Structure) -> Structure:
    """`after`, without what differs from `before`: a call changes it, such as a count of calls."""
    every = {*before.found, *after.found}
    moved = {what for what in every if before.found.get(what) != after.found.get(what)}
    known = replace(after.reads, ignored=after.reads.ignored | moved)
    return Structure(known, {what: text for what, text in after.found.items() if what not in moved})


def changed(now: Structure, known: Structure) -> str:
    """What is not as it was, as "expected ..., got ..."; empty where all of it is."""
    in_both = [what for what in known.found if what in now.found]  # they say more than what came with them
    for what in (*in_both, *known.found, *now.found):
        was, got = known.found.get(what, "nothing"), now.found.get(what, "nothing")
        if was != got:
            return f"expected {what} to be {_short(was)}, as when the kernels were made, got {_short(got)}"
    return ""


def to_json(known: Structure) -> dict[str, Any]:
    """A structure as JSON."""
    sets = {name: sorted(held) for name, held in vars(known.reads).items()}
    return {**sets, "found": dict(known.found), "python": sys.implementation.cache_tag}


def from_json(record: Mapping[str, Any]) -> Structure | None:
    """What `to_json` gave, None if another Python did, which compiles functions otherwise; raises KeyError,
    TypeError or ValueError for something else."""
    if record["python"] != sys.implementation.cache_tag:
        return None
    held = Reads(*(frozenset(map(str, record[name])) for name in ("names", "codes", "ignored")))
    return Structure(held, {str(what): str(text) for what, text in dict(record["found"]).items()})


@dataclass
class _Walk:
    """From a module to all that `reads` names, each thing once."""

    reads: Reads
    watched: Watched
    found: dict[str, str] = field(default_factory=dict[str, str])
    inside: set[int] = field(default_factory=set[int])  # the module and its parts
    visited: dict[int, object] = field(
        default_factory=dict[int, object]
    )  # held, so that identities stay theirs

    def module(self, module: Any, path: str) -> None:
        """A part of the module, and what is in it; of one that stands for another, that, and hooks of its own."""
        if (original := stood_for(module)) is not module:
            self.hooks(module, f" of what stands for '{path}'")
            module = original
        of, held = f" of '{path}'" if path else "", cast("dict[str, Any]", vars(module))
        self.note(f"'{path}'" if path else "the module", type(module).__qualname__)
        self.watched.module(module)
        for part in ("_parameters", "_buffers"):
            for name, tensor in held[part].items():
                self.note(f"'{name}'{of}", "None" if tensor is None else "a tensor")
        self.attributes(module, of)
        self.hooks(module, of)
        self.note(f"the submodules{of}", ", ".join(held["_modules"]) or "none")
        for name, child in held["_modules"].items():
            at = f"{path}.{name}" if path else name
            if child is None:
                self.note(f"'{at}'", "None")
            else:
                self.module(child, at)

    def hooks(self, module: Any, of: str) -> None:
        """What is called before and behind the module."""
        of_module = cast("dict[str, Any]", vars(module))
        for hooks in ("_forward_pre_hooks", "_forward_hooks"):
            held = of_module[hooks]
            self.watched.container(held)
            if held:
                what = f"the {hooks.removeprefix('_').replace('_', ' ')}{of}"
                self.note(what, self.text(list(held.values()), f" of {what}"))

    def note(self, what: str, text: str) -> None:
        if what not in self.reads.ignored:
            self.found[what] = text

    def attributes(self, owner: Any, of: str) -> None:
        """What names mean on an object: its own attributes, then those of its classes."""
        held: Mapping[str, Any] = getattr(owner, "__dict__", {})
        self.watched.size(held)
        for name in _sorted(held, self.reads.names - _bookkeeping()):
            self.attribute(owner, name, held[name], of)
        for cls in type(owner).__mro__:
            if cls is torch_module().nn.Module:
                break
            for name in _sorted(vars(cls), self.reads.names - held.keys()):
                if isinstance(vars(cls)[name], types.MemberDescriptorType) and hasattr(owner, name):
                    self.attribute(owner, name, getattr(owner, name), of)
                elif f"'{name}'{of}" not in self.found and not _is_dunder(name):
                    self.attribute(cls, name, vars(cls)[name], of)
                    self.watched.inherited(owner, name, vars(cls)[name])

    def attribute(self, owner: Any, name: str, value: Any, of: str) -> None:
        what = f"'{name}'{of}"
        if what not in self.reads.ignored:
            self.watched.attribute(owner, name, value)
            self.found[what] = self.text(value, f" of {what}")

    def text(self, value: Any, of: str) -> str:
        """A value as text; what is in it and has a name of its own is noted."""
        torch = torch_module()
        if isinstance(value, _PLAIN):
            return repr(cast("object", value))
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch.Tensor):
            self.watched.tensor(value)
            return _contents(value)
        if isinstance(value, list | tuple | set | frozenset | dict):
            return self.container(value, of)
        if isinstance(value, functools.partial):
            given = cast("functools.partial[Any]", value)
            return f"partial{self.text((given.func, given.args, given.keywords), of)}"
        if isinstance(value, staticmethod | classmethod | types.MethodType):
            return self.text(cast("Any", value).__func__, of)
        if isinstance(value, property):
            return self.text(value.fget, of)
        if isinstance(value, types.FunctionType):
            return self.function(value, of)
        if isinstance(value, type | types.ModuleType):
            return self.named(value, of)
        if (inner := getattr(value, "__wrapped__", None)) is not None:  # functools.cache
            return self.text(inner, of)
        if (name := getattr(value, "__qualname__", None)) is not None:  # written in C
            return f"{getattr(value, '__module__', '')}.{name}"
        return self.object(value, of)

    def container(self, value: Any, of: str) -> str:
        kind = type(value).__name__
        if len(value) > MOST_ELEMENTS or id(value) in self.visited:
            return f"{kind} of {len(value)} elements"
        self.watched.container(value)
        self.visited[id(value)] = value
        held: Any = value
        elements: list[Any] = list(held.values() if isinstance(value, dict) else held)
        texts = [self.text(x, f" of [{i}]{of}") for i, x in enumerate(elements)]
        del self.visited[id(held)]  # where it stands twice it is the same text
        if isinstance(value, dict):
            texts = [f"{key!r}: {text}" for key, text in zip(held, texts, strict=True)]
        if isinstance(value, set | frozenset):
            texts.sort()
        opening, closing = _BRACKETS.get(kind, (f"{kind}(", ")"))
        return f"{opening}{', '.join(texts)}{closing}"

    def function(self, function: Any, of: str) -> str:
        """A function by name; if it ran, by its code, its defaults and closure, and its globals are noted."""
        name, code = f"{function.__module__}.{function.__qualname__}", function.__code__
        if (digest := _digest(code)) not in self.reads.codes:
            inner = getattr(function, "__wrapped__", None)  # PyTorch's decorators, such as torch.no_grad()
            return name if inner is None else self.text(inner, of)
        self.watched.code(function)
        if self.once(function):
            cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
            closed = {n: c.cell_contents for n, c in cells if not self.watched.cell(c)}
            held = [function.__defaults__, function.__kwdefaults__, closed]
            digest = hashlib.sha256(f"{digest} {self.text(held, of)}".encode()).hexdigest()[:16]
            known = function.__globals__
            for each in _sorted(known, _globals(code)):
                if (what := f"'{each}' of {function.__module__}") not in self.found:
                    self.watched.variable(function, each)
                    self.note(what, self.text(known[each], f" of {what}"))
        return f"{name} ({digest})"

    def named(self, value: Any, of: str) -> str:
        """A class or a Python module, with what is read of it."""
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        if not _is_known(name) and self.once(value):
            for each in _sorted(vars(value), self.reads.names):
                if not _is_dunder(each):
                    self.attribute(value, each, vars(value)[each], of)
        return name if isinstance(value, types.ModuleType) else f"{name}.{value.__qualname__}"

    def object(self, value: Any, of: str) -> str:
        """Any other object by its class, with what is read of it; a module that is no part, with its tensors."""
        kind: type[Any] = cast("Any", type(value))
        if id(value) in self.inside or not self.once(value):
            return kind.__qualname__
        if isinstance(value, torch_module().nn.Module):
            for name, part in [*value.named_parameters(), *value.named_buffers()]:
                self.watched.tensor(part)
                self.note(f"'{name}'{of}", _contents(part))
            for name, part in value.named_modules():
                self.visited[id(part)] = part
                self.attributes(part, f" of '{name}'{of}" if name else of)
        elif not _is_known(kind.__module__):
            self.watched.class_of(value)
            self.attributes(value, of)
        return f"{kind.__module__}.{kind.__qualname__}"

    def once(self, value: object) -> bool:
        """Whether this is met for the first time."""
        first = id(value) not in self.visited
        self.visited[id(value)] = value
        return first


def _sorted(held: Iterable[str], names: Iterable[str]) -> list[str]:
    return sorted(set(held).intersection(names))


@functools.cache
def _bookkeeping() -> frozenset[str]:
    """What every module has, and its mode, which has nothing to do with a program of evaluation."""
    return frozenset(cast("dict[str, Any]", vars(torch_module().nn.Module())))


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name != "__call__"


def _is_torchs(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def _is_known(module: str | None) -> bool:
    """Whether the Python module is PyTorch's or Python's, which are taken to stay as they are."""
    root = str(module).partition(".")[0]
    return root == "torch" or root in sys.stdlib_module_names


@functools.cache
def _globals(code: types.CodeType) -> frozenset[str]:
    """Names of globals that the code reads, with that of functions inside of it."""
    names: set[str] = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    inner = [_globals(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return frozenset(names).union(*inner)


@functools.cache
def _digest(code: types.CodeType) -> str:
    """16 hexadecimal digits of what the code does."""

    def about(constant: Any) -> str:
        if isinstance(constant, frozenset):
            return str(sorted(map(repr, cast("frozenset[object]", constant))))
        return _digest(constant) if isinstance(constant, types.CodeType) else repr(constant)

    about_names = repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    constants = "\0".join(map(about, code.co_consts))
    text = code.co_code + about_names.encode() + constants.encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _contents(tensor: Any) -> str:
    """A tensor by what is in it."""
    torch = torch_module()
    kind = f"a tensor of {tuple(tensor.shape)}, {tensor.dtype}"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return kind
    if tensor.device.type == "meta" or tensor.is_quantized:
        return kind
    held = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{kind} ({hashlib.sha256(held.tobytes()).hexdigest()[:16]})"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
