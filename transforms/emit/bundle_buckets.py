"""Bundles of buckets: a folder with a bundle for each part of the ranges of some extents, and which takes what.

buckets.json            where each extent is found, the bounds of each bucket and its folder, hashes of files
n-1-64  n-65-512 ...    a bundle for each bucket, which is verified like any other
module.json  weights.pt    how a PyTorch module is called, and its weights (superopt.pytorch.saving)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from superopt.errors import BadInput
from superopt.numerics.runner import strict_json
from superopt.transforms.emit.dispatch import places_of
from superopt.transforms.emit.folders import in_one_step
from superopt.verify.certificate import Record

if TYPE_CHECKING:
    from superopt.run.outcome import Bucket, Outcome

FILE = "buckets.json"


class SavedBucket(Record):
    """A bucket: the least and the largest extent of each axis, and the folder of its bundle."""

    bounds: dict[str, tuple[int, int]]
    folder: str


class SavedBuckets(Record):
    """`buckets.json`: `places` are (argument, dimension, k) for each axis; `files` have their sha256."""

    version: Literal[1] = 1
    places: dict[str, tuple[int, int, int]]
    buckets: tuple[SavedBucket, ...]
    files: dict[str, str]


def save_buckets(
    folder: str | Path,
    buckets: Sequence[Bucket],
    extra: Mapping[str, bytes],
    save: Callable[[Path, Outcome], Path],
) -> Path:
    """Write the bundles of all buckets, by `save`, and `extra` files; returns the folder. Raises as `save`."""
    with in_one_step(folder) as temporary:
        listed: list[SavedBucket] = []
        for bucket in buckets:
            name = "_".join(f"{a.name}-{a.low}-{a.high}" for a in bucket.axes)
            save(temporary / name, bucket.outcome)
            listed.append(SavedBucket(bounds={a.name: (a.low, a.high) for a in bucket.axes}, folder=name))
        for name, data in extra.items():
            (temporary / name).write_bytes(data)
        files = [*(f"{b.folder}/bundle.json" for b in listed), *extra]
        places = {name: (p.argument, p.dim, p.times) for name, p in places_of(buckets[0].axes).items()}
        described = SavedBuckets(
            places=places,
            buckets=tuple(listed),
            files={n: hashlib.sha256((temporary / n).read_bytes()).hexdigest() for n in files},
        )
        (temporary / FILE).write_text(described.model_dump_json(indent=2) + "\n")
    return Path(folder).absolute()


def read_buckets(folder: Path) -> SavedBuckets | None:
    """What a folder says of its buckets, None where it has none; raises BadInput for what is not whole."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = strict_json(path.read_bytes())
        described = SavedBuckets.model_validate(content)
        if json.dumps(described.model_dump(mode="json")) != json.dumps(content):  # 2.0 is not 2
            raise ValueError("another spelling than superopt's")
        for name, digest in described.files.items():
            if not (folder / name).resolve().is_relative_to(folder.resolve()):
                raise BadInput(f"expected names of files in the bundle, got '{name}': {folder}")
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise BadInput(f"expected '{name}' as it was written, got another file: {folder}")
    except (ValueError, RecursionError, OSError) as error:
        what = str(error).splitlines()[0]
        raise BadInput(f"expected the buckets of a bundle in {path}, got: {what}") from None
    listed = {f"{b.folder}/bundle.json" for b in described.buckets}
    bounded = all(b.bounds.keys() == described.places.keys() for b in described.buckets)
    if not listed or not listed <= described.files.keys() or not bounded:
        raise BadInput(f"expected the buckets of a bundle in {path}, got others")
    return described
