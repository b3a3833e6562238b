"""From a PyTorch module to a kernel graph: export, decompose, and read through either dialect."""

from __future__ import annotations

import itertools
import os
import traceback
from collections import Counter
from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from superopt.aliasing import pairs
from superopt.diagnostics import Diagnostics
from superopt.dialects.mlir import binding
from superopt.errors import UNKNOWN, Location, SuperoptError, UnsupportedProgram
from superopt.naming import is_value_name
from superopt.program import KernelGraph
from superopt.transforms.ingest import standing
from superopt.transforms.ingest.against_module import (
    Read,
    check_import,
    one_thread,
    products_in_f32,
    run_module,
)
from superopt.transforms.ingest.extern import targets
from superopt.transforms.ingest.read_exported import quiet, read_through_linalg, read_through_torch
from superopt.transforms.ingest.signature import Signature
from superopt.transforms.ingest.structure import Structure, reads, recorded, steady, structure
from superopt.transforms.ingest.torch_types import export_lock, torch_module

Via: TypeAlias = Literal["torch", "linalg"]


@dataclass
class Imported:
    """A PyTorch module as a kernel graph.

    The graph's inputs are the tensors among the example inputs, in order, then `weights`: parameters and
    floating-point buffers, named in `weight_names` as the module names them; `signature` says where tensors are
    in its arguments and results. Weights that the module does not assign to are stated to be such
    (`graph.weights`). `fixed` are the other buffers, which are constants of the graph. `ties`
    are names of weights and buffers that are the same tensor as an earlier one, each with the earlier name. An
    input or buffer that the module assigns to (`cache[:, 8:] = k`, `index_copy_`) is stated to be overwritten
    (`graph.aliases`); what it then holds is returned after the module's outputs, unless it is one of them.
    `structure` is what else the graph depends on.
    """

    graph: KernelGraph
    weights: list[Any]
    weight_names: list[str]
    signature: Signature
    fixed: dict[str, Any] = field(default_factory=dict[str, Any])
    ties: tuple[tuple[str, str], ...] = ()
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    structure: Structure | None = None

    @property
    def operators(self) -> int:
        """How many table operators the graph has, not counting constants."""
        return sum(n.op not in ("extern", "constant") for n in self.graph.nodes)

    @property
    def externs(self) -> int:
        """How many operations are opaque."""
        return sum(n.op == "extern" for n in self.graph.nodes)


def from_torch(
    module: Any,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    via: Via = "torch",
    name: str = "main",
    narrow_f64: bool = False,
    diagnostics: Diagnostics | None = None,
    location: Location = UNKNOWN,
) -> Imported:
    """The kernel graph of `module`, exported on the example `inputs` and read `via` the torch or linalg dialect.

    `inputs` and `kwargs` may be nested; anything in them that is not a tensor is fixed. The module is exported in
    evaluation mode. Parameters and floating-point buffers become inputs of the graph, after the tensors of
    `inputs`; other buffers are constants. Raises UnsupportedProgram, located where possible, for a module that
    torch.export refuses, for dynamic shapes, and where PyTorch is not installed.
    """
    torch = torch_module()
    diagnostics = Diagnostics() if diagnostics is None else diagnostics
    if not isinstance(module, torch.nn.Module):
        raise UnsupportedProgram(f"expected a torch.nn.Module, got {type(module).__name__}", location)
    if not isinstance(inputs, list | tuple):
        raise UnsupportedProgram(f"expected a tuple of example inputs, got {type(inputs).__name__}", location)
    parts = [
        name or "the module" for name, m in module.named_modules() if isinstance(m, torch.jit.ScriptModule)
    ]
    if parts:
        raise UnsupportedProgram(
            f"expected modules of Python code, got one that torch.jit made: {parts[0]}; give the module that it "
            "was made of",
            location,
        )
    if is_training(module):
        diagnostics.remark("the module is in training mode; it is imported in evaluation mode", location)
    modes = [(m, m.training) for m in module.modules()]
    exporting = export_lock()
    exporting.acquire()
    try:
        for part, _ in modes:  # `eval` of an exported program's module raises
            part.training = False
        reading = partial(_read, module, via=via, name=name, narrow_f64=narrow_f64, location=location)
        with _attributes_kept(module):
            read = reading(inputs, kwargs, diagnostics)
            with one_thread():
                smaller = partial(reading, diagnostics=Diagnostics(), kept=_kept(read))
                check_import(read, (inputs, kwargs), smaller, diagnostics, location)
        again = structure(module, read.structure.reads, kinds=read.lifted.signature.kinds)
        known = steady(read.structure, again)
        if changes := sorted(known.reads.ignored):
            diagnostics.remark(
                f"each call of the module changes {', '.join(changes)}: its kernels do not", location
            )
    except SuperoptError as error:
        if error.location == UNKNOWN:
            error.location = location
        raise
    finally:
        exporting.release()
        for part, mode in modes:
            part.training = mode
    lifted = read.lifted
    return Imported(
        read.graph,
        lifted.weights,
        lifted.weight_names,
        lifted.signature,
        lifted.fixed,
        lifted.ties,
        diagnostics,
        known,
    )


