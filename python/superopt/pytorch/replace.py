"""Modules of a model, found by their names, replaced by optimized ones."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt.api import settings_of
from superopt.diagnostics import Diagnostics
from superopt.errors import BadInput, NoKernels, SuperoptError
from superopt.options import did_you_mean
from superopt.pipeline import Superoptimize, superoptimize
from superopt.program import KernelGraph
from superopt.pytorch.module import OptimizedModule, arguments, imported, optimized
from superopt.result import Kept, Optimized
from superopt.transforms.emit.compile import prepare_compiler
from superopt.transforms.emit.launcher import Interpret
from superopt.transforms.ingest.torch_types import torch_module
from superopt.verify import program_hash

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
    fallback: bool = True,
    interpret: Interpret = False,
    **settings: Any,
) -> Replaced:
    """Replace the modules of `model` whose names match `pattern`, such as "model.layers.*.mlp", in place.

    One call of the model with `inputs` (a tuple of arguments, one tensor, or a dictionary of arguments by name)
    shows what each module is called with. Modules with equal programs share one search. A module that superopt
    cannot read, or for which it predicts nothing faster, stays. `fallback` and `interpret` are those of
    `OptimizedModule`: by default, a replaced module runs the original for other shapes.

    Raises BadInput where no module matches, or the model does not call one that does.
    """
    options = settings_of(settings)
    names = [name for name, _ in model.named_modules() if name]
    chosen = [name for name in names if _matches(name, pattern)]
    if not chosen:
        raise BadInput(f"expected modules named '{pattern}', got none{did_you_mean(pattern, names)}")
    prepare_compiler()  # while PyTorch exports the modules
    calls = _calls(model, chosen, inputs, kwargs)
    done, known = Replaced(), dict[str, Optimized]()
    for name, (args, named) in calls.items():
        module = model.get_submodule(name)
        if isinstance(module, OptimizedModule):
            done.kept[name] = "it was replaced before"
            continue
        try:
            program = imported(module, args, named)
        except SuperoptError as error:
            done.kept[name] = error.message
            continue
        key = program_hash(program.graph)
        if key not in known:
            done.runs += 1
            known[key] = _searched(program.graph, options)
        if isinstance(result := known[key], Kept):
            done.kept[name] = result.reason
            continue
        if not result.report.faster:
            done.kept[name] = "nothing is predicted to be faster"
            continue
        made = optimized(module, program, result, (args, named), fallback=fallback, interpret=interpret)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made)
        done.modules[name] = made
    return done


def _searched(graph: KernelGraph, options: Superoptimize) -> Optimized:
    try:
        return Optimized(superoptimize(graph, options, Diagnostics()))
    except NoKernels as error:
        if error.report is None:
            raise
        return Kept(error.message, error.report)


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
            calls.setdefault(name, (given, by_name))

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
