"""What superopt is compared with, as folders with a `launch.py` that contain nothing of superopt.

eager, torch.compile      the program operator by operator at its own precision, as is and compiled; the PyTorch
                          module that it was imported from, where it was (`modules.py`)
cuDNN's best              the same, cuDNN asked to time its convolutions (`torch.backends.cudnn.benchmark`)
sdpa, flex                the same, PyTorch asked for the attention in it
triton                    the same, attention by hand-written Triton kernels, their parameters tuned like ours
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from superopt.cost import Target, Traffic, kernel_seconds
from superopt.cost.features import library_features
from superopt.measure import attention
from superopt.measure.modules import Module
from superopt.operators import is_windowed
from superopt.program import DTYPE_BYTES, KernelGraph, TensorType, power_of_two
from superopt.transforms.emit.compile import CompilationFailed, compile_kernel
from superopt.transforms.emit.program_source import save_constants
from superopt.transforms.emit.reference_source import reference_source
from superopt.transforms.emit.triton_source import Parameter, TritonKernel
from superopt.transforms.schedule.triton_limits import SMALLEST_DOT

COMPILE_MODES = {"default": "torch.compile", "max-autotune-no-cudagraphs": "torch.compile, max-autotune"}
CUDNN = (
    ("eager-cudnn", "PyTorch eager, cuDNN's best", None),
    ("compile-cudnn", "torch.compile, cuDNN's best", "default"),
)
SDPA_BACKENDS = ("", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")

_LAUNCH = '''"""{title}: the program operator by operator, at its own precision."""

from pathlib import Path

import torch

import program
{imports}
CONSTANTS = {{}}
if Path(__file__).with_name("constants.npz").exists():
    import numpy

    CONSTANTS = dict(numpy.load(Path(__file__).with_name("constants.npz"), allow_pickle=False))
MOVED = {{}}


def constants(device):
    """Dense constants, on the device."""
    if device not in MOVED:
        MOVED[device] = {{n: torch.from_numpy(a).to(device) for n, a in CONSTANTS.items()}}
    return MOVED[device]


def rounded(value, dtype, again=None):
    """Results keep the dtype that the program says."""
    return value.to(dtype)


def run(*inputs):
    """The program's outputs."""
    held = constants(inputs[0].device) if CONSTANTS else {{}}
    return program.run(*inputs, rounded=rounded, constants=held, externs={externs})
