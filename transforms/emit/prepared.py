"""What a program makes of its weights once (`superopt.weights`), made again as soon as one of them changes."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

_State: TypeAlias = "tuple[Any, ...]"


class Prepared:
    """What was prepared of each set of weights that a program is called with, as long as the first one lives.

    It is made again where a weight is another tensor, has other memory, or was written to: PyTorch counts what
    writes to a tensor. It does not count what `tensor.data` or another library writes: `clear` is for that.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: the next call prepares again."""
        self._of_first: Any = None
        self._constants: dict[str, Any] = {}

    def get(self, weights: Sequence[Any], device: Any, make: Callable[[], Any]) -> Any:
        """What `make` has made of `weights` as they are now; None where nobody could tell that they change."""
        if not weights:  # of constants
            name = str(device)
            if name not in self._constants:
                self._constants[name] = make()
            return self._constants[name]
        states = [_state(w) for w in weights]
        if _is_captured(device) or None in states:
            return None
        if self._of_first is None:
            self._of_first = importlib.import_module("torch.utils.weak").WeakIdKeyDictionary()
        known = self._of_first.get(weights[0])
        if known is None or not _same(known[0], weights, states):
            known = [(weakref.ref(w), s) for w, s in zip(weights, states, strict=True)], make()
            self._of_first[weights[0]] = known
        return known[1]


def _same(known: Sequence[tuple[Any, Any]], weights: Sequence[Any], states: Sequence[Any]) -> bool:
    return all(
        ref() is w and before == now for (ref, before), w, now in zip(known, weights, states, strict=True)
    )


def _state(tensor: Any) -> _State | None:
    """What changes where the numbers of a tensor may have: its memory, and PyTorch's count of writes.

    None for tensors of inference mode, which PyTorch does not count for. A weak reference keeps the name of the
    memory, not the memory: no other has its name.
    """
    if tensor.is_inference():
        return None
    reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
    place = tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
    return reductions.StorageWeakRef(tensor.untyped_storage()), tensor._version, *place


def _is_captured(device: Any) -> bool:
    """Whether calls are recorded as a CUDA graph, whose replays would not notice that a weight has changed."""
    torch: Any = importlib.import_module("torch")
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())