def _read(
    module: Any,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    diagnostics: Diagnostics,
    *,
    via: Via,
    name: str,
    narrow_f64: bool,
    location: Location,
    kept: Container[str] = (),
) -> Read:
    """The graph of a module in evaluation mode, on these example inputs; operators `kept` as they are stay so."""
    lifted = lift(module, inputs, kwargs, location)
    with one_thread():
        known = _tried(module, lifted, location)
    with _attributes_kept(module):
        original, exported = _exported(lifted, via, location, kept)
    read = read_through_torch if via == "torch" else read_through_linalg
    changed = _overwritten(exported, lifted.fixed_names, location)
    graph = read(exported, lifted, name, diagnostics, narrow_f64, location)
    lifted.fixed = {n: lifted.fixed[n] for n in _read_of(original, lifted.fixed_names)}
    _state_overwritten(graph, changed)
    overwritten, first = pairs(graph.aliases).values(), len(lifted.examples)
    graph.weights = tuple(i for i in range(first, len(graph.inputs)) if i not in overwritten)
    return Read(lifted, original, graph, known)


def _kept(read: Read) -> frozenset[str]:
    """Operators that are kept as they are wherever they occur, so that readings of less keep them, too."""
    written = Counter(str(n.target) for n in read.exported.graph.nodes)
    return frozenset(op for op, n in Counter(targets(read.graph)).items() if n >= written[op])


def is_training(module: Any) -> bool:
    """Whether it is in training mode and computes something else in evaluation mode."""
    return any(m.training and _has_modes(m) for m in module.modules())


def _has_modes(part: Any) -> bool:
    """Whether training differs from evaluation: dropout, norms by statistics, and classes of users that ask."""
    modules = torch_module().nn.modules
    if type(part).__module__.startswith("torch.nn."):
        return isinstance(part, modules.dropout._DropoutNd | modules.batchnorm._NormBase)
    names: tuple[str, ...] = getattr(getattr(part.forward, "__code__", None), "co_names", ())
    return "training" in names


@contextmanager
def _attributes_kept(module: Any) -> Generator[None]:
    """Restores the tensors that the module's parts keep as plain attributes.

    Tracing leaves tensors without numbers in those that `forward` assigns to. A module whose results depend on
    what the last call left there differs from its import, which the comparison with it finds.
    """
    is_tensor = torch_module().is_tensor
    attributes: list[dict[str, Any]] = [part.__dict__ for part in module.modules()]
    held = [dict(now) for now in attributes]
    try:
        yield
    finally:
        for now, before in zip(attributes, held, strict=True):
            for name, value in list(now.items()):
                if name not in before and is_tensor(value):
                    del now[name]
                elif value is not before.get(name) and (is_tensor(value) or is_tensor(before.get(name))):
                    now[name] = before[name]


