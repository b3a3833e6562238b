"""Modules of a model, found by their names, replaced by optimized ones."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from superopt import log
from superopt.api import settings_of
from superopt.diagnostics import Diagnostics
from superopt.driver.console import progress as shown
from superopt.errors import BadInput, BadOption, SuperoptError
from superopt.options import did_you_mean
from superopt.pipeline import Superoptimize, first_interrupt_stops, superoptimize
from superopt.program import KernelGraph
from superopt.pytorch import dynamic
from superopt.pytorch.dynamic import Dynamic
from superopt.pytorch.module import OptimizedModule, arguments, imported, optimized
from superopt.pytorch.varying import Call, Varying
from superopt.result import Optimized
from superopt.run.buckets import Buckets
from superopt.transforms.emit.compile import prepare_compiler
from superopt.transforms.emit.launcher import Interpret
from superopt.transforms.ingest.opened import snapshot
from superopt.transforms.ingest.torch_types import torch_module
from superopt.verify import program_hash
from superopt.verify.ranges import Axis, representatives

torch: Any = torch_module()


@dataclass
class Replaced:
    """The modules that were replaced, by name, and why others were not. `runs` counts the searches."""

    modules: dict[str, OptimizedModule] = field(default_factory=dict[str, OptimizedModule])
    kept: dict[str, str] = field(default_factory=dict[str, str])
    runs: int = 0

    def __str__(self) -> str:
        lines = [f"replaced  {name}: {module.result.summary}" for name, module in self.modules.items()]
        return "\n".join([*lines, *(f"kept      {name}: {why}" for name, why in self.kept.items())])

    __repr__ = __str__


def replace(
    model: Any,
    pattern: str,
    inputs: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    buckets: Any = None,
    fallback: bool = True,
    interpret: Interpret = False,
    progress: bool = True,
    **settings: Any,
) -> Replaced:
    """Replace the modules of `model` whose names match `pattern`, such as "model.layers.*.mlp", in place.

    One call of the model with `inputs` (a tuple of arguments, one tensor, or a dictionary of arguments by name)
    shows what each module is called with. Modules with equal programs share one search. A module that superopt
    cannot read, or for which it predicts nothing faster, stays. `fallback` and `interpret` are those of
    `OptimizedModule`: by default, a replaced module runs the original for other shapes.

    `dynamic_shapes` marks dimensions of the model's `inputs`, as in `optimize`, and so do `buckets`. Another call
    at another extent of each shows which dimensions of the modules' arguments vary with them. `progress` shows a
    bar where standard error is a terminal.

    Raises BadInput where no module matches, or the model does not call one that does.
    """
    if not isinstance(model, torch_module().nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise BadInput(f"expected a module whose modules are replaced, got {what}")
    options, heard = settings_of(settings, replace), Diagnostics()
    if buckets is not None and dynamic_shapes is None:
        raise BadOption("expected buckets with dynamic_shapes, got none of these")
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    chosen = [name for name in names if _matches(name, pattern)]
    if not chosen:
        raise BadInput(f"expected modules named '{pattern}', got none{did_you_mean(pattern, names)}")
    prepare_compiler()  # while PyTorch exports the modules

    def called(args: Any, named: Mapping[str, Any]) -> dict[str, Call]:
        return _calls(model, chosen, args, named)

    given = arguments(inputs, kwargs)
    varying = None
    if dynamic_shapes is not None:
        varying = Varying(dynamic.marked(model, *given, dynamic_shapes)[0], called)
    calls = called(*given) if varying is None else varying.calls
    done, shared = Replaced(), dict[Any, OptimizedModule]()
    known = dict[tuple[str, tuple[Axis, ...]], Optimized | str]()
    with shown(heard, show=progress), first_interrupt_stops():
        for name, (args, named) in calls.items():
            module = model.get_submodule(name)
            if module in shared:
                _put(model, name, shared[module], done)
                continue
            if isinstance(module, OptimizedModule):
                done.kept[name] = "it was replaced before"
                continue
            heard.progress(f"{name}: reading", None)
            try:
                marks = None if varying is None else varying.of(name, module)
                example = (args, named) if marks is None else marks.inputs(representatives(marks.over))
                program = imported(module, *example)
            except SuperoptError as error:
                done.kept[name] = error.message
                continue
            key = (program_hash(program.graph), () if marks is None else marks.over)
            if key not in known:
                done.runs += 1
                ends = None if marks is None else marks.ends(_of(marks, buckets))
                with log.about(name):
                    known[key] = _searched(program.graph, marks, ends, options, heard.part(name))
            if isinstance(result := known[key], str):
                done.kept[name] = result
                continue
            if not result.report.faster:
                before, way = result.report.best_before
                done.kept[name] = f"nothing is predicted to be faster than {way}: {before * 1e6:.1f} us"
                continue
            made = optimized(module, program, result, (args, named), fallback=fallback, interpret=interpret)
            shared[module] = made
            _put(model, name, made, done)
    for name, made in done.modules.items():
        log.event("part", part=name, replaced=True, reason="", kernels=len(made.result.report.kernels))
    for name, why in done.kept.items():
        log.event("part", part=name, replaced=False, reason=why)
    return done


def _put(model: Any, name: str, made: OptimizedModule, done: Replaced) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, made)
    done.modules[name] = made


def _searched(
    graph: KernelGraph, marks: Dynamic | None, ends: Buckets, options: Superoptimize, heard: Diagnostics
) -> Optimized | str:
    """The result for a program, or for one with the axes of `marks`, or why there is none."""
    if marks is None:
        try:
            return Optimized(superoptimize(graph, options, heard))
        except BadOption:
            raise
        except SuperoptError as error:  # the model still runs
            return error.message
    try:
        return Optimized(marks.optimized(ends, options, heard)[1])
    except BadOption:
        raise
    except SuperoptError as error:  # at some extents it is another program, say
        return error.message


def _of(marks: Dynamic, buckets: Any) -> Any:
    """The buckets of the axes that a module has."""
    if not isinstance(buckets, Mapping):
        return buckets
    named = cast("Mapping[str, Any]", buckets)
    return {axis.name: named[axis.name] for axis in marks.over if axis.name in named}


def _matches(name: str, pattern: str) -> bool:
    """Whether each component of the name matches that of the pattern: `*` stands for one of them."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _calls(
    model: Any, names: Sequence[str], inputs: Any, kwargs: Mapping[str, Any] | None
) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """What each module is called with when the model runs once; raises BadInput for one that is not called."""
    args, named = arguments(inputs, kwargs)
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {}

    def hook(name: str) -> Any:
        def called(module: Any, given: Any, by_name: Any) -> None:
            if name not in calls:  # as they are now, not as the call leaves them
                calls[name] = snapshot((given, by_name))

        return model.get_submodule(name).register_forward_pre_hook(called, with_kwargs=True)

    hooks = [hook(name) for name in names]
    try:
        with torch.no_grad():
            model(*args, **named)
    finally:
        for each in hooks:
            each.remove()
    for name in names:
        if name not in calls:
            raise BadInput(f"expected the model to call '{name}' on these inputs, got no call")
    return {name: calls[name] for name in names}
