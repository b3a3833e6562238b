"""Calls a finished program on torch tensors: on their GPU or, for CPU tensors, in Triton's interpreter, or
compiled for the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from superopt.aliasing import pairs
from superopt.dialects.reader import read
from superopt.errors import BadInput
from superopt.extent import at
from superopt.program import COMPUTE_DTYPES, KernelGraph, Value
from superopt.transforms.emit.prepared import Prepared
from superopt.transforms.emit.program_source import (
    TORCH_DTYPES,
    EmittedProgram,
    emit_program,
    extents_of,
    write_program,
)

if TYPE_CHECKING:
    from superopt.numerics.interpreter import Interpreter
    from superopt.run.outcome import Outcome
    from superopt.transforms.emit.ranged import Ranged

# What runs for tensors of the CPU: the original, Triton's interpreter, or the tile programs, compiled.
Interpret: TypeAlias = bool | Literal["cpu"]


def load_launcher(outcome: Outcome) -> Launcher:
    """A callable that runs the kernels of `outcome`, those of its own bucket where it has buckets."""
    return launcher_of(outcome.emitted, outcome.original, outcome.lowered, outcome.ranged)


def launcher_of(
    emitted: EmittedProgram, original: KernelGraph, lowered: KernelGraph, ranged: Ranged | None
) -> Launcher:
    """A callable that runs the kernels that were emitted from `lowered`, or for the range of an extent."""
    if ranged is None:
        return Launcher(emitted, original.inputs, original.outputs, original.aliases, lowered=lowered)
    bounds = {axis.name: (axis.low, axis.high) for axis in ranged.record.axes}
    return Launcher(emitted, ranged.inputs, ranged.outputs, original.aliases, bounds)


class Launcher:
    """Takes the program's inputs as torch tensors, and returns its output or a tuple of them.

    Where the program states that an output is returned in an argument's memory (`aliases`), that tensor is
    overwritten and returned; no other tensor changes. Where shapes depend on extents (`superopt.extent`),
    `bounds` are the least and the largest of each, by name. What the program prepares of weights is made in the
    first call, and again as soon as one changes (`Prepared`). `lowered` is the program that the kernels were
    emitted from, or the file that holds it; where this is `compiled`, that runs for tensors of the CPU, and not
    the interpreter.
    """

    compiled = False

    def __init__(
        self,
        program: EmittedProgram,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        aliases: tuple[int, ...] = (),
        bounds: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        lowered: KernelGraph | Path | None = None,
    ) -> None:
        self.program, self.inputs, self.outputs, self.lowered = program, inputs, outputs, lowered
        self.aliases, self.bounds = pairs(aliases), dict(bounds)
        self.places = extents_of(inputs)
        self.prepared = Prepared()

    def __getstate__(self) -> dict[str, Any]:
        """Without what was loaded for this process."""
        kept = {k: v for k, v in self.__dict__.items() if k not in ("_launched_by", "_folder")}
        return {**kept, "prepared": Prepared()}

    def __call__(self, *tensors: Any) -> Any:
        """Run once. Raises BadInput where number, shapes or dtypes of the tensors differ from the program's."""
        self.check(tensors)
        self.check_memory(tensors)
        gpu = next((t.device for t in tensors if t.is_cuda), None)
        made = list(self._on_cpu(tensors) if gpu is None else self._launched(tensors, gpu))
        for i, j in self.aliases.items():
            if made[i].data_ptr() != tensors[j].data_ptr():  # interpreted, or not contiguous
                tensors[j].copy_(made[i])
            made[i] = tensors[j]
        return made[0] if len(self.outputs) == 1 else tuple(made)

    def check(self, tensors: Sequence[Any]) -> None:
        """Raise BadInput where number, shapes, dtypes or devices of the tensors are not the program's."""
        if len(tensors) != len(self.inputs):
            raise BadInput(f"expected {len(self.inputs)} tensors, got {len(tensors)}")
        devices = {str(getattr(t, "device", "")) for t in tensors}
        if len(devices) > 1:
            raise BadInput(f"expected tensors of one device, got {' and '.join(sorted(devices))}")
        extents = self.extents(tensors)
        for i, (tensor, value) in enumerate(zip(tensors, self.inputs, strict=True)):
            shape = tuple(getattr(tensor, "shape", ()))
            dtype = str(getattr(tensor, "dtype", type(tensor).__name__))
            known, wanted = TORCH_DTYPES[value.dtype], tuple(at(n, extents) for n in value.shape)
            if shape != wanted or (dtype != known and (known, dtype) != ("torch.int8", "torch.uint8")):
                raise BadInput(f"expected argument {self._named(i)} of {wanted} {known}, got {shape} {dtype}")

    def extents(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """The extents that shapes depend on, by name; raises BadInput for one out of bounds."""
        found: dict[str, Any] = {}
        for name, place in self.places.items():
            shape = getattr(tensors[place.argument], "shape", ())
            if len(shape) <= place.dim:
                wanted = self.inputs[place.argument].shape
                raise BadInput(
                    f"expected argument {self._named(place.argument)} of {wanted}, got {tuple(shape)}"
                )
            (low, high), found[name] = self.bounds[name], shape[place.dim] // place.times
            if not low <= found[name] <= high:
                raise BadInput(f"expected {name} from {low} to {high}, got {found[name]}")
        return found

    def _named(self, argument: int) -> str:
        """An argument by its number and, in quotes, the name that the program gives it."""
        name = self.inputs[argument].name
        return f"{argument} ('{name}')" if name else str(argument)

    def forget(self) -> None:
        """Make again, in the next call, what is made of weights once."""
        self.prepared.clear()

    def takes(self, tensors: Sequence[Any]) -> bool:
        """Whether the extents of tensors whose shapes fit otherwise are within the bounds."""
        try:
            self.extents(tensors)
        except BadInput:
            return False
        return True

    def check_memory(self, tensors: Sequence[Any]) -> None:
        """Raise BadInput for sparse tensors, and for an argument that is overwritten in memory of another."""
        for i, tensor in enumerate(tensors):
            if str(tensor.layout) != "torch.strided":
                raise BadInput(f"expected argument {self._named(i)} as a dense tensor, got {tensor.layout}")
        for j in self.aliases.values():
            first, end = _memory(tensors[j])
            for i, other in enumerate(tensors):
                begins, ends = _memory(other)
                if i != j and first < ends and begins < end:
                    raise BadInput(
                        f"expected argument {j}, which is overwritten, in memory of its own, got it shared with "
                        f"argument {i}"
                    )

    def _launched(self, tensors: Sequence[Any], device: Any) -> Sequence[Any]:
        torch: Any = importlib.import_module("torch")
        with torch.cuda.device(device):  # Triton launches on the current one
            return self._called(tensors, device)

    def _called(self, tensors: Sequence[Any], device: Any) -> Sequence[Any]:
        given = [t.contiguous() for t in tensors]
        if (takes := self.program.prepare) is None:
            return self._launch.run(*given)

        def make() -> Any:
            return self._launch.prepare(device, *(given[i] for i in takes))

        prepared = self.prepared.get([tensors[i] for i in takes], device, make)
        return self._launch.run(*given, prepared=prepared)

    @property
    def _launch(self) -> Any:
        """The launcher's source as a module, in its own modules: several programs share one process."""
        if (made := self.__dict__.get("_launched_by")) is None:
            with _ALONE:
                made = self.__dict__.get("_launched_by") or self._loaded()
                self.__dict__["_launched_by"] = made
        return made

    def _loaded(self) -> Any:
        self._folder = tempfile.TemporaryDirectory(prefix="superopt-kernels-")
        folder = Path(self._folder.name)
        write_program(self.program, folder)
        before = sys.modules.get("kernels")
        try:
            sys.modules["kernels"] = self._kernels() if self.compiled else _module(folder / "kernels.py")
            return _module(folder / "launch.py")
        finally:
            if before is None:
                sys.modules.pop("kernels", None)  # there is none where it could not be made
            else:
                sys.modules["kernels"] = before

    def on_cpu(self) -> Launcher:
        """This program with its tile programs compiled for tensors of the CPU (`superopt.numerics.cpu`).

        Raises BadInput for kernels that take a range of an extent, and where the lowered program is not known.
        """
        if self.bounds or self.lowered is None:
            got = "a range of extents" if self.bounds else "kernels without their tile programs"
            raise BadInput(f"expected a program of fixed extents to compile for the CPU, got {got}")
        made = copy(self)  # without what was loaded: see __getstate__
        made.compiled = True
        return made

    def _kernels(self) -> Any:
        """What stands for the module of the kernels on the CPU."""
        from superopt.numerics.cpu import Kernels, shared_cpu

        assert self.lowered is not None
        graph = read(self.lowered.read_text()) if isinstance(self.lowered, Path) else self.lowered
        return Kernels(graph, [kernel.name for kernel in emit_program(graph).kernels], shared_cpu())

    def _on_cpu(self, tensors: Sequence[Any]) -> Sequence[Any]:
        with _ALONE:
            if self.compiled:
                return self._called(tensors, importlib.import_module("torch").device("cpu"))
            return self._interpreted(tensors)

    def _interpreted(self, tensors: Sequence[Any]) -> Sequence[Any]:
        torch: Any = importlib.import_module("torch")
        # numpy lacks bf16; only operations outside kernels read dtypes that are not compute dtypes, unchanged.
        wanted = [v.dtype for v in self.inputs]
        arrays = [
            (t.detach().float() if d in COMPUTE_DTYPES else t.detach()).numpy()
            for t, d in zip(tensors, wanted, strict=True)
        ]
        name = None
        if (takes := self.program.prepare) is not None:
            weights = [tensors[i] for i in takes]
            name = self.prepared.get(weights, torch.device("cpu"), lambda: next(_NAMES))
        made = _interpreter().run(self.program, arrays, wanted, prepared=name)
        dtypes = [getattr(torch, TORCH_DTYPES[v.dtype].removeprefix("torch.")) for v in self.outputs]
        return [
            torch.from_numpy(x).to(d) if d.is_floating_point else torch.from_numpy(x)
            for x, d in zip(made, dtypes, strict=True)
        ]


def _memory(tensor: Any) -> tuple[int, int]:
    """The first byte of the tensor, and the end of its last one."""
    if not tensor.numel():
        return 0, 0
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()


_ALONE = threading.RLock()  # one call at a time has the processes for the CPU, and loads kernels
_NAMES = itertools.count()  # of what the interpreter's process has prepared


@cache
def _interpreter() -> Interpreter:
    """The one that all programs of this process share."""
    from superopt.numerics.interpreter import Interpreter

    return Interpreter()


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"superopt_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
