"""Tampered bundles, certificates, schedules and stores: none may be believed.

    python test/tamper/tamper.py --count=400 --seed=0 --json=FILE

A bundle of a small attention is written, and one in buckets of a program of any number of rows, and both are taken
apart: each field of each JSON file gets other values (another number, NaN, infinities, huge numbers, nothing, its own
twice), bytes of each file are changed, files are added, removed, cut short, linked, and swapped with those of a
bundle of another program; buckets are exchanged, removed, nested, and point elsewhere. The hashes in `bundle.json` are
left as they are or made to fit. `superopt-verify` must then not say "equivalent" (exit code 0), and no Python of a
bundle may run. What is left out are remarks: fields that make no claim (`REMARKS`).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent.parent))

from about import about

PROGRAM = """
func.func @attention(%q: tensor<16x32xf32>, %k: tensor<32x32xf32>, %v: tensor<32x32xf32>) -> tensor<16x32xf32> {{
  %c = "kernel.constant"() {{value = dense<[{numbers}]> : tensor<32xf32>, shape = array<i64: 32>, dtype = "f32"}} : () -> tensor<32xf32>
  %s = "kernel.matmul"(%q, %k) {{transpose_b = true}} : (tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<16x32xf32>
  %a = "kernel.{mask}"(%s, %c) : (tensor<16x32xf32>, tensor<32xf32>) -> tensor<16x32xf32>
  %m = "kernel.reduce_max"(%a) {{dims = array<i64: 1>, keepdims = true}} : (tensor<16x32xf32>) -> tensor<16x1xf32>
  %d = "kernel.sub"(%a, %m) : (tensor<16x32xf32>, tensor<16x1xf32>) -> tensor<16x32xf32>
  %e = "kernel.exp"(%d) : (tensor<16x32xf32>) -> tensor<16x32xf32>
  %l = "kernel.reduce_sum"(%e) {{dims = array<i64: 1>, keepdims = true}} : (tensor<16x32xf32>) -> tensor<16x1xf32>
  %p = "kernel.div"(%e, %l) : (tensor<16x32xf32>, tensor<16x1xf32>) -> tensor<16x32xf32>
  %o = "kernel.matmul"(%p, %v) : (tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<16x32xf32>
  return %o : tensor<16x32xf32>
}}
"""
ROWS = """
func.func @rows(%x: tensor<?x24xf32> {superopt.extents = ["2 * n"]}) -> tensor<?x24xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x24xf32>
  %0 = tensor.empty(%n) : tensor<?x24xf32>
  %1 = linalg.exp ins(%x : tensor<?x24xf32>) outs(%0 : tensor<?x24xf32>) -> tensor<?x24xf32>
  return %1 : tensor<?x24xf32>
}
"""
ROW_KINDS = ("bucket", "field of a range")
BUCKETS = ("n-1-1", "n-2-6")
NUMBERS = ", ".join(f"{i / 8}" for i in range(32))
# What makes no claim: names, versions, how a search came to its result.
REMARKS = {
    "bundle.json": {"superopt", "name"},
    "shapes.json": {"name"},
    "schedule.json": {"superopt", "seed", "reason", "names", "version"},
    "artifact.json": {"seed"},
    "certificate.json": set[str](),
}
# The same for the second bucket, which is one of a range; a bound that is not claimed, or that is proved, is none.
ROW_REMARKS = {
    "buckets.json": {"files"},
    "n-2-6/range.json": {"delta", "delta_extents"},
    "n-2-6/bundle.json": {*REMARKS["bundle.json"], "files"},
}
VALUES = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "1" + "0" * 40,
    "-1",
    "0",
    "null",
    '"x"',
    "[]",
    "{}",
    "true",
)


@dataclass
class Tally:
    """What became of the tamperings; `believed` are the faults: none is allowed."""

    tamperings: int = 0
    answers: Counter[str] = field(default_factory=Counter[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    believed: list[str] = field(default_factory=list[str])
    crashes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Tampering:
    """A change of a bundle's folder; `fit` says that the hashes are made to fit afterwards."""

    kind: str
    what: str
    change: Callable[[Path], object]
    fit: bool


def make(folder: Path, mask: str = "add") -> tuple[Path, Path]:
    """The program and its bundle."""
    from superopt.api import optimize

    program = folder / f"{mask}.mlir"
    program.write_text(PROGRAM.format(mask=mask, numbers=NUMBERS))
    made = optimize(program, budget=4.0, store=None, optimizers=("mugraph",), against="operators")
    return program, made.save(folder / f"{mask}.bundle")


def make_rows(folder: Path) -> tuple[Path, Path]:
    """A program of any number of rows, and its bundle of buckets."""
    from superopt.api import optimize

    program = folder / "rows.mlir"
    program.write_text(ROWS)
    made = optimize(program, dynamic="n=1..1..6", budget=1.0, store=None, against="operators")
    return program, made.save(folder / "rows.bundle")


def tamperings(bundle: Path, other: Path, rng: random.Random) -> Iterator[Tampering]:
    """All of them, in no particular order of kinds."""
    made = [*_fields(bundle, REMARKS), *_files(bundle, other, rng)]
    rng.shuffle(made)
    yield from made


def tamperings_of_rows(bundle: Path, rng: random.Random) -> Iterator[Tampering]:
    """Those of buckets: of the fields that ranges have, and of their folders."""
    fields = [
        t
        for t in _fields(bundle, ROW_REMARKS)
        if not t.what.startswith("n-2-6/bundle.json") or "range" in t.what
    ]
    made = [*(replace(t, kind="field of a range") for t in fields), *_folders()]
    rng.shuffle(made)
    yield from made


def _folders() -> Iterator[Tampering]:
    first, second = BUCKETS

    def listed(change: Callable[[Any], object]) -> Callable[[Path], object]:
        def changed(folder: Path) -> None:
            content: Any = json.loads((folder / "buckets.json").read_text())
            change(content)
            (folder / "buckets.json").write_text(json.dumps(content))

        return changed

    def exchanged(folder: Path) -> None:
        (folder / first).rename(folder / "other")
        (folder / second).rename(folder / first)
        (folder / "other").rename(folder / second)

    def linked(folder: Path) -> None:
        shutil.move(folder / second, folder.parent / "outside")
        (folder / second).symlink_to(folder.parent / "outside")

    changes: dict[str, Callable[[Path], object]] = {
        "exchanged": exchanged,
        "exchanged in buckets.json": listed(lambda c: [b.update(folder=n) for b, n in zip(c["buckets"], (second, first), strict=True)]),
        "gone": lambda f: shutil.rmtree(f / second),
        "one for both": lambda f: (shutil.rmtree(f / first), shutil.copytree(f / second, f / first)),
        "nested": lambda f: shutil.copytree(f / first, f / second / first),
        "with buckets of its own": lambda f: shutil.copy(f / "buckets.json", f / second / "buckets.json"),
        "one more": lambda f: shutil.copytree(f / second, f / "n-7-12"),
        "linked": linked,
        "overlapping": listed(lambda c: c["buckets"][0]["bounds"].update(n=[1, 2])),
        "wider": listed(lambda c: c["buckets"][1]["bounds"].update(n=[2, 7])),
        "narrower": listed(lambda c: c["buckets"][1]["bounds"].update(n=[3, 6])),
        "at another extent": listed(lambda c: c["buckets"][0]["bounds"].update(n=[7, 7])),
        "elsewhere": listed(lambda c: c["buckets"][0].update(folder=f"../{second}")),
        "without range": lambda f: (f / second / "range.json").unlink(),
    }  # fmt: skip
    for what, change in changes.items():
        for fit in (False, True):
            if fit or not what.startswith("linked"):
                yield Tampering("bucket", what, change, fit)


def _fields(bundle: Path, of: Mapping[str, set[str]]) -> Iterator[Tampering]:
    for name, remarks in of.items():
        content: Any = json.loads((bundle / name).read_text())
        places = [p for p in _places(content, remarks) if not name.endswith("bundle.json") or p[0] != "files"]
        for place in places:
            value = _at(content, place)
            for text in (*VALUES, *_near(value)):
                if text != json.dumps(value) and not _equal(text, value):
                    what = f"{name}: {'.'.join(map(str, place))} = {text[:30]}"
                    yield Tampering("field", what, _set(name, place, text), fit=True)
            if place and isinstance(place[-1], str):
                yield Tampering("field twice", f"{name}: {place}", _twice(name, place), fit=True)
                yield Tampering("field removed", f"{name}: {place}", _without(name, place), fit=True)


def _equal(text: str, value: object) -> bool:
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False


def _places(value: Any, remarks: set[str], at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if at:
        yield at
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            if key not in remarks:
                yield from _places(item, remarks, (*at, key))
    if isinstance(value, list):
        for i, item in enumerate(cast("list[Any]", value)[:4]):
            yield from _places(item, remarks, (*at, i))


def _at(value: Any, place: tuple[str | int, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


def _near(value: object) -> list[str]:
    """Values that look like it."""
    if isinstance(value, bool):
        return [json.dumps(not value)]
    if isinstance(value, int):
        return [str(value + 1), str(2 * value), f"{value}.5", f"{value}e300"]
    if isinstance(value, float):
        return [repr(value * 0.5), repr(value * 1e-9), "0.0"]
    if isinstance(value, str):
        return [json.dumps(value[:-1]), json.dumps(value + " "), '"bound"', '"sm_80"', '"f16"']
    return []


_MARK = "@@tampered@@"


def _set(name: str, place: tuple[str | int, ...], text: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content: Any = json.loads((folder / name).read_text())
        _at(content, place[:-1])[place[-1]] = _MARK
        (folder / name).write_text(json.dumps(content).replace(f'"{_MARK}"', text))

    return change


def _twice(name: str, place: tuple[str | int, ...]) -> Callable[[Path], object]:
    """The key again in front, with another value: readers that take the last one see what was there."""

    def change(folder: Path) -> None:
        content: Any = json.loads((folder / name).read_text())
        _at(content, place[:-1])[_MARK] = 7
        key, text = json.dumps(place[-1]), json.dumps(content)
        (folder / name).write_text(text.replace(f'"{_MARK}"', key))

    return change


def _without(name: str, place: tuple[str | int, ...]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content: Any = json.loads((folder / name).read_text())
        del _at(content, place[:-1])[place[-1]]
        (folder / name).write_text(json.dumps(content))

    return change


def _files(bundle: Path, other: Path, rng: random.Random) -> Iterator[Tampering]:
    names = sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())
    for name in names:
        for fit in (False, True) if name != "bundle.json" else (False,):
            optional = {"original.mlir", "optimized.mlir", "certificate.json", "schedule.json"}
            for _ in range(3):
                yield Tampering("byte", name, _byte(name, rng.random(), rng.randrange(1, 256)), fit)
            yield Tampering("cut short", name, _cut(name), fit)
            yield Tampering("emptied", name, lambda f, n=name: (f / n).write_bytes(b""), fit)
            if not (fit and name in optional):  # without them, nothing is said that they would say
                yield Tampering("removed", name, lambda f, n=name: (f / n).unlink(), fit)
            yield Tampering("link", name, _link(name), fit)
            if (other / name).is_file() and (other / name).read_bytes() != (bundle / name).read_bytes():
                yield Tampering("swapped", name, lambda f, n=name: shutil.copy(other / n, f / n), fit)
    added = (
        "numpy.py", "torch.py", "triton/__init__.py", "argparse.py", "sm_90/more.ttir", "__pycache__/kernels.cpython-311.pyc",
        "constants2.npz", "launch", "sitecustomize.py", "sm_80/attention.ptx",
    )  # fmt: skip
    for name in added:
        for fit in (False, True):
            yield Tampering("added", name, _add(name), fit)
    edits = {
        "kernels.py": (("tl.load", "tl.store"), ("+", "-"), ("tl.sum", "tl.max"), (" tl.exp2", " 2 + tl.exp2")),
        "launch.py": (("num_warps=", "num_warps=2*"), ("torch.empty", "torch.zeros"), ("return (", "return (0*")),
        "reference.py": (("torch.matmul", "0*torch.matmul"), ("return (", "return (0*")),
        "run.py": (("return 0 if passed", "return 0 if 1"),),
        "checking.py": (("FACTOR = 4.0", "FACTOR = 4e9"),),
        "lowered.mlir": (("tile.sub", "tile.add"), ("tile.exp", "tile.neg"), ("tile.add", "tile.sub")),
        "optimized.mlir": (("sub", "add"), ("exp", "neg"), ("div", "mul")),
        "original.mlir": (("kernel.sub", "kernel.add"), ("kernel.exp", "kernel.neg")),
        **{n: (("arith.subf", "arith.addf"), ("arith.maxnumf", "arith.minnumf")) for n in names if n.endswith("ttir")},
        **{n: (("add.f32", "sub.f32"), ("mul.f32", "add.f32"), ("ld.global", "ld.volatile.global"))
           for n in names if n.endswith("ptx")},
    }  # fmt: skip
    for name, pairs in edits.items():
        text = (bundle / name).read_text()
        for old, new in pairs:
            if old in text:
                yield Tampering("edited", f"{name}: {old} -> {new}", _edit(name, old, new), fit=True)


def _byte(name: str, where: float, change: int) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        # In text, comments and names of variables are free: a byte that is none of a letter makes another token.
        data[int(where * len(data))] ^= 128 if name.endswith((".py", ".mlir", ".json", ".ttir")) else change
        (folder / name).write_bytes(bytes(data))

    return changed


def _cut(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


def _link(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        outside = folder.parent / f"outside-{Path(name).name}"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return change


def _add(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"open({str(folder.parent / 'ran')!r}, 'w')\n")

    return change


def _edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new, 1))


def fitted(folder: Path) -> None:
    """`bundle.json` with the files that are there, and their hashes; that of each bucket, and `buckets.json`."""
    if (folder / "buckets.json").is_file():
        for inner in sorted(folder.glob("*/bundle.json")):
            fitted(inner.parent)
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
            if _plain(folder / "buckets.json"):
                content: Any = json.loads((folder / "buckets.json").read_text())
                for name in [n for n in content["files"] if (folder / n).is_file()]:
                    content["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
                (folder / "buckets.json").write_text(json.dumps(content))
        return
    with contextlib.suppress(ValueError, TypeError):
        path = folder / "bundle.json"
        text = path.read_text()
        stated: Any = json.loads(text)["files"]
        listed = {
            p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "bundle.json"
        }  # fmt: skip
        for name in {*stated} - {*listed}:
            text = text.replace(f'"{name}"', '"kernels.py"', 1)
        before, after = json.dumps(stated, indent=2), json.dumps(listed, indent=2)
        described = json.loads(path.read_text())
        if json.dumps(described) == json.dumps(json.loads(json.dumps(described))) and _plain(path):
            described["files"] = listed
            path.write_text(json.dumps(described, indent=2))
        else:  # what another reader would not read stays as it is
            path.write_text(path.read_text().replace(before, after))


def _plain(path: Path) -> bool:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({k for k, _ in pairs}) != len(pairs):
            raise ValueError
        return dict(pairs)

    def refuse(text: str) -> float:
        raise ValueError(text)

    try:
        json.loads(path.read_text(), object_pairs_hook=once, parse_constant=refuse)
    except ValueError:
        return False
    return True


def judged(program: Path, folder: Path) -> tuple[int, str]:
    """The exit code of `superopt-verify PROGRAM BUNDLE`, and what it said; -1 for an error that nobody foresaw."""
    from superopt.errors import SuperoptError
    from superopt.tools import superopt_verify

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = superopt_verify.bundle_verdict(program, folder)
        except SuperoptError as error:
            return 2, error.message
        except Exception as error:  # a fault of the tool, which is what is looked for
            return -1, f"{type(error).__name__}: {error}"
    return code, said.getvalue()


def campaign(count: int, seed: int, watch: Callable[[Tally], object] = lambda tally: None) -> Tally:
    """Up to `count` tamperings, drawn by `seed` so that each kind has its share."""
    tally, rng = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="superopt-tamper-") as name:
        place = Path(name)
        program, bundle = make(place)
        _, other = make(place, mask="mul")
        of_rows, rows = make_rows(place)
        for given, whole in ((program, bundle), (of_rows, rows)):
            fitted(whole)
            code, said = judged(given, whole)
            assert code == 0, f"the bundle itself is refused: {said}"
        kinds: dict[str, list[Tampering]] = {}
        for tampering in tamperings(bundle, other, rng):
            kinds.setdefault(tampering.kind, []).append(tampering)
        for tampering in tamperings_of_rows(rows, rng):
            kinds.setdefault(tampering.kind, []).append(tampering)
        # Half are fields, of which there are thousands; the others take turns.
        fields = [(i, 0.5, t) for i, t in enumerate(kinds.pop("field"))]
        most = len(kinds)
        others = [(i * most + n, 0.0, t) for n, ts in enumerate(kinds.values()) for i, t in enumerate(ts)]
        for _, _, tampering in sorted(fields + others, key=lambda e: e[:2])[:count]:
            kind = tampering.kind
            given, whole = (of_rows, rows) if kind in ROW_KINDS else (program, bundle)
            copy = place / "copy" / "bundle"
            shutil.rmtree(copy.parent, ignore_errors=True)
            shutil.copytree(whole, copy)
            tampering.change(copy)
            if tampering.fit:
                fitted(copy)
            code, said = judged(given, copy)
            tally.tamperings += 1
            tally.kinds[kind] += 1
            tally.answers[{0: "equivalent", 4: "not checked"}.get(code, "refused")] += 1
            what = f"{kind}: {tampering.what}{', hashes made to fit' if tampering.fit else ''}"
            if code == 0 or (copy.parent / "ran").exists():
                tally.believed.append(what)
            if code == -1:
                tally.crashes.append(f"{what}: {said}")
            watch(tally)
    return tally


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    args = parser.parse_args()
    tally = campaign(args.count, args.seed, lambda t: print(f"\r{t.tamperings}", end="", flush=True))
    result = {
        **about(), "seed": args.seed, "tamperings": tally.tamperings, "kinds": dict(sorted(tally.kinds.items())),
        "answers": dict(sorted(tally.answers.items())), "believed": tally.believed, "crashes": tally.crashes,
    }  # fmt: skip
    print("\n" + json.dumps(result, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    return 1 if tally.believed or tally.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
