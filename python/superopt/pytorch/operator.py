"""A finished program as an operator of PyTorch, which torch.compile, torch.export and CUDA graphs take whole."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from superopt.extent import at
from superopt.program import Value
from superopt.transforms.emit.dispatch import Dispatcher
from superopt.transforms.emit.program_source import TORCH_DTYPES
from superopt.transforms.ingest.torch_types import export_lock, torch_module
from superopt.transforms.lower.builder import identifier

if TYPE_CHECKING:
    from superopt.transforms.emit.launcher import Launcher

NAMESPACE = "superopt"
_REGISTERED: dict[str, tuple[Callable[..., Any], Launcher]] = {}
_REGISTERING = threading.Lock()
torch: Any = torch_module()


def operator(launcher: Launcher | Dispatcher) -> Callable[[Sequence[Any]], list[Any]]:
    """A function from the program's inputs to its outputs that calls the operator `superopt::<name>_<digest>`.

    Equal programs share one operator. It overwrites the arguments that the program overwrites, and returns the
    other outputs, each in memory of its own. A program without tensors is called directly. Each bucket is an
    operator.
    """
    if isinstance(launcher, Dispatcher):
        calls = {each: operator(each) for _, each in launcher.buckets}
        return lambda tensors: calls[launcher.chosen(tensors)](tensors)
    if not launcher.inputs:
        return lambda tensors: _listed(launcher(*tensors), launcher)
    name = f"{identifier(launcher.program.name, 'program')}_{_digest(launcher)}"
    with _REGISTERING:
        call, runs = _REGISTERED.get(name) or _register(name, launcher)
    launcher.prepared = runs.prepared  # to forget it is to forget what runs
    aliases, count = launcher.aliases, len(launcher.outputs)
    written = sorted(aliases.values())

    def called(tensors: Sequence[Any]) -> list[Any]:
        given = [t for i, t in enumerate(tensors) if i not in written]
        made = _beside_exports(lambda: call(given, *(tensors[i] for i in written)))
        fresh = iter([made] if count - len(aliases) == 1 else made or ())
        return [tensors[aliases[i]] if i in aliases else next(fresh) for i in range(count)]

    return called


def _beside_exports(call: Callable[[], Any]) -> Any:
    """The result of `call`, an operator of PyTorch, made when no other thread exports.

    PyTorch notes operators that Python implements in a global dictionary as long as any thread exports: the
    exporting thread and the calling one delete each other's notes (KeyError).
    """
    held = False
    if torch.compiler.is_dynamo_compiling():  # which takes no locks, and has this one
        return call()
    while torch.compiler.is_exporting() and not (held := export_lock().acquire(timeout=0.01)):
        pass
    try:
        return call()
    finally:
        if held:
            export_lock().release()


def _listed(made: Any, launcher: Launcher) -> list[Any]:
    return [made] if len(launcher.outputs) == 1 else list(made)


def _register(name: str, launcher: Launcher) -> tuple[Callable[..., Any], Launcher]:
    written = sorted(launcher.aliases.values())
    fresh = [v for i, v in enumerate(launcher.outputs) if i not in launcher.aliases]
    # A list, as PyTorch's operators have at most 64 arguments.
    takes = ", ".join(["Tensor[] given", *(f"Tensor(a{i}!) x{i}" for i in written)])
    gives = "Tensor" if len(fresh) == 1 else f"({', '.join(['Tensor'] * len(fresh))})"

    def in_order(given: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        tensors = list(given)
        for i, tensor in zip(written, others, strict=True):
            tensors.insert(i, tensor)
        return tensors

    def run(given: Sequence[Any], *others: Any) -> Any:
        tensors = in_order(given, others)
        made = _listed(launcher(*tensors), launcher)
        taken = {t.untyped_storage().data_ptr() for t in tensors}
        out: list[Any] = []
        for i, value in enumerate(made):
            if i in launcher.aliases:
                continue
            # What an operator of PyTorch returns shares no memory with its arguments or another result.
            shared = value.untyped_storage().data_ptr() in taken
            out.append(value.clone(memory_format=torch.contiguous_format) if shared else value)
            taken.add(out[-1].untyped_storage().data_ptr())
        return _returned(out)

    def fake(given: Sequence[Any], *others: Any) -> Any:
        tensors = in_order(given, others)
        extents = launcher.extents(tensors)
        return _returned([_empty(v, tensors[0], extents) for v in fresh])

    def _empty(value: Value, like: Any, extents: Any) -> Any:
        dtype = getattr(torch, TORCH_DTYPES[value.dtype].removeprefix("torch."))
        return like.new_empty([at(n, extents) for n in value.shape], dtype=dtype)

    made = torch.library.custom_op(
        f"{NAMESPACE}::{name}",
        run,
        mutates_args=[f"x{i}" for i in written],
        schema=f"({takes}) -> {gives}",
    )
    made.register_fake(fake)
    _REGISTERED[name] = getattr(getattr(torch.ops, NAMESPACE), name), launcher
    return _REGISTERED[name]


def _returned(tensors: list[Any]) -> Any:
    if not tensors:
        return None
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _digest(launcher: Launcher) -> str:
    """16 hexadecimal digits of everything that the program computes with."""
    program = launcher.program
    digest = hashlib.sha256()
    types = [str(v.type) for v in (*launcher.inputs, *launcher.outputs)]
    for text in (
        program.kernels_source,
        program.launcher_source,
        *types,
        repr(launcher.aliases),
        str(launcher.bounds),
        str(launcher.compiled),
    ):
        digest.update(text.encode() + b"\0")
    for name, array in sorted(program.constants.items()):
        digest.update(name.encode() + str(array.shape).encode() + array.tobytes())
    return digest.hexdigest()[:16]
