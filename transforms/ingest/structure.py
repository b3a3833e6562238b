"""What a module's program depends on besides tensors: submodules, and their plain attributes, such as `eps`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()


@dataclass(frozen=True)
class Structure:
    """A module and what is in it, by name. Text and numbers alone: it is copied and pickled with kernels."""

    kind: str
    attributes: tuple[tuple[str, Any], ...]
    forward: bool  # whether the module has one of its own, beside its class's
    tensors: Mapping[str, bool]  # whether each name has a parameter or a buffer, or None
    children: Mapping[str, Structure | None]


def structure(module: Any) -> Structure:
    """The module as it is now."""
    held = module.__dict__
    return Structure(
        _kind(module),
        tuple((n, v) for n, v in held.items() if n != "training" and n[0] != "_" and _is_plain(v)),
        "forward" in held,
        {n: t is not None for part in ("_parameters", "_buffers") for n, t in held[part].items()},
        {n: None if m is None else structure(m) for n, m in held["_modules"].items()},
    )


def steady(before: Structure, after: Structure) -> Structure:
    """`before` without the attributes that a call has changed, such as a count of calls."""
    inner: dict[str, Structure | None] = {}
    for name, part in before.children.items():
        other = after.children.get(name)
        inner[name] = steady(part, other) if part is not None and other is not None else part
    kept = dict(after.attributes)
    same = tuple((n, v) for n, v in before.attributes if n in kept and kept[n] == v)
    return replace(before, attributes=same, children=inner)


def to_json(known: Structure) -> dict[str, Any]:
    """A structure as JSON, but for attributes that JSON lacks."""
    return {
        "kind": known.kind,
        "attributes": {n: v for n, v in known.attributes if isinstance(v, _PLAIN)},
        "forward": known.forward,
        "tensors": dict(known.tensors),
        "children": {n: None if c is None else to_json(c) for n, c in known.children.items()},
    }


def from_json(record: Mapping[str, Any]) -> Structure:
    """What `to_json` gave; raises KeyError, TypeError or AttributeError for something else."""
    children = {n: None if c is None else from_json(c) for n, c in record["children"].items()}
    kept = tuple((str(n), v) for n, v in record["attributes"].items())
    return Structure(str(record["kind"]), kept, bool(record["forward"]), dict(record["tensors"]), children)


def changed(module: Any, known: Structure, name: str = "") -> str:
    """What is not as it was, as "expected ..., got ..."; empty where all of it is."""
    held = module.__dict__
    of = f" of '{name}'" if name else ""
    if (kind := _kind(module)) != known.kind:
        where = f" as '{name}'" if name else ""
        return f"expected a {known.kind}{where}, as when the kernels were made, got a {kind}"
    for attribute, value in known.attributes:
        now = held.get(attribute, _MISSING)
        if now is not value and (type(now) is not type(value) or now != value):
            got = "none" if now is _MISSING else repr(now)
            return f"expected '{attribute}'{of} to be {value!r}, as when the kernels were made, got {got}"
    if ("forward" in held) != known.forward:
        return f"expected the forward{of} that the kernels were made for, got another"
    for part in ("_parameters", "_buffers"):
        for tensor, now in held[part].items():
            if known.tensors.get(tensor, False) != (now is not None):
                was, got = ("none", "one") if now is not None else ("one", "none")
                return f"expected {was} as '{tensor}'{of}, as when the kernels were made, got {got}"
    children = held["_modules"]
    if children.keys() != known.children.keys():
        return f"expected the submodules{of} that the kernels were made for, got others"
    for child, inner in known.children.items():
        at, now = f"{name}.{child}" if name else child, children[child]
        if inner is None or now is None:
            if inner is not now:
                return f"expected '{at}' as it was when the kernels were made, got another"
        elif said := changed(now, inner, at):
            return said
    return ""


def _kind(module: Any) -> str:
    return type(module).__qualname__


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, cast("tuple[Any, ...]", value)))
    return isinstance(value, _PLAIN) or str(type(cast("object", value))) == "<class 'torch.dtype'>"
