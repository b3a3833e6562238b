"""What the tests of the verifier share: programs from a function of builder and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import pytest
from random_programs import Builder, value

from superopt.program import KernelGraph, Value

Built: TypeAlias = "Value | list[Value]"
Build1 = Callable[[Builder, Value], Built]
Build2 = Callable[[Builder, Value, Value], Built]
Build3 = Callable[[Builder, Value, Value, Value], Built]


def program(types: list[tuple[int, ...]], build: Build1 | Build2 | Build3) -> KernelGraph:
    """The program that `build(builder, *inputs)` writes."""
    inputs, b = [value(*shape) for shape in types], Builder()
    outputs: Built = cast(Any, build)(b, *inputs)
    return KernelGraph("main", inputs, b.nodes, outputs if isinstance(outputs, list) else [outputs])


SQUARE = [(4, 4)] * 3


def nothing_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program has reduced extents: what follows them decides alone."""

    def none(*_: object) -> tuple[()]:
        return ()

    monkeypatch.setattr("superopt.verify.certifier.ways_to_reduce", none)