'''


@dataclass(frozen=True)
class Row:
    """One row of a comparison: its points share a label, and the best of them stands for it.

    `candidate` is the hash of the lowered program that a row of ours comes from: the store knows it by that.
    """

    id: str
    kind: str  # "superopt" | "baseline"
    label: str
    points: list[dict[str, Any]]
    candidate: str = ""


def rows(
    graph: KernelGraph,
    folder: Path,
    where: str,
    target: Target,
    most: int,
    funnel: Counter[str],
    module: Module | None = None,
) -> list[Row]:
    """Write every baseline of `graph` below `folder / where`; returns their rows. At most `most` points a row.

    With the `module` that it was imported from, eager and compiled PyTorch are that module.
    """
    if module is None:
        path = _write(graph, folder, f"{where}/eager", "eager PyTorch", None, {})
    else:
        path = f"{where}/eager"
        module.write_source(folder / where / "source")
        module.write(folder / path, "eager PyTorch")
    made = [Row("eager", "baseline", "PyTorch eager", [_point("0", path)])]
    for mode, label in COMPILE_MODES.items():
        made.append(Row(f"compile-{mode}", "baseline", label, [_point("0", path, compile=mode)]))
    if any(is_windowed(n) and len(n.operands) == 2 for n in graph.nodes):  # by weights
        for name, label, mode in CUDNN:
            made.append(Row(name, "baseline", label, [_point("0", path, compile=mode, cudnn_benchmark=True)]))
    if module is not None and module.calls_attention():
        for backend in filter(None, SDPA_BACKENDS):
            name = backend.split("_")[0].lower()
            path = f"{where}/module-{name}"
            module.write(folder / path, f"SDPA, {name}", backend)
            made.append(Row(f"module-{name}", "baseline", f"the module, SDPA {name}", [_point("0", path)]))
    found = attention.find(graph)
    if len(found) != 1:
        return made
    (match,) = found
    replaced = attention.replaced(graph, match)
    constants: dict[str, Any] = {"SCALE": match.scale, "K_TRANSPOSED": match.k_transposed}
    for backend in SDPA_BACKENDS:
        name = f"sdpa-{backend.split('_')[0].lower()}" if backend else "sdpa"
        label = f"SDPA, {backend.split('_')[0].lower()}" if backend else "SDPA, as PyTorch chooses"
        path = _write(replaced, folder, f"{where}/{name}", label, "sdpa", {**constants, "BACKEND": backend})
        made.append(Row(name, "baseline", label, [_point("0", path)]))
    path = f"{where}/sdpa"
    made.append(
        Row("sdpa-compile", "baseline", "SDPA, torch.compile", [_point("0", path, compile="default")])
    )
    path = _write(replaced, folder, f"{where}/flex", "FlexAttention", "flex", constants)
    made.append(Row("flex", "baseline", "FlexAttention", [_point("0", path)]))
    for name, label in (("flash_attention", "Triton, flash"), ("split_kv", "Triton, split keys")):
        points: list[dict[str, Any]] = []
        for number, (parameters, seconds, features) in enumerate(
            tuned_points(name, match, target, most, funnel)
        ):
            inner = f"{where}/{name}/{number}"
            settings = {**_sizes(match), **parameters}
            path = _write(replaced, folder, inner, label, name, {**settings, "SCALE": match.scale})
            points.append(
                _point(str(number), path, parameters=parameters, seconds=seconds, features=features)
            )
        if points:
            made.append(Row(name, "baseline", label, points))
    return made


def _point(
    name: str,
    path: str,
    *,
    compile: str | None = None,
    cudnn_benchmark: bool = False,
    parameters: dict[str, int] | None = None,
    seconds: float | None = None,
    features: dict[str, float] | None = None,
) -> dict[str, Any]:
    return {
        "id": name,
        "path": path,
        "compile": compile,
        "cudnn_benchmark": cudnn_benchmark,
        "parameters": parameters or {},
        "predicted_seconds": seconds,
        "features": features or {},
        "matrix_flops": 0.0,
    }


def _write(
    graph: KernelGraph,
    folder: Path,
    where: str,
    title: str,
    implementation: str | None,
    constants: dict[str, Any],
) -> str:
    place = folder / where
    place.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    (place / "program.py").write_text(reference_source(graph, arrays))
    if arrays:
        save_constants(place, arrays)
    imports, externs = "", "{}"
    if implementation is not None:
        (place / "implementation.py").write_text(source(implementation, constants))
        imports = "from implementation import attention\n"
        externs = f"{{{attention.TARGET!r}: attention}}"
    (place / "launch.py").write_text(_LAUNCH.format(title=title, imports=imports, externs=externs))
    return where


def source(name: str, constants: dict[str, Any]) -> str:
    """The text of an implementation with its module-level constants set; every one must be there."""
    text = files("superopt.measure.attention_kernels").joinpath(f"{name}.py").read_text()
    for key, value in constants.items():
        new = f"{key} = tl.constexpr({value!r})" if f"{key} = tl.constexpr(" in text else f"{key} = {value!r}"
        text, count = re.subn(rf"^{key} = .*$", new, text, flags=re.MULTILINE)
        assert count == 1, f"{name}.py has no constant {key}"
    return text


# --- hand-written kernels: the same tuner as ours ------------------------------------------------------------


def _sizes(match: attention.Attention) -> dict[str, int]:
    heads, m, n, d = match.sizes
    stride, inner = (1, n) if match.k_transposed else (d, 1)
    return {"HEADS": heads, "M": m, "N": n, "D": d, "K_STRIDE": stride, "K_INNER": inner}


def tuned_points(
    name: str, match: attention.Attention, target: Target, most: int, funnel: Counter[str]
) -> list[tuple[dict[str, int], float, dict[str, float]]]:
    """Parameters of a hand-written kernel that compile without spills, fastest predicted first."""
    _, _, n, d = match.sizes
    if d & (d - 1) or d < SMALLEST_DOT or n % SMALLEST_DOT:
        funnel[f"{name}: rejected: sizes"] += 1
        return []
    ranked = sorted(
        ((_predicted(p, match, target), i, p) for i, p in enumerate(_space(name, match, target))),
        key=lambda x: (x[0][0], x[1]),
    )
    made: list[tuple[dict[str, int], float, dict[str, float]]] = []
    for (seconds, traffic), _, parameters in ranked:
        if len(made) >= most:
            break
        text = source(name, {**_sizes(match), **parameters, "SCALE": match.scale})
        try:
            compiled = compile_kernel(_kernel(name, text, match, parameters), target.name)
        except CompilationFailed:
            funnel[f"{name}: rejected: does not compile"] += 1
            continue
        if compiled.spill_bytes or compiled.shared_bytes > target.shared_per_block:
            funnel[f"{name}: rejected: spills or shared memory"] += 1
            continue
        features = library_features(traffic, seconds)
        features |= {"registers": float(compiled.registers), "log_shared": math.log1p(compiled.shared_bytes)}
        features |= {"warps": float(parameters["WARPS"]), "stages": float(parameters["STAGES"])}
        made.append((parameters, seconds, features))
    return made


def _powers(low: int, high: int) -> list[int]:
    return [1 << i for i in range(low.bit_length() - 1, high.bit_length()) if low <= 1 << i <= high]


def _space(name: str, match: attention.Attention, target: Target) -> Iterator[dict[str, int]]:
    """Blocks of queries and keys, parts of the keys, warps, stages; bounds follow from sizes and target."""
    _, m, n, d = match.sizes
    size = DTYPE_BYTES[match.q.dtype]
    splits = _powers(2, n // SMALLEST_DOT) if name == "split_kv" else [1]
    queries = _powers(SMALLEST_DOT, max(min(power_of_two(m), 256), SMALLEST_DOT))
    for block_m, split in itertools.product(queries, splits):
        part = n // split
        if n % split or (name == "split_kv" and part % SMALLEST_DOT):
            continue
        for block_n in _powers(SMALLEST_DOT, min(part, 256)):
            if name == "split_kv" and part % block_n:
                continue
            streamed = 2 * block_n * d * size
            stages = range(1, min(4, (target.shared_per_block - block_m * d * size) // streamed) + 1)
            for warps, stage in itertools.product(
                _powers(1, min(8, max(block_m * block_n // 512, 1))), stages
            ):
                chosen = {"BLOCK_M": block_m, "BLOCK_N": block_n, "WARPS": warps, "STAGES": stage}
                yield {**chosen, "SPLITS": split} if name == "split_kv" else chosen


def _predicted(p: dict[str, int], match: attention.Attention, target: Target) -> tuple[float, Traffic]:
    """Seconds by the analytic model, of the attention alone, and what they were computed from."""
    heads, m, n, d = match.sizes
    size, split = DTYPE_BYTES[match.q.dtype], p.get("SPLITS", 1)
    rows = math.ceil(m / p["BLOCK_M"])
    queries, keys = heads * m * d * size, 2 * heads * n * d * size
    partial = 4 * heads * split * m * (d + 2) if split > 1 else 0
    traffic = Traffic(
        dram_bytes=2 * queries + keys,
        l2_bytes=2 * queries + rows * keys + 2 * partial,
        tensor_flops=4.0 * heads * rows * p["BLOCK_M"] * n * d,
        vector_flops=6.0 * heads * rows * p["BLOCK_M"] * n,
        blocks=heads * rows * split,
        shared_bytes=p["BLOCK_M"] * d * size + p["STAGES"] * 2 * p["BLOCK_N"] * d * size,
        loop_trips=math.ceil(n // split / p["BLOCK_N"]),
    )
    seconds = kernel_seconds(traffic, target)
    if split > 1:
        seconds += target.launch_seconds + 2 * partial / target.l2_bytes_per_second
    return seconds, traffic


def _kernel(name: str, text: str, match: attention.Attention, parameters: dict[str, int]) -> TritonKernel:
    """The main kernel of an implementation as the compiler takes it: constants and Triton functions."""
    tree = ast.parse(text)
    lines = text.splitlines()
    parts: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            parts.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            parts.append("\n\n" + "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno]))
    heads, m, n, d = match.sizes
    dtype = match.q.dtype
    shapes = {"q": (heads, m, d), "k": (heads, n, d), "v": (heads, n, d)}
    split = parameters.get("SPLITS", 1)
    inputs = [Parameter(f"{x}_ptr", TensorType(s, dtype), "input") for x, s in shapes.items()]
    partial = {"part": (heads, split, m, d), "largest": (heads, split, m), "total": (heads, split, m)}
    if name == "split_kv":
        outputs = [Parameter(f"{x}_ptr", TensorType(s, "f32"), "output") for x, s in partial.items()]
        function = "split_attention"
    else:
        outputs = [Parameter("o_ptr", TensorType((heads, m, d), dtype), "output")]
        function = "flash_attention"
    grid = (math.ceil(m / parameters["BLOCK_M"]), heads, 1)
    return TritonKernel(
        function,
        "\n".join(parts) + "\n",
        (*inputs, *outputs),
        grid,
        parameters["WARPS"],
        parameters["STAGES"],
    )
