#!/usr/bin/env python3
"""Checks and times a superopt bundle: its real kernels against PyTorch in float64. Needs torch, triton and numpy.

    python run.py                           on the GPU if there is one, else in Triton's interpreter, slowly
    python run.py --device=interpreter      never on the GPU
    python run.py --device=cpu              what they were emitted from, compiled for the CPU; needs superopt
    python run.py --kernels=cubin --check   the cubins of the bundle; needs no triton

Exit code 0: every output within its tolerance; 1: some output is not; 2: it could not be tried.
"""

import os
import sys

# Python would look for modules in the folder of this file and in those of PYTHONPATH first: what lies there (a
# numpy.py, say) is not part of the bundle. `os` and `sys` are loaded by then; `__future__` is not.
if __name__ == "__main__" and not (sys.flags.safe_path and sys.flags.ignore_environment):
    os.execv(sys.executable, [sys.executable, "-P", "-E", os.path.abspath(__file__), *sys.argv[1:]])

import argparse
import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import io
import json
import linecache
import math
import re
import secrets
import signal
import stat
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

try:
    import numpy as np
except ModuleNotFoundError:
    sys.stderr.write("run.py: error: expected torch, triton and numpy, got no numpy\n")
    raise SystemExit(2) from None

FORMAT = 2
DTYPES = ("f16", "bf16", "f32", "f64", "i64", "i32", "i16", "i8", "i1")
# What a bundle is run with; each of its files is listed with its hash.
NEEDED = ("kernels.py", "launch.py", "reference.py")
MOST_DESCRIPTION = 16 << 20  # bytes
MOST_EXTENT = 1 << 48
# Blocks of a kernel that the interpreter computes for all but the first distribution; it takes seconds a block.
SAMPLE = 8
KERNELS = ("triton", "cubin")
DEVICES = ("cuda", "interpreter", "cpu")


class CannotRun(Exception):
    """Why nothing could be tried; its text is shown to the user."""


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", default=str(Path(__file__).resolve().parent), help="the bundle's folder")
    parser.add_argument(
        "--device", choices=DEVICES, help="cpu: the tile programs, compiled; default: cuda if available"
    )
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        default=KERNELS[0],
        help="on the GPU: compiled by the Triton there is (default), or the bundle's cubins",
    )
    parser.add_argument("--check", action="store_true", help="check only; do not time")
    parser.add_argument("--time", action="store_true", help="time only (cuda); do not check")
    parser.add_argument("--seed", type=int, help="seed of the inputs (default: drawn at random)")
    parser.add_argument("--distributions", help="distributions of inputs, comma-separated (default: all)")
    parser.add_argument(
        "--all-blocks",
        action="store_true",
        help=f"interpreter: run all blocks of a kernel for every distribution, not only {SAMPLE}",
    )
    parser.add_argument("--json", help="also write the result to this file")
    args = parser.parse_args(argv)
    try:
        return run(args)
    except CannotRun as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def run(args: argparse.Namespace) -> int:
    """Check and time as the arguments say; raises CannotRun."""
    folder = Path(args.bundle)
    described = read_description(folder)
    device = args.device or ("cuda" if has_cuda() else "interpreter")
    if device == "cuda" and not has_cuda():
        raise CannotRun("expected a CUDA device, got none; try --device=interpreter")
    if device != "cuda" and args.time:
        raise CannotRun(f"expected --device=cuda with --time, got {device}")
    if device == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    if device != "cuda" and args.kernels == "cubin":
        raise CannotRun(f"expected --device=cuda with --kernels=cubin, got {device}")
    needed = ("torch", "superopt") if device == "cpu" else ("torch", "triton")
    for name in needed[: 1 if args.kernels == "cubin" and args.check else 2]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise CannotRun(f"expected '{name}' to be installed, got none: pip install {name}") from None
    if device == "interpreter":
        own("widening").mend(importlib.import_module("triton.runtime.interpreter"))
    kernels = "tiles" if device == "cpu" else args.kernels
    program = Program(folder, described, "cuda" if device == "cuda" else "cpu", kernels)
    result: dict[str, Any] = {"program": described["name"], "device": device, "rows": [], "microseconds": {}}
    passed = True
    seed = secrets.randbits(63) if args.seed is None else args.seed
    result["seed"] = seed
    if not args.time:
        sampled = device == "interpreter" and not args.all_blocks and program.launches == 1
        sampled = sampled and not program.overwritten  # whose elements were written already
        rows = program.check(seed, args.distributions, sampled=sampled)
        passed = all(row.passed for row in rows)
        result["rows"] = [vars(row) for row in rows]
        verdict = "within tolerance" if passed else "OUT OF TOLERANCE"
        print(f"{described['name']} on {device}: {verdict} (--seed={seed})")
        print(program.checking.table(rows))
        if device == "cpu":
            print(
                "compiled from the kernels' tile programs; --device=interpreter checks the kernels themselves"
            )
        if sampled and len(rows) > len(described["outputs"]):
            print(
                f"'{rows[0].distribution}': all blocks; the others: {SAMPLE} blocks (--all-blocks takes all)"
            )
    if device == "cuda" and not args.check:
        result["microseconds"] = program.time(seed)
        for name, value in result["microseconds"].items():
            print(f"{name:>10}: {value:10.2f} us")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0 if passed else 1


