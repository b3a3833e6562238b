"""Each guard of a bundle, taken out, lets something in that it stops; as they are, nothing.

Where several guards stop the same, the case says what the next one answers.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from weakened import weakened

from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read as read_mlir
from superopt.dialects.writer import to_text
from superopt.errors import SuperoptError
from superopt.inputs.programs import read_program
from superopt.numerics import runner
from superopt.program import Node, Value
from superopt.transforms.emit import compile as compile_module
from superopt.transforms.emit.bundle import write_bundle
from superopt.transforms.emit.compile import CompilationFailed, compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.verify import bundle as verifier

sys.path.insert(0, str(Path(__file__).parent.parent / "tamper"))
RUNNER = "superopt.numerics.runner"
VERIFIER = "superopt.verify.bundle"
Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """`guard` becomes `instead`; a bundle after `change` is refused with `said`, and then with `next_said`."""

    guard: str
    instead: str
    change: Change
    said: str
    next_said: str = ""


def edited(name: str, old: str, new: str, count: int = 1) -> Change:
    """The text `old` of a file becomes `new`, `count` times (-1: everywhere)."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text, (name, old)
        (folder / name).write_text(text.replace(old, new, count))

    return change


def put(name: str, value: Any, *place: Any) -> Change:
    """A field of a JSON file."""

    def change(folder: Path) -> None:
        content: Any = json.loads((folder / name).read_text())
        at = content
        for step in place[:-1]:
            at = at[next(iter(at)) if step == "*" else step]
        at[next(iter(at)) if place[-1] == "*" else place[-1]] = value
        (folder / name).write_text(json.dumps(content))

    return change


def described(value: Any, *place: Any) -> Change:
    """A field of `bundle.json`."""
    return put("bundle.json", value, *place)


def linked(name: str) -> Change:
    def change(folder: Path) -> None:
        outside = folder.parent / f"outside-{Path(name).name}"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return change


