"""The `torch.nn.Module` that stands in a model where the original stood."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from superopt.errors import UNKNOWN, BadInput, BadOption, Location, NoKernels, SuperoptError
from superopt.pytorch.operator import operator
from superopt.result import Kept
from superopt.transforms.emit.dispatch import Dispatcher
from superopt.transforms.emit.launcher import Launcher
from superopt.transforms.emit.prepared import Seen, seen
from superopt.transforms.ingest import from_torch
from superopt.transforms.ingest.import_torch import is_training
from superopt.transforms.ingest.standing import Standing, is_read
from superopt.transforms.ingest.structure import Structure, changed, structure
from superopt.transforms.ingest.torch_types import torch_module
from superopt.transforms.ingest.watched import Watched

if TYPE_CHECKING:
    from superopt.report import Report, Schedule
    from superopt.result import Optimized
    from superopt.run.outcome import Outcome
    from superopt.transforms.emit.launcher import Interpret
    from superopt.transforms.ingest.import_torch import Imported
    from superopt.transforms.ingest.signature import Signature
    from superopt.verify import Certificate

torch: Any = torch_module()
_Runs = TypeVar("_Runs", bound="Launcher | Dispatcher")


_NOT_THE_USERS = ("torch.", "superopt.")
_OTHERS = "is called with other arguments than its kernels take"


@dataclass(frozen=True)
class Calling:
    """How kernels are called: arguments and results, and the module's weights by name, in the program's order.

    `fixed` are copies of the buffers that the program holds as constants. `ties` are names of weights that the
    program holds as one tensor with another, each with the other's name. `autocast` is what the module was read
    under (`autocast_of`), and `structure` what it was then, None where that is not known.
    """

    signature: Signature
    weights: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ties: tuple[tuple[str, str], ...] = ()
    autocast: str = ""
    structure: Structure | None = None


class OptimizedModule(Standing, torch.nn.Module):
    """A module whose `forward` runs verified kernels: called as the original, with its parameters by reference.

    On a GPU it runs the kernels; on a CPU the original, unless `interpret` asks for Triton's interpreter or, by
    "cpu", for the tile programs that the kernels were emitted from, compiled for the CPU. The original runs, with
    one warning, where gradients are wanted, the module is in training mode, or torch.autocast asks for other
    dtypes than it did when the kernels were made. For arguments that the kernels were not made for it raises
    BadInput, or, with one warning, runs the original where `fallback` is true; so it does where something else
    that the original reads has changed since, such as `eps` (`transforms.ingest.structure`). Graphs of
    torch.compile notice that, too, and run the original where they could not (`_wants_original`). Results of
    kernels are contiguous, whatever the original's are; `report.remarks` says so where they are not.

    It starts in evaluation mode, as does the original, whose submodules, parameters and buffers it shares:
    `state_dict`, `load_state_dict`, `to` and the like act on both. Submodules' hooks run where the original does.

    `result` is what was found: `report`, `certificate`, `schedule`, `mlir`, `triton`, `ptx`. `calls` counts the
    calls of the kernels and of the original, those that torch.compile traced once.
    """

    def __init__(
        self,
        original: Any,
        calling: Calling,
        result: Optimized,
        *,
        fallback: bool = False,
        interpret: Interpret = False,
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        state = self.__dict__
        state["original"] = original  # not a child: its children are ours
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            state[shared] = original.__dict__[shared]
        self.calling, self.result = calling, result
        self.fallback, self.interpret = fallback, interpret
        self._launcher = None if isinstance(result, Kept) else called_by(result, interpret)
        self._operator = operator(self._launcher) if self._launcher else None
        self.calls = {"kernels": 0, "original": 0}
        self._warned: set[str] = set()
        self._seen: dict[str, Seen] = {}
        self._watched = Watched()
        self._another()
        self.eval()

    # --- what was found

    @property
    def outcome(self) -> Outcome:
        """Programs, proof, kernels, report and schedule of the run."""
        return self.result.outcome

    @property
    def report(self) -> Report:
        """The funnel, the candidates, predicted costs and times."""
        return self.result.report

    @property
    def certificate(self) -> Certificate:
        """The proof of equivalence; `superopt-verify --replay` checks it again."""
        return self.result.certificate

    @property
    def schedule(self) -> Schedule:
        """What replays this result without a search."""
        return self.result.schedule

    @property
    def mlir(self) -> str:
        """The optimized program in superopt's dialects."""
        return self.result.mlir

    @property
    def triton(self) -> str:
        """Source of the Triton kernels."""
        return self.result.triton

    @property
    def ptx(self) -> str:
        """PTX of the kernels, one after the other."""
        return self.result.ptx

    def save_report(self, path: str | Path) -> Path:
        """Write what `--report` writes: a page for people where the name ends in .html, else JSON."""
        return self.result.save_report(path)

    def _repr_html_(self) -> str:
        return self.result._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def save(self, folder: str | Path) -> Path:
        """Write a bundle that `superopt.load` reads in another process; returns its folder.

        It holds the kernels, which run without superopt, too, and the weights as they are now.
        """
        from superopt.pytorch.saving import save

        return save(self, Path(folder))

    # --- calling

    def prepare_again(self) -> None:
        """Make again, in the next call, what is made of weights once.

        That happens by itself where PyTorch knows that a weight has changed, and after steps of optimizers. It
        does not know what `tensor.data`, numpy or another library writes.
        """
        if self._launcher is not None:
            self._launcher.forget()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original returns; a node that calls this module, where torch.fx traces another around it."""
        given = (*args, *kwargs.values())
        proxy = next((x for x in given if isinstance(x, torch.fx.Proxy)), None)
        if proxy is not None:
            tracer = proxy.tracer
            if tracer.root is self:
                return self.original(*args, **kwargs)
            return tracer.create_proxy("call_module", tracer.path_of_module(self), args, kwargs)
        if is_read():  # a module around this one: its program has what this one's operator would hide
            return self.original(*args, **kwargs)
        if self._launcher is None or self._operator is None:
            return self._original(args, kwargs)
        if torch.compiler.is_compiling() and self.calling.signature.has_state:
            why = "takes objects or changes its arguments, which a graph of torch.compile cannot"
            self._warn(why, "keep it out of the graph with torch.compiler.disable")
            return self._original(args, kwargs)
        try:
            self._check_structure()
            given_tensors = self.calling.signature.flat(args, kwargs)
            tensors = [*given_tensors, *self._weights()]
            self._launcher.check(tensors)
            if not torch.compiler.is_compiling():  # where tensors have no memory yet
                self._launcher.check_memory(tensors)
            self._check_held(tensors)
        except BadInput as error:
            if self.fallback:
                self._warn(_OTHERS, f"call it as they expect: {error.message}")
                return self._original(args, kwargs)
            raise BadInput(f"{self._called}: {error.message}", place(self.original)) from None
        if self._wants_original(tensors):
            return self._original(args, kwargs)
        self._count("kernels")
        return self.calling.signature.finished(args, kwargs, given_tensors, self._operator(tensors))

    def _wants_original(self, tensors: Sequence[Any]) -> bool:
        if self.training:
            self._warn("is in training mode", "call .eval()")
            return True
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            self._warn("is asked for gradients", "call it under torch.no_grad()")
            return True
        if _is_transformed(tensors):
            self._warn("is called by torch.func or forward-mode gradients", "call it outside of them")
            return True
        device = tensors[0].device.type if tensors else "cpu"
        if device != "cuda" and not (self.interpret and device == "cpu"):
            return True
        if _lacks_values(tensors) and (self.calling.fixed or self.calling.ties or self._watched.blind):
            why = "reads constants, tied weights, closures or the like, which torch.compile does not watch"
            self._warn(why, "keep it out of the graph with torch.compiler.disable")
            return True
        if (now := autocast_of(tensors)) != self.calling.autocast:
            made = f"under {self.calling.autocast}" if self.calling.autocast else "without autocast"
            self._warn(f"is called under {now or 'no autocast'}", f"call it {made}, as they were made")
            return True
        return False

    def _original(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._count("original")
        return self.original(*args, **kwargs)

    def _count(self, what: str) -> None:
        if not torch.compiler.is_compiling():
            self.calls[what] += 1

    def _warn(self, why: str, remedy: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            said = f"{self._called} {why}, and runs the original; to run the kernels, {remedy}"
            warnings.warn(said, stacklevel=_callers())

    _warn._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess] # as `_another`

    @property
    def _called(self) -> str:
        return f"superopt's {called(self.original)}"

    def _weights(self) -> list[Any]:
        return [tensor_of(self.original, name) for name in self.calling.weights]

    def _check_structure(self) -> None:
        """Raise BadInput where the original is another than its program was read of."""
        said = self._another()
        if torch.compiler.is_dynamo_compiling():
            self._watched.traced()
        if said:
            raise BadInput(said)

    def _another(self) -> str:
        """What of the original is not as its program was read of it; empty where all of it is."""
        known = self.calling.structure
        if known is None or (self._watched.places and self._watched.same()):
            return ""
        watched = Watched()
        now = structure(self.original, known.reads, watched, self.calling.signature.kinds)
        if not (said := changed(now, known)):
            self._watched = watched
        return said

    # torch.compile calls it as it is, once; its own decorator for that takes seconds to import.
    _another._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

    def _check_held(self, tensors: Sequence[Any]) -> None:
        """Raise BadInput where a constant of the program has changed, or weights that it holds as one differ."""
        if not (self.calling.fixed or self.calling.ties) or _lacks_values(tensors):
            return
        for name, known in self.calling.fixed.items():
            if not self._is(name, known):
                raise BadInput(
                    f"expected buffer '{name}' as it was when the kernels were made, got it changed"
                )
        for name, other in self.calling.ties:
            if not self._is(name, tensor_of(self.original, other)):
                raise BadInput(
                    f"expected '{name}' to be '{other}', as when the kernels were made, got another tensor"
                )

    def _is(self, name: str, known: Any) -> bool:
        """Whether the tensor of this name is `known`, or holds the same; compared again once either changes."""
        now = tensor_of(self.original, name)
        if now is known:
            return True
        both = seen((now, known))
        if not both.is_as(self._seen.get(name)):
            if now.shape != known.shape or not torch.equal(now.detach().to(known.device), known):
                return False
            self._seen[name] = both
        return True

    # --- as a module

    def __getattr__(self, name: str) -> Any:
        try:
            return cast("Any", super().__getattr__(name))  # pyright: ignore[reportUnknownMemberType]
        except AttributeError:
            if name.startswith("__") or "original" not in self.__dict__:
                raise
            return getattr(self.__dict__["original"], name)

    # A Sequential is indexed and walked; Python does not ask `__getattr__` for that.
    def __getitem__(self, index: Any) -> Any:
        return self.original[index]

    def __len__(self) -> int:
        return len(self.original)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.original)

    def __bool__(self) -> bool:
        return True

    def train(self, mode: bool = True) -> Any:
        """Set training mode of this module and of the original."""
        for part in (*self.modules(), *self.original.modules()):
            part.training = mode
        return self

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.original._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.original._load_from_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = rebuilt(copy.deepcopy(self.original, memo), *self._state()[1:])
        memo[id(self)] = made
        return made

    def __reduce__(self) -> Any:
        return rebuilt, self._state()

    def _state(self) -> tuple[Any, ...]:
        return self.original, self.calling, self.result, self.fallback, self.interpret, self.training

    def extra_repr(self) -> str:
        """What was found, in one line."""
        return f"{called(self.original)}: {self.result.summary}"


def called_by(result: Optimized, interpret: Interpret) -> Launcher | Dispatcher:
    """The kernels of a result, as `interpret` says; raises BadOption for what it cannot be."""
    return interpreted(result.launcher, interpret)


def interpreted(launcher: _Runs, interpret: Interpret) -> _Runs:
    """The kernels as `interpret` says; raises BadOption for what it cannot be."""
    if interpret not in (False, True, "cpu"):
        raise BadOption(f'expected interpret to be False, True or "cpu", got {interpret!r}')
    return cast("_Runs", launcher.on_cpu()) if interpret == "cpu" else launcher


def kept(original: Any, error: NoKernels) -> Optimized:
    """The result for a module whose program lacks kernels, and a warning; raises `error` if no run reported."""
    if error.report is None:
        raise error
    warnings.warn(f"superopt's {called(original)} runs the original: {error.message}", stacklevel=3)
    return Kept(error.message, error.report)


def _lacks_values(tensors: Sequence[Any]) -> bool:
    """Whether nothing can be compared: a compiler sees the call, or tensors are fake or of the device "meta"."""
    fake = torch._subclasses.FakeTensor
    return torch.compiler.is_compiling() or any(t.is_meta or isinstance(t, fake) for t in tensors)


def _is_transformed(tensors: Sequence[Any]) -> bool:
    """Whether torch.func (vmap, jvp, ...) or forward-mode gradients see the call, which kernels would hide."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():
        return True
    forward = torch.autograd.forward_ad
    if forward._current_level < 0:
        return False
    return any(forward.unpack_dual(t).tangent is not None for t in tensors)