def read_description(folder: Path) -> dict[str, Any]:
    """`bundle.json` of a folder that holds the files that it lists, whole, and no others; raises CannotRun."""
    if not folder.exists():
        raise CannotRun(f"expected a bundle, got no such folder: {folder}")
    if not folder.is_dir():
        raise CannotRun(f"expected a bundle (a folder), got a file: {folder}")
    path = folder / "bundle.json"
    if path.is_symlink() or not path.is_file():
        raise CannotRun(f"expected a bundle, got a folder without bundle.json: {folder}")
    with path.open("rb") as file:
        data = file.read(MOST_DESCRIPTION + 1)
    try:
        if len(data) > MOST_DESCRIPTION:
            raise ValueError(f"expected at most {MOST_DESCRIPTION} bytes")
        described = strict_json(data)
        if described["format"] != FORMAT:
            raise CannotRun(f"expected a bundle of format {FORMAT}, got {described['format']}")
        wrong = _wrong(described)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CannotRun(f"expected the description of a bundle in {path}, got something else") from None
    if wrong:
        raise CannotRun(f"expected the description of a bundle in {path}, got other {wrong}")
    for name, digest in described["files"].items():
        if hashlib.sha256(_content(folder, name)).hexdigest() != digest:
            raise CannotRun(f"expected the file '{name}' as it was written, got another: {folder}")
    if unlisted := sorted(_present(folder) - {"bundle.json", *described["files"]}):
        raise CannotRun(f"expected only files that bundle.json lists, got '{unlisted[0]}': {folder}")
    return described


def strict_json(data: bytes) -> Any:
    """JSON with finite numbers and no key twice; raises ValueError for any other."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("expected each key once")
        return made

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"expected a finite number, got {text}")
        return number

    return json.loads(data.decode(), object_pairs_hook=once, parse_float=finite, parse_constant=finite)


def _wrong(described: Any) -> str:
    """The first entry of a description that is not what it has to be."""
    files, targets = described["files"], described["targets"]
    kinds = {"inputs": {"name", "shape", "dtype", "scale"}, "outputs": {"name", "shape", "dtype"}}
    names = {"format", "superopt", "triton", "name", "grids", "targets", *kinds, "overwrites", "files"}
    if set(described) - {"range", "prepare"} != names:
        return "entries"
    if not isinstance(files, dict) or not set(NEEDED) <= set(cast("dict[str, Any]", files)):
        return "files"
    if not isinstance(targets, list) or not targets or len(cast("list[Any]", targets)) > 16:
        return "targets"
    for key, fields in kinds.items():
        for spec in described[key]:
            scale = spec.get("scale", 1.0)
            if (
                set(spec) != fields
                or not isinstance(spec["name"], str)
                or spec["dtype"] not in DTYPES
                or not all(type(n) is int and 0 < n < MOST_EXTENT for n in spec["shape"])
                or type(scale) is not float
                or not 0 < scale < 1e6
            ):
                return key
    for i, j in described["overwrites"].items():
        if not 0 <= int(i) < len(described["outputs"]) or not 0 <= j < len(described["inputs"]):
            return "overwrites"
    taken = described.get("prepare", [])
    if not all(type(j) is int and 0 <= j < len(described["inputs"]) for j in taken):
        return "prepare"
    for grid in described["grids"].values():
        if len(grid) != 3 or not all(type(n) is int and 0 < n < 1 << 31 for n in grid):
            return "grids"
    return "range" if "range" in described and not _is_range(described) else ""


def _is_range(described: Any) -> bool:
    """Whether bounds of extents and shapes as their expressions are there, shapes for each input and output."""
    varying = described["range"]
    if set(varying) != {"bounds", "inputs", "outputs"} or not varying["bounds"]:
        return False
    for low, high in varying["bounds"].values():
        if not (type(low) is int and type(high) is int and 0 < low < high < 1 << 31):
            return False
    names = set(varying["bounds"])
    return all(
        [len(shape) for shape in varying[key]] == [len(spec["shape"]) for spec in described[key]]
        and all(_is_expression(n, names) for shape in varying[key] for n in shape)
        for key in ("inputs", "outputs")
    )


def _is_expression(given: Any, names: set[str], depth: int = 0) -> bool:
    if isinstance(given, list):
        parts = cast("list[Any]", given)
        known = len(parts) == 3 and parts[0] in ("+", "-", "*", "//") and depth < 16
        return known and all(_is_expression(part, names, depth + 1) for part in parts[1:])
    return (type(given) is int and given >= 0) or (isinstance(given, str) and given in names)


def _content(folder: Path, name: str) -> bytes:
    """A file of the bundle: none outside of its folder, by no link either, and no device, which never ends."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CannotRun(f"expected names of files in the bundle, got '{name}': {folder}")
    inside = [path, *path.parents[: len(Path(name).parts) - 1]]
    if any(p.is_symlink() for p in inside) or not path.is_file():
        raise CannotRun(f"expected the file '{name}' in the bundle, got none: {folder}")
    return path.read_bytes()