def _comparable(tensor: Any) -> Any:
    """`tensor` with numbers in place of NaN; as bytes where PyTorch compares no elements of one byte."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.nan_to_num() if tensor.element_size() > 1 else tensor.view(torch_module().uint8)


def _tried(module: Any, lifted: Any, location: Location) -> Structure:
    """Run the module twice; returns what it depends on besides tensors.

    Raises UnsupportedProgram, at the line of the module, for what it raises by itself, and where it gives two
    results for the same arguments.
    """
    torch = torch_module()

    def run() -> list[Any]:
        torch.manual_seed(0)
        try:
            arguments = [*lifted.examples, *lifted.weights]
            with products_in_f32(arguments):
                results, after = run_module(lifted, arguments)
        except SuperoptError:
            raise
        except Exception as error:  # a module raises what it likes
            said = next((line for line in str(error).splitlines() if line.strip()), "")
            what = f"the module raises {type(error).__name__} on the example inputs: {said}"
            raise UnsupportedProgram(what, _raised_at(error) or location) from error
        return [_comparable(t) for t in (*results, *after)]

    with quiet(), torch.random.fork_rng(devices=[]):
        with recorded() as ran:
            first = run()
        kinds = lifted.signature.kinds
        before = structure(module, reads(ran), kinds=kinds)
        second = run()
        known = steady(before, structure(module, before.reads, kinds=kinds))
    if not all(itertools.starmap(torch.equal, zip(first, second, strict=True))):
        raise UnsupportedProgram(
            "expected equal results for equal arguments, got others from the second call: the module keeps "
            "numbers outside of its buffers",
            location,
        )
    return known


def _overwritten(exported: Any, fixed: Sequence[str], location: Location) -> list[int]:
    """The inputs that the module assigns to; their new contents are the first outputs of the program.

    They become ordinary outputs, as the importer lacks assignments. Raises UnsupportedProgram for one of
    the `fixed` buffers, which are constants.
    """
    from torch.export.graph_signature import InputKind, OutputKind

    signature = exported.graph_signature
    inputs = [s.arg.name for s in signature.input_specs if s.kind == InputKind.USER_INPUT]
    changed: list[int] = []
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            name = fixed[int(spec.target.removeprefix("fixed_"))]
            raise UnsupportedProgram(
                f"expected the module to assign to floating-point buffers only, got an assignment to '{name}'",
                location,
            )
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            changed.append(inputs.index(spec.target))
            spec.kind, spec.target = OutputKind.USER_OUTPUT, None
    return changed


def _read_of(exported: Any, fixed: Sequence[str]) -> list[str]:
    """The buffers that the program reads: counts of batches, say, may change."""
    used = {n.name for n in exported.graph.nodes if n.users}
    specs = exported.graph_signature.input_specs
    targets = {s.target for s in specs if s.arg.name in used}
    return [name for i, name in enumerate(fixed) if f"fixed_{i}" in targets]


def _state_overwritten(graph: KernelGraph, changed: Sequence[int]) -> None:
    """Outputs as the module returns them, then the contents assigned to inputs and not returned."""
    contents, outputs = graph.outputs[: len(changed)], graph.outputs[len(changed) :]
    aliases = [-1] * len(outputs)
    for value, at in zip(contents, changed, strict=True):
        if value is graph.inputs[at]:
            continue
        if value in outputs and aliases[outputs.index(value)] < 0:
            aliases[outputs.index(value)] = at
        else:
            outputs.append(value)
            aliases.append(at)
    graph.outputs, graph.aliases = outputs, tuple(aliases) if max(aliases, default=-1) >= 0 else ()


def lift(
    module: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None, location: Location = UNKNOWN
) -> Any:
    """A module without parameters whose arguments are the tensors of the inputs, then `module`'s weights."""
    torch = torch_module()
    signature = Signature(inputs, kwargs, module.forward, location)
    count = len(signature.tensors)
    named = dict(module.named_parameters(remove_duplicate=True))
    buffers = dict(module.named_buffers(remove_duplicate=True))
    named.update({n: b for n, b in buffers.items() if b.is_floating_point()})
    fixed = {n: b for n, b in buffers.items() if n not in named}

    class Lifted(torch.nn.Module):
        """Calls the module with its weights as arguments."""

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.signature = signature
            self.examples = signature.examples
            self.weights = [w.detach() for w in named.values()]
            self.weight_names = list(named)
            self.fixed_names = list(fixed)
            self.fixed = {n: b.detach().clone() for n, b in fixed.items()}
            self.ties = _ties(module)
            self.input_names = _input_names(signature.names, named)
            for i, buffer in enumerate(fixed.values()):
                self.register_buffer(f"fixed_{i}", buffer)

        def forward(self, *args: Any) -> Any:
            state = dict(zip(named, args[count:], strict=True))
            state.update({n: getattr(self, f"fixed_{i}") for i, n in enumerate(fixed)})
            called = signature.as_called(args[:count])
            before = signature.opening()
            before.opened(called)
            with standing.read():
                results = torch.func.functional_call(module, state, *called)
            return signature.returned(results, called, before, args[:count])

    return Lifted().eval()


def _input_names(names: Sequence[str], weights: Container[str]) -> list[str]:
    """What a user calls each input, `x` and its number where that cannot name it, or would name a weight, too."""
    usable = all(n and is_value_name(n) and n not in weights for n in names) and len({*names}) == len(names)
    return list(names) if usable else [f"x{i}" for i in range(len(names))] if len(names) > 1 else ["x"]


def _ties(module: Any) -> tuple[tuple[str, str], ...]:
    """Names of parameters and buffers that are the same tensor as an earlier one, each with the earlier name."""
    first: dict[int, str] = {}
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return tuple((name, known) for name, t in named if (known := first.setdefault(id(t), name)) != name)


def _exported(lifted: Any, via: Via, location: Location, kept: Container[str]) -> tuple[Any, Any]:
    """The exported program, and the same decomposed: by us, and by PyTorch (by torch-mlir, `via` linalg)."""
    from superopt.transforms.ingest import decompositions, their_decompositions

    torch = torch_module()
    arguments = tuple(t.detach() for t in (*lifted.examples, *lifted.weights))
    with quiet(), torch.no_grad():
        try:
            exported = torch.export.export(lifted, arguments, strict=False)
            ours = decompositions.table(kept)
            if via == "linalg":
                theirs = binding("extras.fx_decomp_util").get_decomposition_table()
                return exported, exported.run_decompositions(ours).run_decompositions(theirs)

            def read(program: Any) -> KernelGraph:
                return read_through_torch(program, lifted, "main", Diagnostics(), False, location)

            return exported, their_decompositions.decomposed(exported, ours, read, kept)
        except SuperoptError:
            raise
        except Exception as error:
            # torch.export raises whatever the module raises, and a dozen of its own errors.
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            what = f"torch.export refuses the module: {type(error).__name__}: {first}"
            raise UnsupportedProgram(what, _raised_at(error) or location) from error


def _raised_at(error: BaseException) -> Location | None:
    """The innermost line outside of PyTorch and this package that led to `error`."""
    ours = (os.path.dirname(torch_module().__file__), os.path.dirname(__file__), "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    frames = [f for f in frames if "torch_mlir" not in f.filename]
    return Location(frames[-1].filename, frames[-1].lineno or 0, 1) if frames else None
