"""Ranges of extents in buckets: each has kernels of its own, a dispatcher chooses, outside nothing runs or the
original."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from weakened import weakened

import superopt
from superopt.diagnostics import Diagnostics
from superopt.errors import BadInput, BadOption, NotEquivalent, UnsupportedProgram
from superopt.inputs.programs import read_any
from superopt.run import buckets as run_buckets
from superopt.run.buckets import superoptimize_buckets
from superopt.run.ranged import AnotherProgram, axis, checked_at
from superopt.run.settings import Settings
from superopt.transforms.emit.bundle_buckets import read_buckets
from superopt.transforms.emit.compile import compile_ttir
from superopt.transforms.emit.ranged import written
from superopt.verify.bundle import verify_bundle
from superopt.verify.bundle_buckets import verify_buckets
from superopt.verify.ptx.check import PtxText
from superopt.verify.ranges import Family

torch: Any = pytest.importorskip("torch")
SETTINGS: dict[str, Any] = {"budget": 1, "store": None, "seed": 0, "against": "operators", "interpret": True}
LENGTHS = (1, 2, 7, 8, 9, 13, 31, 32, 53, 61, 63, 64)  # ends of buckets, their neighbours, primes


class Gate(torch.nn.Module):
    """Rows of any number."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.silu(x) * x


def marked(high: int = 64) -> Any:
    return ({0: torch.export.Dim("n", min=1, max=high)},)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def gate() -> Any:
    return superopt.optimize(
        Gate(), torch.randn(5, 16), dynamic_shapes=marked(), buckets=[1, 8, 64], **SETTINGS
    )


def right(module: Any, length: int) -> bool:
    x = torch.randn(length, 16)
    return torch.allclose(module(x), Gate()(x), rtol=1e-4, atol=1e-5)


def test_each_length_runs_the_kernels_of_its_bucket(gate: Any) -> None:
    bounds = [(b.axes[0].low, b.axes[0].high) for b in gate.outcome.buckets]
    assert bounds == [(1, 1), (2, 8), (9, 64)]
    first, *others = (b.outcome.ranged for b in gate.outcome.buckets)
    assert first is None  # one extent: kernels of fixed shapes
    assert [(r.record.axes[0].low, r.record.axes[0].high) for r in others] == bounds[1:]
    before = gate.calls["kernels"]
    for length in LENGTHS:
        assert right(gate, length), length
    assert gate.calls["kernels"] == before + len(LENGTHS)
    with pytest.raises(
        BadInput, match="expected n from 1 to 1, or n from 2 to 8, or n from 9 to 64, got n 65"
    ):
        gate(torch.randn(65, 16))
    with pytest.raises(BadInput, match=r"argument 0 \('x'\) of"):
        gate(torch.randn(3, 15))


def test_the_original_runs_outside_and_says_so_once(gate: Any) -> None:
    gate = pickle.loads(pickle.dumps(gate))
    gate.fallback = True
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert right(gate, 65)
        assert right(gate, 66)
        assert right(gate, 64)
    assert [str(w.message).partition(",")[0] for w in said] == [
        "superopt's Gate is called with other arguments than its kernels take"
    ]
    assert gate.calls == {"kernels": 1, "original": 2}


