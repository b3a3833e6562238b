"""Real programs in: linalg on tensors (`ingest_linalg`) and PyTorch modules (`from_torch`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.transforms.ingest.import_torch import Imported

__all__ = ["from_torch", "run_extern"]


def from_torch(
    module: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None, **options: Any
) -> Imported:
    """See `superopt.transforms.ingest.import_torch.from_torch`; imports PyTorch when called."""
    from superopt.transforms.ingest import import_torch

    return import_torch.from_torch(module, inputs, kwargs, **options)


def run_extern(node: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """See `superopt.transforms.ingest.extern.run_extern`."""
    from superopt.transforms.ingest import extern

    return extern.run_extern(node, tensors)