def listed(folder: Path) -> None:
    """Hashes of what is there, in `bundle.json`."""
    path = folder / "bundle.json"
    content = json.loads(path.read_text())
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p != path]
    content["files"] = {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def tamper() -> Any:
    for module in ("torch_mlir", "triton"):
        pytest.importorskip(module)
    return importlib.import_module("tamper")


@pytest.fixture(scope="module")
def made(tamper: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program and its bundle."""
    return tamper.make(tmp_path_factory.mktemp("made"))


@pytest.fixture
def bundle(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy to tamper with."""
    shutil.copytree(made[1], tmp_path / "bundle")
    return tmp_path / "bundle"


# --- what every reader of a bundle checks ----------------------------------------------------------------------


def read(module: ModuleType, folder: Path) -> str:
    """What `read_description` says; empty where it accepts the folder."""
    try:
        module.read_description(folder)
    except (module.CannotRun, KeyError, TypeError, ValueError) as error:
        return str(error)
    return ""


def twice(folder: Path) -> None:
    """A key twice: readers that take the first one see another bundle."""
    edited("bundle.json", "{", '{"name": "another",')(folder)


def outside(folder: Path) -> None:
    """A file of another folder is listed, with its hash."""
    (folder.parent / "secret").write_text("secret")
    described(hashlib.sha256(b"secret").hexdigest(), "files", "../secret")(folder)


def behind_a_link(folder: Path) -> None:
    (folder / "run.py").rename(folder.parent / "moved.py")
    (folder / "run.py").symlink_to(folder.parent / "moved.py")


def an_inner_link(folder: Path) -> None:
    """A link to a file of the same bundle."""
    (folder / "run2.py").symlink_to(folder / "run.py")
    described(hashlib.sha256((folder / "run.py").read_bytes()).hexdigest(), "files", "run2.py")(folder)


def unlisted(folder: Path) -> None:
    (folder / "numpy.py").write_text("raise SystemExit")


def unlisted_link(folder: Path) -> None:
    (folder / "more").symlink_to(folder.parent)


def of_a_range(low: Any = 1, high: Any = 9, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / "bundle.json").read_text())
        shapes = {k: [spec["shape"] for spec in content[k]] for k in ("inputs", "outputs")}
        described({"bounds": {"n": [low, high]}, **shapes, **changes}, "range")(folder)

    return change


_SPEC, _GRID = "description of a bundle in .*, got other inputs", "got other grids"
READING = {
    "hash": Case("_content(folder, name)).hexdigest() != digest", "_content(folder, name)).hexdigest() == 0",
                 edited("run.py", "return 0 if passed", "return 0 if 1   "), "expected the file 'run.py' as it was written"),
    "unlisted": Case('if unlisted := sorted(_present(folder) - {"bundle.json", *described["files"]})', "if unlisted := []",
                     unlisted, "only files that bundle.json lists, got 'numpy.py'"),
    "unlisted link": Case("if not stat.S_ISDIR(path.lstat().st_mode)", "if path.is_file()", unlisted_link,
                          "only files that bundle.json lists, got 'more'"),
    "format": Case('if described["format"] != FORMAT', "if False", described(1, "format"), "bundle of format"),
    "link of the description": Case("path.is_symlink() or not path.is_file()", "not path.is_file()",
                                    linked("bundle.json"), "without bundle.json"),
    "link": Case("any(p.is_symlink() for p in inside) or ", "", an_inner_link, "expected the file 'run2.py' in the bundle, got none"),
    "link to elsewhere": Case("if not path.resolve().is_relative_to(folder.resolve())", "if False", behind_a_link,
                              "expected names of files in the bundle", "expected the file 'run.py' in the bundle, got none"),
    "elsewhere": Case("if not path.resolve().is_relative_to(folder.resolve())", "if False", outside,
                      "expected names of files in the bundle"),
    "size": Case(
        "if len(data) > MOST_DESCRIPTION",
        "if False",
        lambda f: (f / "bundle.json").write_text((f / "bundle.json").read_text() + " " * runner.MOST_DESCRIPTION),
        "got something else",
    ),
    "once": Case("if len(made) != len(pairs)", "if False", twice, "got something else"),
    "finite": Case("if not math.isfinite(number := float(text))", "if not (number := float(text))",
                   edited("bundle.json", '"scale": 1.0', '"scale": 1e999'), "got something else", _SPEC),
    "constants": Case("parse_constant=finite", "parse_constant=float", edited("bundle.json", '"scale": 1.0', '"scale": NaN'),
                      "got something else", _SPEC),
    "entries": Case("if set(described) - {\"range\", \"prepare\"} != names", "if False", described(1, "more"), "got other entries"),
    "files": Case('if not isinstance(files, dict) or not set(NEEDED) <= set(cast("dict[str, Any]", files))', "if False",
                  lambda f: ((f / "kernels.py").unlink(), listed(f)), "got other files"),
    "no targets": Case("not isinstance(targets, list) or not targets or", "not isinstance(targets, list) or",
                       described([], "targets"), "got other targets"),
    "targets": Case("not isinstance(targets, list) or not targets or", "not targets or", described("sm_90", "targets"), "got other targets"),
    "many targets": Case(' or len(cast("list[Any]", targets)) > 16', "", described(["sm_90"] * 17, "targets"), "got other targets"),
    "fields": Case("set(spec) != fields\n                or ", "", described(1, "inputs", 0, "more"), _SPEC),
    "names": Case('or not isinstance(spec["name"], str)', "", described(7, "inputs", 0, "name"), _SPEC),
    "dtype": Case('or spec["dtype"] not in DTYPES', "", described("f7", "inputs", 0, "dtype"), _SPEC),
    "extent": Case("type(n) is int and 0 < n < MOST_EXTENT", "type(n) is int", described(0, "inputs", 0, "shape", 0), _SPEC),
    "large extent": Case("0 < n < MOST_EXTENT", "0 < n", described(1 << 60, "inputs", 0, "shape", 0), _SPEC),
    "no extent": Case("type(n) is int and 0 < n < MOST_EXTENT", "0 < n < MOST_EXTENT", described(16.0, "inputs", 0, "shape", 0), _SPEC),
    "scale": Case("or type(scale) is not float", "", described(True, "inputs", 0, "scale"), _SPEC),
    "large scale": Case("or not 0 < scale < 1e6", "", described(1e7, "inputs", 0, "scale"), _SPEC),
    "overwrites": Case('if not 0 <= int(i) < len(described["outputs"]) or', "if", described({"5": 0}, "overwrites"), "got other overwrites"),
    "overwritten": Case('or not 0 <= j < len(described["inputs"])', "", described({"0": 5}, "overwrites"), "got other overwrites"),
    "grids": Case("if len(grid) != 3 or", "if", described([1, 1], "grids", "*"), _GRID),
    "grid": Case("0 < n < 1 << 31 for n in grid", "True for n in grid", described([0, 1, 1], "grids", "*"), _GRID),
    "range": Case("and not _is_range(described)", "and False", described({"low": 1}, "range"), "got other range"),
    "bounds": Case("and 0 < low < high < 1 << 31", "", of_a_range(low=9), "got other range"),
    "bound": Case("type(low) is int and type(high) is int and", "", of_a_range(high=9.5), "got other range"),
    "shapes": Case("[len(shape) for shape in varying[key]] == [len(spec[\"shape\"]) for spec in described[key]]\n        and ", "",
                   of_a_range(outputs=[[1]]), "got other range"),
    "expressions": Case("and all(_is_expression(n, names) for shape in varying[key] for n in shape)", "",
                        of_a_range(outputs=[["__import__('os')", 32]]), "got other range"),
    "operators": Case('and parts[0] in ("+", "-", "*", "//")', "", of_a_range(outputs=[[["**", 9, 9], 32]]), "got other range"),
    "operands": Case("len(parts) == 3 and", "len(parts) > 0 and", of_a_range(outputs=[[["+", 9], 32]]), "got other range"),
    "numbers": Case("type(given) is int and given >= 0", "type(given) is int", of_a_range(outputs=[[-1, 32]]), "got other range"),
    "identifiers": Case("isinstance(given, str) and given in names", "isinstance(given, str)", of_a_range(outputs=[["n)", 32]]),
                        "got other range"),
}  # fmt: skip


@pytest.mark.parametrize("name", READING)
def test_a_guard_of_reading(bundle: Path, name: str) -> None:
    case = READING[name]
    assert read(runner, bundle) == ""
    case.change(bundle)
    said, after = read(runner, bundle), read(weakened(RUNNER, case.guard, case.instead), bundle)
    assert re.search(case.said, said), said
    assert not re.search(case.said, after), after
    assert re.search(case.next_said, after) if case.next_said else after == "", after


# --- what `superopt-verify PROGRAM BUNDLE` makes again ---------------------------------------------------------


def verdict(module: ModuleType, program: Path, folder: Path) -> str:
    """What `verify_bundle` says: an error, or what it left unchecked; empty where it believes everything."""
    try:
        record = module.verify_bundle(read_program(program, Diagnostics()), folder, seed=0)
    except SuperoptError as error:
        return error.message
    return "; ".join(f"unchecked: {text}" for text in record.unchecked)


def kernel(suffix: str, old: str, new: str) -> Change:
    """An edited file of the only kernel."""

    def change(folder: Path) -> None:
        (path,) = (folder / "sm_90").glob(f"*{suffix}")
        edited(f"sm_90/{path.name}", old, new)(folder)

    return change


def other_cubin(folder: Path) -> None:
    (path,) = (folder / "sm_90").glob("*.cubin")
    path.write_bytes(path.read_bytes() + b"\0")


def other_ptx(folder: Path) -> None:
    """The same instructions in another text, whose hash `artifact.json` knows."""
    (path,) = (folder / "sm_90").glob("*.ptx")
    text = path.read_text()
    path.write_text("// more\n" + text)
    hashes = [hashlib.sha256(t.encode()).hexdigest() for t in (text, path.read_text())]
    edited("artifact.json", hashes[0], hashes[1])(folder)


def other_triton(folder: Path) -> None:
    described("9.9", "triton")(folder)
    other_cubin(folder)


def renamed(folder: Path) -> None:
    content = json.loads((folder / "bundle.json").read_text())
    described({f"{k}_more": v for k, v in content["grids"].items()}, "grids")(folder)


def constants(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        with np.load(folder / "constants.npz") as held:
            arrays = {n: held[n] for n in held.files}
        name = next(iter(arrays))
        made = arrays[name] + np.float32(changes.get("plus", 0))
        made[made == 0] = changes.get("zero", 0.0)
        arrays[name] = made.view(changes.get("view", made.dtype))
        arrays |= dict.fromkeys(changes.get("more", ()), arrays[name])
        np.savez(folder / "constants.npz", **arrays)

    return change


def negated(name: str) -> Change:
    """Another program in a file, of the same type."""

    def change(folder: Path) -> None:
        graph = read_mlir((folder / name).read_text())
        made = Value(graph.outputs[0].type)
        node = Node("neg", (graph.outputs[0],), (made,), {})
        (folder / name).write_text(to_text(replace(graph, nodes=[*graph.nodes, node], outputs=[made])))

    return change


def of_another_program(name: str) -> Change:
    """The program of `certificate.json` called `name` is another one, with its hash."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "certificate.json").read_text())
        other = content["first" if name == "second" else "second"]
        put("certificate.json", other, name)(folder)

    return change


_SAME = "self.expect(same_source(self.text(name), text), name, "
_SCHEDULE, _MADE = "expected 'schedule.json' as the ", "expected '{}' as "
MAKING = {
    **{
        name: Case(_SAME, "self.expect(True, name, ", edited(name, old, new), f"'{name}' as its programs give it", after)
        for name, old, new, after in (("kernels.py", "tl.exp2", "tl.exp2(0.0) * tl.exp2", ""),
                                      ("launch.py", "torch.empty", "torch.zeros", ""),
                                      ("reference.py", "return (", "return 2 * (", ""))
    },
    **{
        name: Case('self.expect(same, name, "this version', 'self.expect(True, name, "this version',
                   edited(name, old, new), f"'{name}' as this version of superopt has it")
        for name, old, new in (("run.py", "return 0 if passed", "return 0 if 1"), ("checking.py", "FACTOR = 4.0", "FACTOR = 4e9"),
                               ("widening.py", "import", "import os\nimport"))
    },
    "constants": Case("m.tobytes() == a.tobytes()", "True", constants(plus=1), "'constants.npz' as the programs have it"),
    "signs of zeros": Case("m.tobytes() == a.tobytes()", "np.array_equal(m, a)", constants(zero=-0.0), "'constants.npz' as the programs have it"),
    "types of constants": Case("(m.dtype, m.shape) == (a.dtype, a.shape)", "True", constants(view=np.int32), "'constants.npz' as the programs have it"),
    "more constants": Case("sorted(held.files) == sorted(expected) and ", "", constants(more=["more"]), "'constants.npz' as the programs have it"),
    "unknown files": Case("if unknown := sorted(listed - needed - {*_OPTIONAL})", "if unknown := []",
                          lambda f: (f / "numpy.py").write_text("1"), "expected the files of a bundle, got 'numpy.py'"),
    "names of kernels": Case('self.expect(list(self.described["grids"]) == called,', "self.expect(True,", renamed,
                             "'bundle.json' as its kernels are called"),
    "grids": Case('self.expect(_nameless(made) == _nameless(stated), "bundle.json"', 'self.expect(True, "bundle.json"',
                  described([99, 1, 1], "grids", "*"), "'bundle.json' as the program gives it"),
    "scales": Case('self.expect(_nameless(made) == _nameless(stated), "bundle.json"', 'self.expect(True, "bundle.json"',
                   described(0.001, "inputs", 0, "scale"), "'bundle.json' as the program gives it"),
    "shapes": Case('_nameless(made) == _nameless(stated), "shapes.json"', 'True, "shapes.json"',
                   put("shapes.json", 1, "compiled", "*", "registers"), "'shapes.json' as the program"),
    "original": Case('self.expect(same, "original.mlir"', 'self.expect(True, "original.mlir"', negated("original.mlir"),
                     "'original.mlir' as the program is"),
    "optimized of schedule": Case("""self.expect(same, "schedule.json", "'optimized.mlir' is")""", "pass", negated("optimized.mlir"),
                                  _SCHEDULE.replace("the ", "'optimized.mlir' is"), "'certificate.json' as 'optimized.mlir' is"),
    "program of schedule": Case("stated.program_sha256 == program_hash(original)", "True", put("schedule.json", "0" * 64, "program_sha256"),
                                _SCHEDULE + "program is"),
    "target of schedule": Case("[stated.target] == self.targets", "True", put("schedule.json", "sm_80", "target"), _SCHEDULE + "target is"),
    "launches": Case('self.expect(same, "schedule.json", "the kernels are launched")', "pass", put("schedule.json", {}, "launches"),
                     _SCHEDULE + "kernels are launched", "schedule.json' as 'lowered.mlir' is"),
    "lowered of schedule": Case("""self.expect(same, "schedule.json", "'lowered.mlir' is")""", "pass",
                                put("schedule.json", {"none": 4}, "parameters"), "schedule.json' as "),
    "record": Case('self.expect(plain(stated) == plain(record), "artifact.json"', 'self.expect(True, "artifact.json"',
                   put("artifact.json", True, "*", "formal"), "'artifact.json' as it was verified"),
    "fields of the record": Case('_dumped(stated.model_dump(mode="json")) == _dumped(text[target])', "True",
                                 lambda f: without(f, "artifact.json", "*", "version"), "'artifact.json' as superopt writes it"),
    "fields": Case('_dumped(made.model_dump(mode="json")) == _dumped(content)', "True",
                   lambda f: without(f, "schedule.json", "version"), "'schedule.json' as superopt writes it"),
    "targets of the record": Case('self.expect(set(text) == set(found), "artifact.json"', 'self.expect(True, "artifact.json"',
                                  lambda f: put("artifact.json", 1, "sm_80")(f), "'artifact.json' as the targets are"),
    "TTIR": Case("record = verify_ttir(program, lowered, texts, seed=seed, ran=ran)", 'record = ArtifactRecord.model_validate(self.json("artifact.json")[target])',
                 kernel(".ttir", "arith.maxnumf", "arith.minnumf"), "expected 'out0_ptr' as the lowered program computes it", "ttir' as Triton makes it of the kernels"),
    "PTX": Case('self.expect(self.text(f"{place}.ptx") == again.ptx,', "self.expect(True,", other_ptx,
                "ptx' as Triton makes it of the TTIR"),
    "cubin": Case('self.expect(same, f"{place}.cubin"', 'self.expect(True, f"{place}.cubin"', other_cubin, "cubin' as Triton makes it"),
    "another Triton": Case('self.unchecked.append(f"{target}: {what}, made', 'str(f"{target}: {what}, made', other_triton,
                           "unchecked: sm_90: cubins, made by Triton 9.9", "unchecked: shapes.json"),
    "shared memory": Case('PtxText(self.text(f"{target}/{name}.ptx"), self.shared_bytes(f"{target}/{name}"))', 'PtxText(self.text(f"{target}/{name}.ptx"))',
                          lambda f: (other_triton(f), put("shapes.json", 0, "compiled", "*", "shared_bytes")(f)),
                          "of 0 in shared memory", "unchecked: sm_90"),
    "no shared memory": Case("good = type(found) is int and 0 <= found <= MOST_SHARED", "good, found = True, found or 0",
                             lambda f: (other_triton(f), put("shapes.json", None, "compiled", "*", "shared_bytes")(f)),
                             "'shapes.json' as the program", "of 0 in shared memory"),
    "program of the certificate": Case("stated.first.sha256 == program_hash(self.program)", "True", of_another_program("first"),
                                       "'certificate.json' as the program is", "expected a certificate that holds"),
    "result of the certificate": Case("""self.expect(same, "certificate.json", "'optimized.mlir' is")""", "pass", of_another_program("second"),
                                      "'certificate.json' as 'optimized.mlir' is", "expected a certificate that holds"),
    "bound": Case("if differences := replay(stated)", "if differences := []", put("certificate.json", 1e-30, "delta"),
                  "a certificate that holds, got one with delta"),
    "guarantee": Case("if differences := replay(stated)", "if differences := []", put("certificate.json", "bound", "guarantee"),
                      "a certificate that holds, got one with guarantee"),
    "operators": Case("if differences := replay(stated)", "if differences := []", put("certificate.json", [], "uninterpreted"),
                      "a certificate that holds, got one with uninterpreted"),
}  # fmt: skip


def without(folder: Path, name: str, *place: str) -> None:
    content: Any = json.loads((folder / name).read_text())
    at = content
    for step in place[:-1]:
        at = at[next(iter(at)) if step == "*" else step]
    del at[place[-1]]
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("name", MAKING)
def test_a_guard_of_making_again(made: tuple[Path, Path], bundle: Path, name: str) -> None:
    case = MAKING[name]
    case.change(bundle)
    listed(bundle)
    said = verdict(verifier, made[0], bundle)
    after = verdict(weakened(VERIFIER, case.guard, case.instead), made[0], bundle)
    assert re.search(case.said, said), said
    assert not re.search(case.said, after), after
    assert re.search(case.next_said, after) if case.next_said else after == "", after


def test_constants_lie_as_kernels_read_them() -> None:
    """Kernels take the address of a constant and no strides: the columns of a matrix are not its rows."""
    matrix, file = np.arange(6, dtype=np.float32).reshape(2, 3), io.BytesIO()
    np.savez(file, c=np.asfortranarray(matrix))
    without_guard = weakened(VERIFIER, "and m.flags.c_contiguous", "")
    found = [m.__dict__["_equal_arrays"](file.getvalue(), {"c": matrix}) for m in (verifier, without_guard)]
    assert found == [False, True]


def test_a_missing_cubin_is_noticed_where_nothing_makes_it_again(
    made: tuple[Path, Path], bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a bundle of another Triton, where ptxas is missing, cubins are not read."""

    def missing(*_: object) -> bytes:
        raise CompilationFailed("expected ptxas, got none")

    for module in (compile_module, verifier):
        monkeypatch.setattr(module, "assemble", missing)
    described("9.9", "triton")(bundle)
    next((bundle / "sm_90").glob("*.cubin")).unlink()
    listed(bundle)
    assert "a bundle with the file 'sm_90/" in verdict(verifier, made[0], bundle)
    without_guard = weakened(VERIFIER, "if missing := sorted(needed - listed)", "if missing := []")
    assert verdict(without_guard, made[0], bundle).startswith("unchecked: sm_90: cubins, made by Triton 9.9")


PROVING = {
    "proof": Case(
        'if verdict.certificate is None:\n            raise NotEquivalent(f"expected a bundle that computes the program: {verdict.counterexample}")\n        return',
        "return",
        edited("lowered.mlir", "tile.exp", "tile.neg"),
        "expected a bundle that computes the program: the programs differ",
        "expected a bundle that is numerically safe",
    ),
    "gate": Case(
        "if not measured.passed",
        "if False",
        edited("lowered.mlir", "tile.sub", "tile.add"),  # exponentials of twice the maximum: equal as reals
        "expected a bundle that is numerically safe",
        "expected 'artifact.json' as the targets are",
    ),
}


@pytest.mark.parametrize("name", PROVING)
def test_a_guard_of_proofs(made: tuple[Path, Path], bundle: Path, tmp_path: Path, name: str) -> None:
    """A bundle that is whole, of kernels that compute something else, or the same unsafely."""
    case = PROVING[name]
    case.change(bundle)
    lowered = read_mlir((bundle / "lowered.mlir").read_text())
    emitted = emit_program(lowered)
    folder = write_bundle(
        tmp_path / "made",
        original=read_program(made[0], Diagnostics()),
        lowered=lowered,
        compiled=compile_all(emitted.kernels, ["sm_90"]),
        emitted=emitted,
        lowered_mlir=to_text(lowered),
        artifact={},
    )
    said = verdict(verifier, made[0], folder)
    after = verdict(weakened(VERIFIER, case.guard, case.instead), made[0], folder)
    assert re.search(case.said, said), said
    assert re.search(case.next_said, after), after