def rebuilt(
    original: Any, calling: Calling, result: Optimized, fallback: bool, interpret: Interpret, training: bool
) -> OptimizedModule:
    """The module of this state, for copies and pickles."""
    made = OptimizedModule(original, calling, result, fallback=fallback, interpret=interpret)
    return made.train() if training else made


def _callers() -> int:
    """The `stacklevel` that puts a warning of `_warn` where the user's code, and not PyTorch's, calls."""
    level, frame = 1, inspect.currentframe()
    while (frame := frame and frame.f_back) and frame.f_globals.get("__name__", "").startswith(
        _NOT_THE_USERS
    ):
        level += 1
    return level if frame else 1


class Function(torch.nn.Module):
    """A function as a module without weights; tensors that it holds by itself are constants of its program."""

    def __init__(self, function: Any) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.forward = function

    def _get_name(self) -> str:
        return getattr(self.forward, "__name__", "function")


def called(module: Any) -> str:
    """The name that a user knows the module, or the function, by."""
    return module._get_name()


def place(module: Any) -> Location:
    """Where the module's `forward` is defined, unknown where that is not in a file."""
    try:
        code = inspect.unwrap(getattr(module.forward, "__func__", module.forward)).__code__
    except AttributeError:
        return UNKNOWN
    return (
        Location(code.co_filename, code.co_firstlineno, 1)
        if not code.co_filename.startswith("<")
        else UNKNOWN
    )


