"""The files of a program that run without this package: its kernels and their launcher."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.aliasing import copied, pairs
from superopt.computed import needed_nodes
from superopt.early import CAPABILITY, early_launches
from superopt.errors import UnsupportedProgram
from superopt.extent import multiple_of
from superopt.naming import GENERATED
from superopt.operators import (
    OPERATORS,
    Move,
    dense_elements,
    is_contraction,
    move_of,
    normalize_attrs,
)
from superopt.program import KernelGraph, Node, NodeKind, TileProgram, Value
from superopt.transforms.emit.alike import Alike
from superopt.transforms.emit.compile import PRELUDE
from superopt.transforms.emit.triton_source import TritonKernel, emit_kernel
from superopt.transforms.lower.builder import identifier
from superopt.weights import Split, split

TORCH_DTYPES = {
    "f16": "torch.float16",
    "bf16": "torch.bfloat16",
    "f32": "torch.float32",
    "f64": "torch.float64",
    "i64": "torch.int64",
    "i32": "torch.int32",
    "i16": "torch.int16",
    "i8": "torch.int8",
    "i1": "torch.bool",
}

EXTERN_HELPER = '''
def extern(target, args, operands):
    """An operation that no kernel computes, run by PyTorch; `args` are its arguments as JSON."""
    if args is None:
        raise RuntimeError(f"'{target}' has no PyTorch operator: pass externs={{'{target}': function}}")

    def value(arg):
        if not isinstance(arg, dict):
            return [value(a) for a in arg] if isinstance(arg, list) else arg
        if "tensor" in arg:
            return operands[arg["tensor"]]
        if "float" in arg:
            return float(arg["float"])
        if "torch" in arg:
            return getattr(torch, arg["torch"])
        if "device" in arg:
            return operands[0].device if operands else torch.device(arg["device"])
        return torch.tensor(arg["data"], dtype=getattr(torch, arg["dtype"]))

    overload = torch.ops
    for name in target.split("."):
        overload = getattr(overload, name)
    values = [value(a) for a in json.loads(args)]
    schema = overload._schema.arguments
    positional = [v for v, a in zip(values, schema) if not a.kwarg_only]
    result = overload(*positional, **{a.name: v for v, a in zip(values, schema) if a.kwarg_only})
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
'''

APART_HELPER = '''
def apart(tensor, overwritten):
    """The tensor, contiguous, and not in the memory of one of those that are overwritten."""
    memory = [t.untyped_storage().data_ptr() for t in overwritten]
    if tensor.untyped_storage().data_ptr() in memory:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()
'''


@dataclass(frozen=True)
class EmittedProgram:
    """A lowered program as source: `kernels.py`, `launch.py`, and the arrays that the launcher loads.

    `kernels` are those of the tile programs in order: one that several tile programs share is there as often.
    """

    name: str
    kernels: tuple[TritonKernel, ...]
    kernels_source: str
    launcher_source: str
    constants: dict[str, np.ndarray[Any, Any]]
    prepare: tuple[int, ...] | None = None
    """The inputs, by number, that the launcher's `prepare` takes after a device; None where it lacks one."""


def emit_program(lowered: KernelGraph) -> EmittedProgram:
    """The source of a lowered program (`superopt.transforms.lower.lower`).

    Raises UnsupportedProgram for a program that still holds library operators or custom kernels.
    """
    extents = tuple(extents_of(lowered.inputs))
    names = unique_names(lowered, extents)
    bodies: dict[Node, str] = {}
    kernels: list[TritonKernel] = []
    alike, taken = Alike(), set[str]()
    constants: dict[str, np.ndarray[Any, Any]] = {}
    parts, nodes = split(lowered), needed_nodes(lowered)
    early = early_launches(parts.main)
    for node in nodes:
        if isinstance(node.body, TileProgram):
            made = _emitted(node.body, taken, extents, early=bool(early))
            if (kernel := alike.known(made)) is None:
                kernel = made
                taken.add(made.name)
            kernels.append(kernel)
            bodies[node] = _launch(kernel, node, node.body, names, early=node in early)
        elif move_of(node) is Move.RESHAPE:
            bodies[node] = f"{names[node.result]} = {names[node.operands[0]]}.reshape({node.attrs['shape']})"
        elif (array := dense_elements(node)) is not None:
            kept = f"constant{len(constants)}"
            constants[kept] = np.asarray(array, np.float32)
            dtype = TORCH_DTYPES[node.result.dtype]
            bodies[node] = f'{names[node.result]} = constant("{kept}", {dtype}, device)'
        elif node.op == NodeKind.EXTERN:
            bodies[node] = _call_extern(node, names, overwrites=bool(pairs(lowered.aliases)))
        elif is_contraction(node):
            bodies[node] = _call_library(node, names)
        else:
            raise UnsupportedProgram(f"expected a lowered program, got '{node.op}'", node.location)
    source = PRELUDE + "".join(f"\n\n{k.source}" for k in dict.fromkeys(kernels))
    described = any(k.descriptors for k in kernels)
    launcher = _launcher(
        lowered, names, bodies, parts, constants=bool(constants), descriptors=described, early=bool(early)
    )
    read = {v for n in parts.prepare for v in n.operands}
    prepare = tuple(i for i, v in enumerate(lowered.inputs) if v in read) if parts.held else None
    name = identifier(lowered.name, "program")
    return EmittedProgram(name, tuple(kernels), source, launcher, constants, prepare)


