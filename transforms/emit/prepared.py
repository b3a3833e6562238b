"""What a program makes of its weights once (`superopt.weights`), made again as soon as one of them changes."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

_State: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True, eq=False)
class Seen:
    """Which tensors there were, and the state of each."""

    tensors: tuple[weakref.ref[Any], ...]
    states: tuple[_State | None, ...]

    def is_as(self, before: Seen | None) -> bool:
        """Whether they are those of `before`, and none was written to; False where nobody could tell."""
        if before is None or None in self.states or self.states != before.states:
            return False
        both = [(a(), b()) for a, b in zip(self.tensors, before.tensors, strict=True)]
        return all(a is b and a is not None for a, b in both)


class Prepared:
    """What was prepared of each set of weights that a program is called with, as long as the first one lives.

    It is made again where a weight is another tensor, has other memory, or was written to: PyTorch counts what
    writes to a tensor, but for its fused optimizers, whose steps are counted here. It does not count what
    `tensor.data` or another library writes: `clear` is for that.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: the next call prepares again."""
        self._of_first: Any = None
        self._constants: dict[str, Any] = {}

    def get(self, weights: Sequence[Any], device: Any, make: Callable[[], Any]) -> Any:
        """What `make` has made of `weights` as they are now; None where nobody could tell that they change.

        While a CUDA graph is recorded, nothing is computed: only what was made of constants before is known then.
        """
        captured = _is_captured(device)
        if not weights:  # of constants
            name = str(device)
            if name not in self._constants and not captured:
                self._constants[name] = _finished(make, device)
            return self._constants.get(name)
        now = seen(weights)
        if captured or None in now.states:
            return None
        if self._of_first is None:
            self._of_first = importlib.import_module("torch.utils.weak").WeakIdKeyDictionary()
        known = self._of_first.get(weights[0])
        if known is None or not now.is_as(known[0]):
            known = now, _finished(make, device)
            self._of_first[weights[0]] = known
        return known[1]


def _finished(make: Callable[[], Any], device: Any) -> Any:
    """What `make` has made, complete: calls on any CUDA stream read it, none reads what it replaces."""
    made = make()
    if device.type == "cuda":
        importlib.import_module("torch").cuda.synchronize(device)
    return made


def seen(tensors: Sequence[Any]) -> Seen:
    """The tensors as they are now."""
    _count_steps()
    return Seen(tuple(map(weakref.ref, tensors)), tuple(map(_state, tensors)))


def _state(tensor: Any) -> _State | None:
    """What changes where the numbers of a tensor may have: its memory, and PyTorch's count of writes.

    None for tensors of inference mode, which PyTorch does not count for. A weak reference keeps the name of the
    memory, not the memory: no other has its name.
    """
    if tensor.is_inference():
        return None
    reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
    place = tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
    return reductions.StorageWeakRef(tensor.untyped_storage()), tensor._version, _steps[0], *place


# How many steps optimizers have made since the first preparation: `torch._fused_adamw_` and its like write to
# parameters without counting it there.
_steps = [0]


@cache
def _count_steps() -> None:
    """Count every step of every optimizer from now on."""
    optimizer: Any = importlib.import_module("torch.optim.optimizer")

    def count(*_: object) -> None:
        _steps[0] += 1

    optimizer.register_optimizer_step_post_hook(count)


def _is_captured(device: Any) -> bool:
    """Whether calls are recorded as a CUDA graph, whose replays would not notice that a weight has changed."""
    torch: Any = importlib.import_module("torch")
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())
