"""An optimized module in a folder, a bundle with two more files, and out of it again.

module.json   how it is called: arguments, results, names of weights; what the original was besides
weights.pt    its parameters and buffers, as torch.save writes a state_dict
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from superopt.errors import UNKNOWN, BadInput, Location
from superopt.pytorch.module import Calling, OptimizedModule, called, place
from superopt.result import Saved
from superopt.transforms.emit.bundle import save_bundle
from superopt.transforms.emit.launcher import Interpret
from superopt.transforms.ingest.opened import Kind, Placed, Same
from superopt.transforms.ingest.signature import Given, Made, Signature
from superopt.transforms.ingest.structure import from_json, to_json
from superopt.transforms.ingest.torch_types import torch_module

torch: Any = torch_module()
_NUMBERED = {"same": Same, "given": Given, "made": Made}
_KINDS = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}


def save(module: OptimizedModule, folder: Path) -> Path:
    """Write the bundle; raises BadInput for arguments that JSON cannot hold."""
    signature = module.calling.signature.__getstate__()
    where = place(module.original)
    leaves, results = signature["returns"]
    left = signature["left"]
    described = {
        "module": called(module.original),
        "parameters": [[n, _default(d), by_position] for n, d, by_position in signature["parameters"]],
        "arguments": signature["nesting"],
        "tensors": signature["tensors"],
        "fixed": [_plain(x, where) for x in signature["fixed"]],
        "results": results,
        "returned": [_plain(x, where) for x in leaves],
        "places": signature["places"],
        "objects": signature["opens"],
        "left": left and [[_plain(x, where) for x in left[0]], left[1]],
        "weights": list(module.calling.weights),
        "kinds": _kinds(module.original),
        "constants": list(module.calling.fixed),
        "ties": module.calling.ties,
        "autocast": module.calling.autocast,
        "structure": None if module.calling.structure is None else to_json(module.calling.structure),
    }
    with tempfile.TemporaryDirectory(prefix="superopt-weights-") as temporary:
        weights = Path(temporary) / "weights.pt"
        named = {n: t.detach() for n, t in _tensors(module.original).items()}
        torch.save(named, weights)
        extra = {"module.json": json.dumps(described, indent=2).encode(), "weights.pt": weights.read_bytes()}
        return save_bundle(folder, module.outcome, extra)


def _kinds(module: Any) -> dict[str, list[str]]:
    """Names of parameters, and of buffers that are not part of a `state_dict`."""
    parameters = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    transient = [
        f"{path}.{name}" if path else name
        for path, part in module.named_modules(remove_duplicate=False)
        for name in sorted(part._non_persistent_buffers_set)
        if part._buffers[name] is not None
    ]
    return {"parameters": parameters, "transient": transient}


def _tensors(module: Any) -> dict[str, Any]:
    every = {"remove_duplicate": False}
    return {**dict(module.named_parameters(**every)), **dict(module.named_buffers(**every))}


def load(
    folder: str | Path, original: Any = None, *, fallback: bool = False, interpret: Interpret = False
) -> OptimizedModule:
    """The module that `OptimizedModule.save` wrote, with its weights; `original` is a module that has others.

    Without `original` it runs on a GPU, or on a CPU as `interpret` says (see `OptimizedModule`). A call runs the
    bundle's Python files: `superopt-verify` checks those of others. Raises BadInput for a folder without such a
    bundle.
    """
    folder = Path(folder)
    saved = Saved(folder)
    if not saved.holds("module.json"):
        raise BadInput("expected the bundle of a module, got one without module.json", Location(str(folder)))
    try:
        described: dict[str, Any] = json.loads((folder / "module.json").read_text())
        signature = Signature.__new__(Signature)
        signature.__setstate__(
            {
                "parameters": tuple(
                    (n, _value(d[0]) if d else inspect.Parameter.empty, by_position)
                    for n, d, by_position in described["parameters"]
                ),
                "nesting": described["arguments"],
                "tensors": described["tensors"],
                "fixed": [_value(x) for x in described["fixed"]],
                "returns": ([_value(x) for x in described["returned"]], described["results"]),
                "places": described["places"],
                "opens": described["objects"],
                "left": (left := described["left"]) and ([_value(x) for x in left[0]], left[1]),
            }
        )
        weights = torch.load(folder / "weights.pt", weights_only=True, map_location="cpu")
        constants = {n: weights[n] for n in described["constants"]}
        ties = tuple((name, other) for name, other in described["ties"])
        under = str(described["autocast"])
        held = original if original is not None else _holder(weights, described)
        plain = None if original is None else described["structure"]
        known = None if plain is None else from_json(plain)
        calling = Calling(signature, tuple(described["weights"]), constants, ties, under, known)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = Location(str(folder / "module.json"))
        raise BadInput(f"expected the description of a module: {error}", where) from None
    for name in (*calling.weights, *calling.fixed, *(tied for tied, _ in ties)):
        if name not in _tensors(held):
            raise BadInput(
                f"expected a {described['module']} with '{name}' as the original, got a {called(held)} without",
                place(held),
            )
    return OptimizedModule(held, calling, saved, fallback=fallback, interpret=interpret)


class Weights(torch.nn.Module):
    """The parameters and buffers of a module whose code is elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._called = name  # parameters have any name, such as `name`

    def _get_name(self) -> str:
        return self._called

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises BadInput: the code of the original is not here."""
        raise BadInput(
            f"expected a call that kernels can run for a {self._called} that was loaded, with tensors of a GPU "
            "and without gradients, got another: give the original, as in "
            "superopt.load(folder, original=module), or ask for interpret='cpu'"
        )


def _holder(tensors: Mapping[str, Any], described: Mapping[str, Any]) -> Weights:
    """The tensors under their names, parameters without gradients; those that were one tensor are one."""
    root, known = Weights(described["module"]), dict[Any, Any]()
    parameters, transient = (described["kinds"][kind] for kind in ("parameters", "transient"))
    for path, tensor in tensors.items():
        *folders, last = path.split(".")
        at: Any = root
        for part in folders:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        if path in parameters:
            place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()
            made = known.setdefault(place, torch.nn.Parameter(tensor, requires_grad=False))
            at.register_parameter(last, made)
        else:
            at.register_buffer(last, tensor, persistent=path not in transient)
    return root


def _default(value: Any) -> list[Any]:
    """A default in a list, which is empty where there is none that JSON can hold."""
    if value is inspect.Parameter.empty:
        return []
    try:
        return [_plain(value)]
    except BadInput:
        return []


def _plain(value: Any, where: Location = UNKNOWN) -> Any:
    """`value` as JSON, tagged where JSON lacks its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for kind, type_ in _KINDS.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Placed):
        return {"placed": str(value.device)}
    for kind, type_ in _NUMBERED.items():
        if isinstance(value, type_):
            return {kind: value.number}
    if isinstance(value, Kind):
        return {"class": value.name}
    raise BadInput(f"expected arguments of tensors, numbers and texts to save, got {value!r}", where)


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    ((kind, text),) = cast("dict[str, Any]", plain).items()
    if kind in ("device", "placed"):
        return torch.device(text) if kind == "device" else Placed(torch.device(text))
    if kind in _NUMBERED:
        return _NUMBERED[kind](int(text))
    if kind == "class":
        return Kind(str(text))
    found = getattr(torch, text)
    if not isinstance(found, _KINDS[kind]):
        raise ValueError(f"expected a {kind}, got {text!r}")
    return found