def write_program(program: EmittedProgram, folder: Path) -> list[str]:
    """Write `kernels.py`, `launch.py` and the constants into `folder`; returns the names of the files."""
    (folder / "kernels.py").write_text(program.kernels_source)
    (folder / "launch.py").write_text(program.launcher_source)
    if not program.constants:
        return ["kernels.py", "launch.py"]
    save_constants(folder, program.constants)
    return ["kernels.py", "launch.py", "constants.npz"]


def save_constants(folder: Path, constants: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write `constants.npz`, which the launcher and the reference load."""
    save: Any = np.savez
    save(folder / "constants.npz", **constants)


@dataclass(frozen=True)
class ExtentPlace:
    """Where a program finds an extent that its shapes depend on: a dimension of an input is so many times it."""

    argument: int
    dim: int
    times: int


def extents_of(inputs: Sequence[Value]) -> dict[str, ExtentPlace]:
    """The extents that shapes of a program with these inputs depend on, by name, if any."""
    found: dict[str, ExtentPlace] = {}
    for i, value in enumerate(inputs):
        for d, size in enumerate(value.shape):
            if (known := multiple_of(size)) is not None:
                name, times = known
                place = found.setdefault(name, ExtentPlace(i, d, times))
                if times < place.times:
                    found[name] = ExtentPlace(i, d, times)
    return found


def unique_names(graph: KernelGraph, reserved: Sequence[str] = ()) -> dict[Value, str]:
    """A Python name for every value of a kernel graph, based on its own name where it has one."""
    names: dict[Value, str] = {}
    used = set(reserved)
    defaults = [(v, f"arg{i}") for i, v in enumerate(graph.inputs)]
    defaults += [(v, node.op) for node in graph.nodes for v in node.results]
    for value, default in defaults:
        base = identifier(value.name, default)
        name, i = base, 1
        while name in used or name in GENERATED:
            name, i = f"{base}_{i}", i + 1
        used.add(name)
        names[value] = name
    return names


def _emitted(program: TileProgram, taken: set[str], extents: Sequence[str], *, early: bool) -> TritonKernel:
    name, i = program.name, 1
    while name in taken:
        name, i = f"{program.name}_{i}", i + 1
    return emit_kernel(dataclasses.replace(program, name=name), extents, early=early)


def _empty(shape: tuple[int, ...], dtype: str) -> str:
    return f"torch.empty({shape}, dtype={TORCH_DTYPES[dtype]}, device=device)"


def _launch(
    kernel: TritonKernel, node: Node, program: TileProgram, names: dict[Value, str], *, early: bool
) -> str:
    """Allocates what a kernel stores, and launches it, `early` while the kernel before it still runs."""
    aliases = pairs(program.aliases)
    lines = [
        f"{names[v]} = {names[node.operands[aliases[i]]] if i in aliases else _empty(v.shape, v.dtype)}"
        for i, v in enumerate(node.results)
    ]
    passed = set(program.arguments)
    values = zip((*node.operands, *node.results), program.params, strict=True)
    arguments = [names[v] for v, b in values if b in passed]
    arguments += [_empty(p.type.shape, p.type.dtype) for p in kernel.parameters if p.role == "scratch"]
    arguments += kernel.extents
    options = f"num_warps={kernel.num_warps}, num_stages={kernel.num_stages}, enable_fp_fusion=True"
    if kernel.early:
        options = f"EARLY=early, {options}"
    if kernel.early and early:  # Triton for other GPUs does not know the option
        options += ', **({"launch_pdl": True} if early else {})'
    lines.append(f"kernels.{kernel.name}[{kernel.grid}]({', '.join(arguments)}, {options})")
    return "\n".join(lines)


def _call_library(node: Node, names: dict[Value, str]) -> str:
    """A matrix product that PyTorch's library computes."""
    attrs = normalize_attrs(OPERATORS[node.op], node.attrs)
    a, b = (
        f"{names[v]}.mT" if attrs[turned] else names[v]
        for v, turned in zip(node.operands, ("transpose_a", "transpose_b"), strict=True)
    )
    return f"{names[node.result]} = torch.matmul({a}, {b})"


def _call_extern(node: Node, names: dict[Value, str], *, overwrites: bool) -> str:
    """A call of PyTorch; what it returns shares no memory with arguments that the program overwrites."""
    target = str(node.attrs["target"])
    operands = "[" + ", ".join(names[v] for v in node.operands) + "]"
    results = ", ".join(names[v] for v in node.results) + ","
    args = node.attrs.get("args")
    each = "apart(m, overwritten)" if overwrites else "m.contiguous()"
    lines = [
        f"call = externs.get({target!r})",
        f"made = call(*{operands}) if call else extern({target!r}, {args!r}, {operands})",
        f"{results} = ({each} for m in (made if isinstance(made, (tuple, list)) else (made,)))",
    ]
    return "\n".join(lines)


def _launcher(
    graph: KernelGraph,
    names: dict[Value, str],
    bodies: dict[Node, str],
    parts: Split,
    *,
    constants: bool,
    descriptors: bool,
    early: bool,
) -> str:
    inputs = [names[v] for v in graph.inputs]
    types = ", ".join(f"{n}: {v.type}" for n, v in zip(inputs, graph.inputs, strict=True))
    has_extern = any(n.op == NodeKind.EXTERN for n in graph.nodes)
    lines = [
        f'"""Runs {graph.name}({types}): launches its kernels in order.\n',
        "Needs torch and triton. `run` takes contiguous tensors of these shapes and returns a tuple.",
        '"""\n',
        *(["import json"] if has_extern else []),
        *(["from pathlib import Path\n", "import numpy as np"] if constants else []),
        "import torch" if descriptors else "import torch\n",
        *(["import triton\n"] if descriptors else []),
        "import kernels\n",
    ]
    if constants:
        lines += [
            '_ARRAYS = np.load(Path(__file__).with_name("constants.npz"), allow_pickle=False)',
            "_LOADED = {}\n\n",
            "def constant(name, dtype, device):",
            '    """A dense constant of the program, copied to the device once."""',
            "    if (name, device) not in _LOADED:",
            "        _LOADED[name, device] = torch.from_numpy(_ARRAYS[name]).to(device, dtype)",
            "    return _LOADED[name, device]\n",
        ]
    if has_extern:
        lines.append(EXTERN_HELPER)
    if has_extern and pairs(graph.aliases):
        lines.append(APART_HELPER)
    allocate = [
        "def scratch(size, alignment, stream):",
        '    """Where kernels put their tensor descriptors."""',
        "    return torch.empty(size, dtype=torch.int8, device=device)",
        "",
        "triton.set_allocator(scratch)",
    ]
    read = {v for n in parts.prepare for v in n.operands}
    asks = [
        "# Whether a kernel can start while the one before it still runs, and waits for its end.",
        'early = device.type == "cuda" and torch.version.cuda is not None',
        f"early = early and torch.cuda.get_device_capability(device) >= ({CAPABILITY // 10}, 0)",
    ]
    taken = ["device", *(names[v] for v in graph.inputs if v in read)]
    held = "".join(f"{names[v]}, " for v in parts.held).rstrip()
    if parts.held:
        within = [
            *(asks if early else []),
            *(allocate if descriptors else []),
            *(bodies[n] for n in parts.prepare if n in bodies),
        ]
        lines += [
            f"\ndef prepare({', '.join(taken)}):",
            '    """What depends on these weights alone: made once, given to `run` until one of them changes."""',
            *_indented(within),
            f"    return ({held})\n\n",
            "# The arguments of `run` that `prepare` takes.",
            f"WEIGHTS = {tuple(i for i, v in enumerate(graph.inputs) if v in read)}\n",
        ]
    extra = [*inputs, *(["prepared=None"] if held else []), *(["externs={}"] if has_extern else [])]
    lines.append(f"\ndef run({', '.join(extra)}):")
    overwritten = ", ".join(inputs[j] for j in pairs(graph.aliases).values())
    says = f" Overwrites {overwritten}." if overwritten else ""
    says += " `prepared` is what `prepare` returns, which is called where there is none." if held else ""
    lines.append(f'    """The program\'s outputs, on the device of its first input.{says}"""')
    device = (
        f"{inputs[0]}.device" if inputs else 'torch.device("cuda" if torch.cuda.is_available() else "cpu")'
    )
    lines.append(f"    device = {device}")
    for name, place in extents_of(graph.inputs).items():
        whole = f"{inputs[place.argument]}.shape[{place.dim}]"
        lines.append(f"    {name} = {whole}{f' // {place.times}' if place.times > 1 else ''}")
    if early:
        lines += _indented(asks)
    if descriptors:
        lines += _indented(["", *allocate])
    if has_extern and pairs(graph.aliases):
        lines.append(f"    overwritten = [{overwritten}]")
    if held:
        lines.append(f"    {held} = prepare({', '.join(taken)}) if prepared is None else prepared")
    lines += _indented([bodies[n] for n in parts.main if n in bodies])
    aliases = pairs(graph.aliases)
    lines += [f"    {inputs[aliases[i]]}.copy_({names[graph.outputs[i]]})" for i in copied(graph)]
    returned = [inputs[aliases[i]] if i in aliases else names[v] for i, v in enumerate(graph.outputs)]
    lines.append(f"    return ({''.join(f'{name}, ' for name in returned).rstrip()})")
    return "\n".join(lines) + "\n"


def _indented(texts: Sequence[str]) -> list[str]:
    return ["    " + line if line else "" for text in texts for line in text.split("\n")]