def _present(folder: Path) -> set[str]:
    """All that lies in a folder except folders: files, links, and whatever else there may be."""
    found: set[str] = set()
    for place, folders, names in os.walk(folder):
        for name in (*names, *folders):
            path = Path(place) / name
            if not stat.S_ISDIR(path.lstat().st_mode):
                found.add(path.relative_to(folder).as_posix())
    return found


def own(name: str) -> Any:
    """`checking`, `cubins` or `widening`, from where this file lies: a bundle's, or those of the package."""
    here = Path(__file__).resolve().parent
    places = (here / f"{name}.py", here.parent / "measure" / "standalone" / f"{name}.py")
    path = next(p for p in places if p.is_file())
    return load_module(name, path, path.read_bytes())


def load_module(name: str, path: Path, source: bytes) -> Any:
    """A module of what was read from `path`; nothing is looked up in any folder, and nothing is cached there."""
    text = source.decode()
    # With a specification: whoever asks whether there is a package of this name gets an answer, not an error.
    module: Any = importlib.util.module_from_spec(
        importlib.machinery.ModuleSpec(name, None, origin=str(path))
    )
    module.__file__ = str(path)
    # Triton reads the source of its functions from here.
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def has_cuda() -> bool:
    """Whether torch sees a GPU."""
    try:
        return bool(importlib.import_module("torch").cuda.is_available())
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def sampled_blocks(interpreter: Any, count: int) -> Generator[None]:
    """Let the interpreter compute `count` blocks of each grid, evenly spread, first and last among them."""
    builder, original = interpreter.interpreter_builder, interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        x, y, z = full = tuple(self.grid)
        blocks = [(i, j, k) for i in range(x) for j in range(y) for k in range(z)]
        last = len(blocks) - 1
        chosen = sorted({round(i * last / (count - 1)) for i in range(count)}) if last else [0]
        set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx
        self.grid = (len(chosen), 1, 1)

        def dim(*_: int) -> None:
            set_dim(*full)

        def idx(i: int, *_: int) -> None:
            set_idx(*blocks[chosen[i]])

        builder.set_grid_dim, builder.set_grid_idx = dim, idx
        try:
            original(self, *args, **kwargs)
        finally:
            builder.set_grid_dim, builder.set_grid_idx, self.grid = set_dim, set_idx, full

    interpreter.GridExecutor.__call__ = call
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__ = original


def _exact(x: Any, dtype: Any, again: object = None) -> Any:
    return x.double() if _becomes_float(x, dtype) else x


def _becomes_float(x: Any, dtype: Any) -> bool:
    """Whether a conversion to `dtype` makes floats of integers or truth values."""
    return dtype.is_floating_point and not x.is_floating_point()


def _at_precision(x: Any, dtype: Any, again: object = None) -> Any:
    return x.to(dtype)


def _filled(empty: Any, number: float) -> Any:
    def filled(*shape: Any, **options: Any) -> Any:
        return empty(*shape, **options).fill_(number)

    return filled


def _listed(folder: Path, name: str, described: dict[str, Any]) -> bytes:
    """A file, which is the one that was listed."""
    data = _content(folder, name)
    if hashlib.sha256(data).hexdigest() != described["files"].get(name):
        raise CannotRun(f"expected the file '{name}' as it was written, got another: {folder}")
    return data


