"""The table of handlers, and what they share.

A handler takes the reader and the operator's arguments in the order of its schema: values of the graph, constant
tensors, numbers, lists. It raises NotExpressible for what the operator table lacks. `HANDLERS` is keyed by the
name without "aten.".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from superopt.program import Value
from superopt.transforms.ingest.torch_dialect import TorchReader

Args: TypeAlias = list[Any]
Handler: TypeAlias = Callable[[TorchReader, Args], Any]

HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for PyTorch operators."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def dim_of(x: Value, dim: int) -> int:
    """`dim` counted from the front."""
    rank = max(len(x.shape), 1)
    return dim + rank if dim < 0 else dim


def value_of(r: TorchReader, held: Any) -> Value:
    """An operand of an operator that keeps the dtype: in its own dtype, or a constant in the result's."""
    if isinstance(held, Value) and held.dtype == "i1":
        return r.as_float(held)
    if isinstance(held, Value) and held in r.truths:
        return held
    return r.tensor(held, held.dtype if isinstance(held, Value) else r.element)


def fill(r: TorchReader, number: Any, like: Value) -> Value:
    """`number` as a constant of `like`'s dtype."""
    return r.tensor(number, like.dtype)