def tensor_of(module: Any, name: str) -> Any:
    """The parameter or buffer of this name, as it is now."""
    *path, last = name.split(".")
    for part in path:
        module = module._modules[part]
    found = module._parameters.get(last)
    return module._buffers[last] if found is None else found


def as_module(program: Any) -> Any:
    """A module for what PyTorch's users bring: a module, a class of one, a function, an exported program.

    Raises BadInput for a class whose constructor needs arguments.
    """
    if isinstance(program, torch.nn.Module):
        return program
    if isinstance(program, torch.export.ExportedProgram):
        return program.module()
    if isinstance(program, type):
        if not issubclass(program, torch.nn.Module):
            raise BadInput(f"expected a module, got the class {program.__name__}, which is not one")
        try:
            return program()
        except SuperoptError:
            raise
        except TypeError as error:
            raise BadInput(f"expected a module, got the class {program.__name__}: {error}") from None
    return Function(program)


def imported(module: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Imported:
    """The program of a module; errors that have no better place name where its `forward` is."""
    return from_torch(module, inputs, kwargs, location=place(module))


def autocast_of(tensors: Sequence[Any]) -> str:
    """The dtype that torch.autocast gives to what is computed of these tensors; empty where it is off."""
    device = next((t.device.type for t in tensors if isinstance(t, torch.Tensor)), "cpu")
    if not torch.is_autocast_enabled(device):
        return ""
    return f"autocast to {torch.get_autocast_dtype(device)}"


def optimized(
    original: Any,
    program: Imported,
    result: Optimized,
    given: Any,
    *,
    fallback: bool = False,
    interpret: Interpret = False,
) -> OptimizedModule:
    """The module for `original`, of which `program` was read with the arguments `given`, and `result` found."""
    under = autocast_of(torch.utils._pytree.tree_leaves(given))
    overwritten = program.graph.aliases  # such a result is the argument itself
    if apart := [n for n in program.signature.apart if not overwritten or overwritten[n] < 0]:
        which = "s" * (len(apart) > 1) + " " + ", ".join(map(str, apart))
        said = (
            f"result{which} of kernels: contiguous; the original's is not, which view() and as_strided() see"
        )
        if said not in result.report.remarks:
            result.report.remarks.append(said)
    if is_training(original):
        warnings.warn(
            f"superopt's {called(original)} is made for evaluation, and puts the original, which is in training "
            "mode, into evaluation mode; .train() puts both back, and runs the original",
            stacklevel=_callers(),
        )
    weights, known = tuple(program.weight_names), program.structure
    calling = Calling(program.signature, weights, program.fixed, program.ties, under, known)
    return OptimizedModule(original, calling, result, fallback=fallback, interpret=interpret)


def arguments(inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example arguments by position and by name; raises BadInput for what can be neither."""
    if isinstance(inputs, Mapping):
        return (), {**inputs, **(kwargs or {})}
    if isinstance(inputs, torch.Tensor):
        return (inputs,), dict(kwargs or {})
    if isinstance(inputs, tuple | list):
        return tuple(cast("Sequence[Any]", inputs)), dict(kwargs or {})
    raise BadInput(f"expected a tuple of example inputs, got {type(inputs).__name__}")