class Program:
    """A bundle's `launch` and `reference`, and `checking`.

    `kernels` says what is launched: "triton", its source; "cubin", its cubins; "tiles", the tile programs.
    """

    draw = 0
    """Which draw of what is lost in rounding `modelled` takes; the first rounds to the nearest number."""
    drawn = 0
    """Operations of this draw so far."""
    failures: tuple[Any, ...] = ()
    """Errors that say why compiled tile programs or cubins could not run."""

    def __init__(self, folder: Path, described: dict[str, Any], device: str, kernels: str = "triton") -> None:
        torch: Any = importlib.import_module("torch")
        self.torch, self.described, self.device = torch, described, device
        self.launch: Any
        self.reference: Any
        self.checking: Any
        self.checking = own("checking")
        if kernels == "tiles":
            sys.modules["kernels"] = self.compiled(folder, described)
        elif kernels == "cubin":
            sys.modules["kernels"] = self.cubins(folder, described)
        else:
            load_module("kernels", folder / "kernels.py", _listed(folder, "kernels.py", described))
        self.launch, self.reference = (
            load_module(name[:-3], folder / name, _listed(folder, name, described))
            for name in ("launch.py", "reference.py")
        )
        launching = _listed(folder, "launch.py", described).decode()
        self.launches = len(re.findall(r"^\s+kernels\.\w+\[", launching, re.MULTILINE))
        self.overwritten = set(described.get("overwrites", {}).values())
        self.dtypes = {
            "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
            "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "i1": torch.bool,
        }  # fmt: skip
        self.specs = [
            self.checking.Input(i["name"], tuple(i["shape"]), i["dtype"], i["scale"])
            for i in described["inputs"]
        ]
        arrays: Any = {}
        if "constants.npz" in described["files"]:
            held = io.BytesIO(_listed(folder, "constants.npz", described))
            arrays = np.load(held, allow_pickle=False)
        self.constants = {name: torch.from_numpy(arrays[name]).to(device) for name in arrays}

    def compiled(self, folder: Path, described: dict[str, Any]) -> Any:
        """What stands for `kernels.py` on a CPU: the tile programs that it was emitted from."""
        cpu: Any = importlib.import_module("superopt.numerics.cpu")
        errors: Any = importlib.import_module("superopt.errors")
        self.failures = (errors.SuperoptError,)
        if "lowered.mlir" not in described["files"]:
            raise CannotRun(f"expected a bundle with lowered.mlir for --device=cpu, got none: {folder}")
        try:
            text = _listed(folder, "lowered.mlir", described).decode()
            return cpu.kernels_of(text, list(described["grids"]))
        except self.failures as error:
            raise CannotRun(f"cannot be compiled for the CPU: {error.message}") from None

    def cubins(self, folder: Path, described: dict[str, Any]) -> Any:
        """What stands for `kernels.py` where the cubins are launched."""
        cubins = own("cubins")
        self.failures = (cubins.CannotLaunch,)

        def read(name: str) -> bytes:
            return _listed(folder, name, described)

        try:
            return cubins.kernels(read, described, self.torch.cuda.get_device_capability(), cubins.Driver())
        except self.failures as error:
            raise CannotRun(error.message) from None

    def prepared(self, inputs: list[Any]) -> dict[str, Any]:
        """What the program makes of its weights once, as an option of `run`."""
        if (taken := self.described.get("prepare")) is None:
            return {}
        made = self.launch.prepare(self.torch.device(self.device), *(inputs[i] for i in taken))
        return {"prepared": made}

    def tensors(self, made: list[Any]) -> list[Any]:
        """Numbers as tensors of the inputs' dtypes."""
        tensors = [self.torch.from_numpy(x).to(self.device) for x in made]
        return [t.to(self.dtypes[s.dtype]) for t, s in zip(tensors, self.specs, strict=True)]

    def launched(self, inputs: list[Any]) -> list[Any]:
        """The kernels on `inputs`, which stay as they are."""
        given = [t.clone() if i in self.overwritten else t for i, t in enumerate(inputs)]
        try:
            return list(self.launch.run(*given, **self.prepared(inputs)))
        except self.failures as error:
            raise CannotRun(error.message) from None

    def modelled(self, x: Any, dtype: Any, again: Any = None) -> Any:
        """What an operator gives in fp32, rounded to its dtype; sums as `checking.accumulated` has them."""
        if again is not None:
            total, magnitude = again(self.torch.Tensor.double), again(self.torch.abs)
            x = self.checking.accumulated(total, magnitude, self.lost(x)).to(x.dtype)
        if _becomes_float(x, dtype):
            x = x.float()
        name = next(n for n, d in self.dtypes.items() if d == dtype)
        if name not in self.checking.LARGEST:
            return x.to(dtype).to(x.dtype)
        nearest, where = x.to(dtype).to(x.dtype), self.torch.where
        if self.draw and name in self.checking.LEAST:
            other = self.checking.other_neighbour(x, nearest, name, where).to(dtype).to(x.dtype)
            nearest = self.checking.stochastic(x, nearest, other, self.lost(x), where)
        return where(self.checking.overflowing(nearest, name), nearest * math.inf, nearest)

    def lost(self, x: Any) -> Any:
        """`checking.lost` of the next operation."""
        self.drawn += 1
        return self.torch.from_numpy(self.checking.lost(tuple(x.shape), self.draw, self.drawn)).to(x.device)

    def expected(self, inputs: list[Any], dtype: Any, rounded: Any) -> list[Any]:
        """The reference program on `inputs`, computed in `dtype`."""
        inputs = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
        with self.torch.no_grad():
            return self.reference.run(*inputs, rounded=rounded, constants=self.constants, externs={})

    def check(self, seed: int, only: str | None, *, sampled: bool) -> list[Any]:
        """One comparison an output and distribution; `sampled`: of some blocks for all but the first."""
        rows: list[Any] = []
        for number, name in enumerate(only.split(",") if only else self.checking.DISTRIBUTIONS):
            if name not in self.checking.DISTRIBUTIONS:
                known = ", ".join(self.checking.DISTRIBUTIONS)
                raise CannotRun(f"expected distributions of {known}, got '{name}'")

            def judge(
                arrays: list[Any], name: str = name, sampled: bool = bool(sampled and number)
            ) -> list[Any]:
                return self.judged(name, self.tensors(arrays), sampled=sampled)

            rows += self.checking.compared(self.specs, name, seed, judge)
        return rows

    def judged(self, name: str, inputs: list[Any], *, sampled: bool) -> list[Any]:
        """One comparison an output."""
        exact = self.arrays(self.expected(inputs, self.torch.float64, _exact))
        got = self.sample(inputs) if sampled else [(t, None) for t in self.launched(inputs)]
        candidates = self.arrays(t for t, _ in got)

        def judge(models: list[Any]) -> list[Any]:
            return [
                self.checking.compare(name, spec["name"], spec["dtype"], numbers, reference, model, written)
                for spec, numbers, (_, written), reference, model in zip(
                    self.described["outputs"], candidates, got, exact, models, strict=True
                )
            ]

        def model(draw: int) -> list[Any]:
            return self.arrays(self.model(inputs, draw))

        return self.checking.drawn(judge, exact, model)

    def arrays(self, tensors: Iterable[Any]) -> list[Any]:
        """Tensors as arrays of fp64."""
        return [t.double().cpu().numpy() for t in tensors]

    def model(self, inputs: list[Any], draw: int) -> list[Any]:
        """The outputs as the reference program may round them."""
        self.draw, self.drawn = draw, 0
        return self.expected(inputs, self.torch.float32, self.modelled)

    def sample(self, inputs: list[Any]) -> list[Any]:
        """Outputs of some blocks, and which elements these blocks wrote: the same over two kinds of memory."""
        interpreter: Any = importlib.import_module("triton.runtime.interpreter")
        empty = self.torch.empty
        runs, prepared = list[Any](), self.prepared(inputs)
        for number in (0.0, 1.0):
            self.torch.empty = _filled(empty, number)
            try:
                with sampled_blocks(interpreter, SAMPLE):
                    runs.append(self.launch.run(*inputs, **prepared))
            finally:
                self.torch.empty = empty
        written = [((a == b) | (a.isnan() & b.isnan())).numpy() for a, b in zip(*runs, strict=True)]
        if not all(w.any() for w in written):
            raise CannotRun("expected the kernels to write their outputs, got untouched memory")
        return list(zip(runs[0], written, strict=True))

    def time(self, seed: int) -> dict[str, float]:
        """Median microseconds of the kernels and of PyTorch at the same precision, with a cold L2 cache."""
        testing: Any = importlib.import_module("triton.testing")
        inputs = self.tensors(self.checking.make_inputs(self.specs, "ordinary", seed))

        def eager() -> None:
            with self.torch.no_grad():
                self.reference.run(*inputs, rounded=_at_precision, constants=self.constants, externs={})

        prepared = self.prepared(inputs)

        def bench(function: Any) -> float:
            return 1e3 * testing.do_bench(function, warmup=100, rep=500, return_mode="median")

        return {"kernels": bench(lambda: self.launch.run(*inputs, **prepared)), "eager": bench(eager)}


if __name__ == "__main__":
    sys.exit(main())