def test_a_bundle_has_one_for_each_bucket(gate: Any, tmp_path: Path) -> None:
    folder = gate.save(tmp_path / "gate")
    again = superopt.load(folder, interpret=True)
    for length in (1, 2, 8, 9, 61):
        assert right(again, length), length
    with pytest.raises(BadInput, match="got n 65"):
        again(torch.randn(65, 16))
    assert sorted(p.name for p in folder.iterdir()) == [
        "buckets.json", "module.json", "n-1-1", "n-2-8", "n-9-64", "weights.pt"
    ]  # fmt: skip
    assert gate.save(folder) == folder  # it may be replaced
    described = json.loads((folder / "buckets.json").read_text())
    described["buckets"][1]["bounds"]["n"] = [2, 9]  # its kernels know their range themselves
    (folder / "buckets.json").write_text(json.dumps(described))
    wider = superopt.load(folder, interpret=True)
    assert right(wider, 8)
    with pytest.raises(BadInput, match="expected n from 2 to 8, got 9"):
        wider(torch.randn(9, 16))
    wrong: dict[str, Any] = {"files": {}, "buckets": [], "places": {}, "version": 2}
    for entry, value in wrong.items():
        (folder / "buckets.json").write_text(json.dumps({**described, entry: value}))
        with pytest.raises(BadInput, match="expected the buckets of a bundle"):
            read_buckets(folder)
    (folder / "buckets.json").write_text(json.dumps(described))
    (folder / "n-2-8" / "bundle.json").write_text("{}")
    with pytest.raises(BadInput, match=r"expected 'n-2-8/bundle\.json' as it was written"):
        read_buckets(folder)
    shutil.rmtree(folder / "n-2-8")
    with pytest.raises(BadInput, match="expected the buckets of a bundle"):
        read_buckets(folder)


LINALG = """
func.func @f(%x: tensor<?x24xf32>) -> tensor<?x24xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x24xf32>
  %0 = tensor.empty(%n) : tensor<?x24xf32>
  %1 = linalg.exp ins(%x : tensor<?x24xf32>) outs(%0 : tensor<?x24xf32>) -> tensor<?x24xf32>
  return %1 : tensor<?x24xf32>
}
"""


def test_a_linalg_program_in_buckets() -> None:
    made = superopt.optimize(LINALG, dynamic="n=1..8..64", budget=1, store=None, against="operators")
    assert [(b.axes[0].low, b.axes[0].high) for b in made.outcome.buckets] == [(1, 8), (9, 64)]
    for length in LENGTHS:
        x = torch.randn(length, 24)
        assert torch.allclose(made(x), torch.exp(x), rtol=1e-4), length
    with pytest.raises(BadInput, match="got n 65"):
        made(torch.randn(65, 24))
    assert Settings(dynamic="n=1..auto..64").halves
    for wrong in ("n=1..", "n=1..2..x", "n=auto..3", "n=1..auto"):
        with pytest.raises(BadOption, match="expected bounds as in"):
            Settings(dynamic=wrong)


