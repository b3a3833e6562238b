"""Checks the folder of a bundle for each bucket of some extents (`superopt.transforms.emit.bundle_buckets`).

Every bucket's bundle is verified like any other, against the program at its extents. `buckets.json` has to say of
each what its bundle says; no extents may lie in two buckets, and nothing may lie in the folder beside them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from superopt.diagnostics import Diagnostics
from superopt.errors import BadInput, NotEquivalent
from superopt.program import KernelGraph
from superopt.transforms.emit.bundle_buckets import FILE, SavedBuckets, read_buckets
from superopt.transforms.emit.ranged import MOST_ELEMENTS
from superopt.verify.allowance import MOST_WORK, OF_FOLDERS, allowed
from superopt.verify.bundle import MODULE, BundleRecord, Source, own_program, stands, verify_bundle
from superopt.verify.ranges import Axis, Family, RangeRecord

MOST_BUCKETS = 256


class Resized:
    """A program that is given at one extent of some axes, at others."""

    def __init__(self, program: KernelGraph, axes: Sequence[Axis]) -> None:
        self.axes, self.family = tuple(axes), Family(program, program, axes)

    def places(self, names: Sequence[str]) -> Mapping[str, Sequence[tuple[int, int, int]]]:
        """Those of the axes; raises BadInput for a name that is none of theirs."""
        known = {axis.name for axis in self.axes}
        if unknown := sorted(set(names) - known):
            raise BadInput(f"expected extents called {', '.join(sorted(known))}, got '{unknown[0]}'")
        return {axis.name: axis.places for axis in self.axes}

    def at(self, extents: Mapping[str, int], diagnostics: Diagnostics) -> KernelGraph:
        """The program at these extents."""
        return self.family.at(tuple(extents[axis.name] for axis in self.axes))[0]


def verify_buckets(
    program: KernelGraph | Source | None, folder: str | Path, *, seed: int | None = None, delta: float = 1e-9
) -> tuple[dict[str, BundleRecord], str]:
    """The record of each bucket's bundle, by its bounds in words, and which extents have a bucket.

    Without a program, they are compared with the `original.mlir` of the first one.
    Raises as `verify_bundle`, and NotEquivalent for buckets that are not what `buckets.json` says.
    """
    with allowed(OF_FOLDERS * MOST_WORK):
        return _verified(program, Path(folder), seed, delta)


def _verified(
    program: KernelGraph | Source | None, root: Path, seed: int | None, delta: float
) -> tuple[dict[str, BundleRecord], str]:
    stated = read_buckets(root)
    if stated is None:
        raise BadInput(f"expected the bundles of buckets, got a folder without {FILE}: {root}")
    _check_folder(root, stated)
    _check_bounds(root, stated)
    program = program or own_program(root / stated.buckets[0].folder)
    source = _resized(program, root, stated) if isinstance(program, KernelGraph) else program
    for name, places in source.places(tuple(stated.places)).items():
        if stated.places.get(name) not in places:
            raise NotEquivalent(f"expected {name} where the program has it, got it elsewhere: {root / FILE}")
    found: dict[str, BundleRecord] = {}
    for bucket in stated.buckets:
        fixed = {name: low for name, (low, high) in bucket.bounds.items() if low == high}
        record = verify_bundle(source, root / bucket.folder, seed=seed, delta=delta, fixed=fixed)
        proved = {a.name: (a.low, a.high) for a in record.ranged.axes} if record.ranged else {}
        if proved != {name: ends for name, ends in bucket.bounds.items() if name not in fixed}:
            raise NotEquivalent(
                f"expected '{FILE}' with the bounds that are proved, got others: {bucket.folder}"
            )
        found[_words(bucket.bounds)] = record
    return found, _covered(stated)


def _covered(stated: SavedBuckets) -> str:
    """The extents that have a bucket, in words."""
    ends = {name: [bucket.bounds[name] for bucket in stated.buckets] for name in stated.places}
    hull = {name: (min(low for low, _ in each), max(high for _, high in each)) for name, each in ends.items()}
    every, within = _count(hull), sum(_count(bucket.bounds) for bucket in stated.buckets)
    what = _words(hull)
    return f"{what}: all" if within == every else f"{what}: {within} of {every}; the others have no kernels"


def _check_folder(root: Path, stated: SavedBuckets) -> None:
    """Only buckets and what belongs to a module lie in the folder, and no links."""
    folders = [bucket.folder for bucket in stated.buckets]
    plain = all(Path(name).name == name and name not in (".", "..") for name in folders)
    if not plain or len(set(folders)) != len(folders) or len(folders) > MOST_BUCKETS:
        raise BadInput(f"expected a folder for each bucket, got: {', '.join(folders)[:80]}")
    known = {FILE, *MODULE, *folders}
    for path in sorted(root.iterdir()):
        if path.name not in known:
            raise BadInput(f"expected only what {FILE} lists, got '{path.name}': {root}")
        if path.is_symlink() or path.is_dir() != (path.name in folders):
            raise BadInput(f"expected files and folders of a bundle, got '{path.name}': {root}")
        if path.name in MODULE and path.name not in stated.files:
            raise BadInput(f"expected only what {FILE} lists, got '{path.name}': {root}")


def _check_bounds(root: Path, stated: SavedBuckets) -> None:
    """Bounds are ranges, and no two buckets have extents in common."""
    for bucket in stated.buckets:
        for name, (low, high) in bucket.bounds.items():
            if not (name.isidentifier() and 1 <= low <= high <= MOST_ELEMENTS):
                raise BadInput(f"expected bounds of extents, got {name} from {low} to {high}: {root / FILE}")
    for a, b in itertools.combinations(stated.buckets, 2):
        if all(a.bounds[n][0] <= b.bounds[n][1] and b.bounds[n][0] <= a.bounds[n][1] for n in stated.places):
            both = f"{_words(a.bounds)}, and {_words(b.bounds)}"
            raise NotEquivalent(f"expected buckets without extents in common, got {both}: {root / FILE}")


def _resized(program: KernelGraph, root: Path, stated: SavedBuckets) -> Resized:
    """The program at all extents, of which it is given at one; where they stand is what the buckets say."""
    known = {name: (place,) for name, place in stated.places.items()}
    for bucket in stated.buckets:
        try:
            text = (root / bucket.folder / "range.json").read_bytes()
            record = RangeRecord.model_validate_json(text)
        except FileNotFoundError:  # its extents do not vary
            continue
        except (OSError, ValidationError):
            raise BadInput(
                f"expected the ranges of a bucket, got something else: {root / bucket.folder}"
            ) from None
        known |= {axis.name: axis.places for axis in record.axes if axis.name in known}
    axes: list[Axis] = []
    for name, places in known.items():
        ends = [n for bucket in stated.buckets for n in bucket.bounds[name]]
        axis = Axis(name=name, low=min(ends), high=max(ends), places=places)
        if not stands(axis, program):
            raise NotEquivalent(
                f"expected '{FILE}' with {name} where the program has it, got it elsewhere: {root}"
            )
        axes.append(axis)
    return Resized(program, axes)


def _count(bounds: Mapping[str, tuple[int, int]]) -> int:
    return math.prod(high - low + 1 for low, high in bounds.values())


def _words(bounds: Mapping[str, tuple[int, int]]) -> str:
    return " and ".join(f"{name} from {low} to {high}" for name, (low, high) in bounds.items())