TWICE = """
func.func @f(%x: tensor<?x24xf32> {superopt.extents = ["2 * n"]}) -> tensor<?x24xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x24xf32>
  %0 = tensor.empty(%n) : tensor<?x24xf32>
  %1 = linalg.exp ins(%x : tensor<?x24xf32>) outs(%0 : tensor<?x24xf32>) -> tensor<?x24xf32>
  return %1 : tensor<?x24xf32>
}
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """A program with twice an extent, in buckets of one extent and of seven: kernels, its file, its bundles."""
    folder = tmp_path_factory.mktemp("twice")
    (folder / "f.mlir").write_text(TWICE)
    made = superopt.optimize(
        folder / "f.mlir", dynamic="n=1..1..8", budget=1, store=None, against="operators"
    )
    return made, folder / "f.mlir", made.save(folder / "bundles")


def test_buckets_of_twice_an_extent(twice: Any) -> None:
    made, _, _ = twice
    assert [(b.axes[0].low, b.axes[0].high) for b in made.outcome.buckets] == [(1, 1), (2, 8)]
    for rows in (2, 4, 6, 14, 16):
        x = torch.randn(rows, 24)
        assert torch.allclose(made(x), torch.exp(x), rtol=1e-4), rows
    for rows in (1, 3, 5, 15, 17, 18):
        with pytest.raises(BadInput, match="expected"):
            made(torch.randn(rows, 24))


def test_the_bundles_of_all_buckets_are_verified(twice: Any) -> None:
    _, path, folder = twice
    program = read_any(path, Diagnostics())
    records, covered = verify_buckets(program, folder, seed=0)
    assert list(records) == ["n from 1 to 1", "n from 2 to 8"]
    assert not any(record.unchecked for record in records.values())
    assert covered == "n from 1 to 8: all"
    # Given at one extent, the program is resized.
    at = read_any(folder / "n-2-8" / "original.mlir", Diagnostics())
    records, _ = verify_buckets(at, folder, seed=0)
    assert ["resized" in str(record.unchecked) for record in records.values()] == [False, True]
    others = [text.replace(*change) for text in (TWICE,) for change in ((".exp", ".tanh"), ("2 * n", "n"))]
    for text in others:
        path.with_name("other.mlir").write_text(text)
        with pytest.raises((NotEquivalent, BadInput)):
            verify_buckets(read_any(path.with_name("other.mlir"), Diagnostics()), folder, seed=0)
        with pytest.raises((NotEquivalent, BadInput)):
            verify_bundle(read_any(path.with_name("other.mlir"), Diagnostics()), folder / "n-2-8", seed=0)


def described(folder: Path, change: Callable[[Any], object]) -> None:
    content = json.loads((folder / "buckets.json").read_text())
    change(content)
    (folder / "buckets.json").write_text(json.dumps(content))


def twice_listed(folder: Path) -> None:
    """The second bucket, which is as good as before, is there twice."""
    shutil.copytree(folder / "n-2-8", folder / "again")

    def change(content: Any) -> None:
        content["buckets"].append({**content["buckets"][1], "folder": "again"})
        content["files"]["again/bundle.json"] = content["files"]["n-2-8/bundle.json"]

    described(folder, change)


def linked(folder: Path) -> None:
    """What a module has is a link, though to a file of the bundle."""
    (folder / "module.json").symlink_to(folder / "n-2-8" / "shapes.json")
    digest = hashlib.sha256((folder / "module.json").read_bytes()).hexdigest()
    described(folder, lambda content: content["files"].update({"module.json": digest}))


def placed_elsewhere(folder: Path) -> None:
    described(folder, lambda content: content["places"].update(n=[0, 0, 1]))


def one_more(folder: Path) -> None:
    shutil.copytree(folder / "n-2-8", folder / "n-9-64")


def one_more_file(folder: Path) -> None:
    (folder / "run.py").write_text("")


def one_more_of_a_module(folder: Path) -> None:
    (folder / "module.json").write_text("{}")


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1\n", "1.0\n"),
        ("1\n", "true\n"),
        ("8\n", '"8"\n'),
        ('"places"', '"places": {"n": [0, 0, 1]},\n  "places"'),
        ('"version": 1,', ""),
        ("1\n", "NaN\n"),
    ],
)
def test_buckets_are_spelled_as_superopt_does(twice: Any, tmp_path: Path, old: str, new: str) -> None:
    """Other readers could take another spelling for something else, such as the first of two keys."""
    folder = Path(shutil.copytree(twice[2], tmp_path / "bundles"))
    replaced("buckets.json", old, new)(folder)
    with pytest.raises(BadInput, match="expected the buckets of a bundle"):
        read_buckets(folder)


@pytest.mark.parametrize("extent", [1 << 31, 10**30])
def test_an_extent_that_no_tensor_has_is_refused(twice: Any, tmp_path: Path, extent: int) -> None:
    folder = Path(shutil.copytree(twice[2], tmp_path / "bundles"))
    bounds(0, extent, extent)(folder)
    with pytest.raises(BadInput, match=f"expected bounds of extents, got n from {extent}"):
        verify_buckets(read_any(twice[1], Diagnostics()), folder, seed=0)


def test_an_extent_that_only_a_bucket_names_is_refused(twice: Any, tmp_path: Path) -> None:
    at = read_any(twice[2] / "n-2-8" / "original.mlir", Diagnostics())
    folder = Path(shutil.copytree(twice[2], tmp_path / "bundles"))
    for name in ("range.json", "bundle.json"):
        text = (folder / "n-2-8" / name).read_text()
        (folder / "n-2-8" / name).write_text(text.replace('"n"', '"m"'))
    inner = json.loads((folder / "n-2-8" / "bundle.json").read_text())
    digest = hashlib.sha256((folder / "n-2-8" / "range.json").read_bytes()).hexdigest()
    inner["files"]["range.json"] = digest
    (folder / "n-2-8" / "bundle.json").write_text(json.dumps(inner))
    digest = hashlib.sha256((folder / "n-2-8" / "bundle.json").read_bytes()).hexdigest()
    described(folder, lambda content: content["files"].update({"n-2-8/bundle.json": digest}))
    with pytest.raises(BadInput, match="expected extents called n, got 'm'"):
        verify_buckets(at, folder, seed=0)


def bounds(number: int, low: int, high: int) -> Callable[[Path], None]:
    return lambda folder: described(folder, lambda c: c["buckets"][number]["bounds"].update(n=[low, high]))


@pytest.mark.parametrize(
    ("change", "said", "guard", "next_said"),
    [
        (twice_listed, "without extents in common", "all(a.bounds[n][0] <= b.bounds[n][1]", ""),
        (bounds(1, 2, 9), "the bounds that are proved", "proved !=", ""),
        (bounds(1, 3, 8), "the bounds that are proved", "proved !=", ""),
        (bounds(0, 0, 1), "of extents, got n from 0 to 1", "not (name.isidentifier()", "a bundle for ranges"),
        (placed_elsewhere, "n where the program has it", "stated.places.get(name) not in places", ""),
        (one_more, "got 'n-9-64'", "path.name not in known", "expected files and folders of a bundle"),
        (one_more_file, "got 'run.py'", "path.name not in known", ""),
        (one_more_of_a_module, "got 'module.json'", "path.name in MODULE and", ""),
        (linked, "expected files and folders of a bundle", "path.is_symlink() or", ""),
    ],
)
def test_each_guard_of_the_folder_stops_something(
    twice: Any, tmp_path: Path, change: Callable[[Path], object], said: str, guard: str, next_said: str
) -> None:
    """Without the guard that is believed, but for what the next one stops."""
    _, path, folder = twice
    program = read_any(path, Diagnostics())
    change(shutil.copytree(folder, tmp_path / "bundles"))
    with pytest.raises((BadInput, NotEquivalent), match=said):
        verify_buckets(program, tmp_path / "bundles", seed=0)
    instead = f"False and {guard}" if not guard.endswith("or") else "False or"
    without: Any = weakened("superopt.verify.bundle_buckets", guard, instead)
    if next_said:
        with pytest.raises((BadInput, NotEquivalent), match=next_said):
            without.verify_buckets(program, tmp_path / "bundles", seed=0)
    else:
        without.verify_buckets(program, tmp_path / "bundles", seed=0)


def test_offsets_hold_the_largest_extent_not_only_the_one_searched_at(twice: Any) -> None:
    """With 48 elements for each of n, those at 2**26 need 33 bits."""
    outcome = twice[0].outcome
    for most, fits in (((1 << 31) // 48, True), ((1 << 31) // 48 + 1, False), (1 << 26, False)):
        family = Family(outcome.original, outcome.lowered, [axis("n", 2, most, [(0, 0, 2)])])
        if fits:
            assert written(family).kernels
        else:
            with pytest.raises(UnsupportedProgram, match="expected tensors of at most 2147483647 elements"):
                written(family)


def test_a_kernel_that_is_wrong_at_one_extent_is_refused(twice: Any, tmp_path: Path) -> None:
    """It is right wherever it runs: only that its TTIR is what Triton makes of the kernels stops it."""
    made, path, bundles = twice
    outcome, name = made.outcome, made.outcome.emitted.kernels[0].name
    proved = {n for e in outcome.ranged.record.extents for n in e.extents}
    hidden = min({*range(2, 9)} - proved)
    folder = Path(shutil.copytree(bundles / "n-2-8", tmp_path / "bundle"))
    ttir = (folder / "sm_90" / f"{name}.ttir").read_text()
    store = re.compile(r"tt\.store (%\w+), (%\w+) (.*)tensor<(\d+)x!tt\.ptr<f32>>")
    found = store.search(ttir)
    assert found is not None
    pointers, value, _, size = found.groups()
    planted = f"""%at = arith.constant {hidden} : i32
      %zero = arith.constant 0.0 : f32
      %one = arith.constant 1.0 : f32
      %is = arith.cmpi eq, %n, %at : i32
      %more = arith.select %is, %one, %zero : f32
      %mores = tt.splat %more : f32 -> tensor<{size}xf32>
      %wrong = arith.addf {value}, %mores : tensor<{size}xf32>
      """
    stored = found[0].replace(f"{pointers}, {value}", f"{pointers}, %wrong")
    wrong = ttir.replace(found[0], planted + stored)
    (kernel,) = outcome.emitted.kernels
    compiled = compile_ttir(name, wrong, "sm_90", num_warps=kernel.num_warps, num_stages=kernel.num_stages)
    ranged = outcome.ranged.record
    at = dict(
        zip(
            (a.name for a in ranged.axes),
            Family(outcome.original, outcome.lowered, ranged.axes).extents,
            strict=True,
        )
    )
    ptx = [PtxText(compiled.ptx, compiled.shared_bytes)]
    record = checked_at(outcome.original, outcome.lowered, outcome.emitted, [wrong], ptx, "sm_90", at)
    sizes = json.loads((folder / "shapes.json").read_text())
    for of in sizes["compiled"].values():
        of.update({k: getattr(compiled, k) for k in of})
    texts = {
        f"sm_90/{name}.ttir": wrong, f"sm_90/{name}.ptx": compiled.ptx, "shapes.json": json.dumps(sizes),
        "artifact.json": json.dumps({"sm_90": record.model_dump(mode="json")}),
    }  # fmt: skip
    changed = {**{n: text.encode() for n, text in texts.items()}, f"sm_90/{name}.cubin": compiled.cubin}
    described = json.loads((folder / "bundle.json").read_text())
    for file, data in changed.items():
        (folder / file).write_bytes(data)
        described["files"][file] = hashlib.sha256(data).hexdigest()
    (folder / "bundle.json").write_text(json.dumps(described))
    program = read_any(path, Diagnostics())
    with pytest.raises(
        NotEquivalent, match=rf"expected 'sm_90/{name}\.ttir' as Triton makes it of the kernels"
    ):
        verify_bundle(program, folder, seed=0)
    without: Any = weakened("superopt.verify.bundle", "same = same_ttir(", "same = True or same_ttir(")
    without.verify_bundle(program, folder, seed=0)


def test_a_program_is_one_for_all_extents(twice: Any) -> None:
    """One that is written otherwise at some extent is refused, even where it computes the same."""
    _, path, folder = twice
    program: Any = read_any(path, Diagnostics())
    negated = "linalg.negf ins({} : tensor<?x24xf32>) outs(%0 : tensor<?x24xf32>) -> tensor<?x24xf32>\n"
    other = TWICE.replace("return %1", f"%2 = {negated.format('%1')}  %3 = {negated.format('%2')}  return %3")
    path.with_name("negated.mlir").write_text(other)
    negated_twice: Any = read_any(path.with_name("negated.mlir"), Diagnostics())

    class Either:
        places = program.places

        def at(self, extents: Any, diagnostics: Any) -> Any:
            return (negated_twice if extents["n"] == 8 else program).at(extents, diagnostics)

    either: Any = Either()
    with pytest.raises(NotEquivalent, match="expected one program for all extents"):
        verify_bundle(either, folder / "n-2-8", seed=0)
    guard = "if program_hash(again) != program_hash(original) and min(extents) > 1:"
    weakened("superopt.verify.bundle", guard, "if False:").verify_bundle(either, folder / "n-2-8", seed=0)


OVER = axis("n", 1, 64, [(0, 0, 1)])


class Made:
    """What stands for the outcome of a search, which costs as the extent that it was searched at."""

    def __init__(self, high: int) -> None:
        self.ranged, self.high = object(), high


Refuse: TypeAlias = Callable[[int, int], UnsupportedProgram | None]
Cheaper: TypeAlias = Callable[[int, int], bool]


def halved(
    patch: pytest.MonkeyPatch, refuse: Refuse, cheaper: Cheaper | None = None
) -> list[tuple[int, int]]:
    """The bounds of the parts that get kernels. `refuse` says why one does not; `cheaper`, given the lows of a part
    and of the whole, whether it beats that."""

    def made(_read: Any, over: Any, *_: Any) -> Any:
        (part,) = over
        if error := refuse(part.low, part.high):
            raise error
        return Made(part.high)

    def is_cheaper(_: Any, bucket: Any, whole: Any) -> bool:
        return cheaper is not None and cheaper(bucket.axes[0].low, whole.axes[0].low)

    patch.setattr(run_buckets, "superoptimize_range", made)
    patch.setattr(run_buckets.Maker, "cheaper", is_cheaper)
    nothing: Any = None
    maker = run_buckets.Maker(nothing, Settings(store=None), nothing)
    kept = maker.halved((OVER,), run_buckets.MOST_HALVINGS, auto=cheaper is not None)
    return [(b.axes[0].low, b.axes[0].high) for b in kept]


def test_a_range_without_kernels_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = UnsupportedProgram("too wide")
    assert halved(monkeypatch, lambda low, high: None) == [(1, 64)]
    assert halved(monkeypatch, lambda low, high: wide if high - low > 60 else None) == [(1, 8), (9, 64)]
    # What stays without kernels is left out, as is a program that depends on the number.
    assert halved(monkeypatch, lambda low, high: wide if high > 32 else None) == [(1, 8), (9, 24)]
    assert halved(monkeypatch, lambda low, high: AnotherProgram("another")) == []


def test_a_range_is_halved_where_that_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    assert halved(monkeypatch, lambda low, high: None, lambda low, whole: False) == [(1, 64)]
    upper = halved(monkeypatch, lambda low, high: None, lambda low, whole: low > whole)
    assert upper == [(1, 2), (3, 8), (9, 24), (25, 64)]


def test_extents_without_kernels_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = run_buckets.superoptimize_range

    def refuse(read: Any, over: Any, *rest: Any) -> Any:
        if over[0].low < 5:
            raise UnsupportedProgram("for a reason")
        return real(read, over, *rest)

    monkeypatch.setattr(run_buckets, "superoptimize_range", refuse)
    said = "kernels do not take all of n from 1 to 16: only for n from 5 to 16; for a reason"
    with pytest.warns(UserWarning, match=f"superopt's Gate: {said}") as warned:
        made = superopt.optimize(Gate(), torch.randn(5, 16), dynamic_shapes=marked(16), **SETTINGS)
    assert [w.filename for w in warned] == [__file__]
    assert f"warning: {said}" in made.report.remarks
    assert right(made, 7)
    with pytest.raises(BadInput, match="expected n from 5 to 16, got 2"):
        made(torch.randn(2, 16))


def test_without_any_kernels_the_first_reason_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedProgram("for a reason")

    monkeypatch.setattr(run_buckets, "superoptimize_range", refuse)
    with pytest.raises(UnsupportedProgram, match="for a reason"):
        superoptimize_buckets(refuse, [OVER], {"n": [8]}, Settings(store=None), None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([8, 4], r"expected ascending ends of buckets of n, got \[8, 4\]"),
        ([8, 8], "expected ascending ends"),
        ([8, 128], r"expected buckets of n from 1 to 64 to end inside, got \[8, 128\]"),
        ([0, 8], "to end inside"),
        ({"m": [8]}, "expected buckets of n, got 'm'"),
        ("automatic", r"expected buckets by the names of extents \(n\), or 'auto', got 'automatic'"),
        ({"n": "auto"}, "expected buckets by the names"),
        ([2.5], "expected ascending ends"),
    ],
)
def test_ends_are_checked(given: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        superopt.optimize(Gate(), torch.randn(5, 16), dynamic_shapes=marked(), buckets=given, **SETTINGS)


def test_buckets_are_of_dynamic_shapes() -> None:
    with pytest.raises(BadOption, match="expected buckets with dynamic_shapes"):
        superopt.optimize(Gate(), torch.randn(5, 16), buckets=[8], **SETTINGS)
