"""Keeps a store from growing without bound: beyond a limit, the least recently used entries are removed.

An entry's manifest is as old as its last use (lookups touch it). Files are shared between entries, so one goes
with the last manifest that names it. Writers hold the lock together, from their first file to the manifest that
names it; eviction needs it alone, and is left to another process where it cannot have it at once. A reader in
the middle of an entry that goes finds it damaged, which counts as absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

from superopt.store.records import MANIFEST_BYTES, SHA, Damaged, parse_manifest, read_file

DEFAULT_LIMIT = 4 << 30
_KEPT = 0.8  # of the limit, so that not every publication evicts
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)")


def limit() -> int:
    """`$SUPEROPT_STORE_LIMIT` in bytes, by default 4 GiB; ValueError if that is not a size."""
    text = os.environ.get("SUPEROPT_STORE_LIMIT", "")
    if not text:
        return DEFAULT_LIMIT
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"expected $SUPEROPT_STORE_LIMIT as bytes, or with K, M, G or T, got '{text[:80]}'")
    return int(found[1]) << 10 * (" KMGT".index(found[2]) if found[2] else 0)


@contextlib.contextmanager
def writing(folder: Path) -> Generator[None]:
    """While it is open, nothing is evicted."""
    with _locked(folder, fcntl.LOCK_SH):
        yield


def keep_below(folder: Path, most: int) -> None:
    """Bring the store to at most `most` bytes, where that is possible; the entry used last always stays."""
    with contextlib.suppress(OSError):  # a writer is at work, or the file system refuses: try another time
        if sum(_sizes(folder).values()) > most:
            with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                _evict(folder, int(most * _KEPT))


def _evict(folder: Path, most: int) -> None:
    sizes = _sizes(folder)
    total = sum(sizes.values())
    named = {path: _files(path) for path in sizes if path.parent.parent.name == "entries"}
    users = Counter(file for files in named.values() for file in files)

    def remove(path: Path) -> None:
        nonlocal total
        path.unlink(missing_ok=True)
        total -= sizes.pop(path, 0)

    for path in [p for p in sizes if p not in named and p.name not in users]:
        remove(path)  # what a killed writer left, which no entry names
    *old, _ = sorted(named, key=_last_use) or [None]
    for path in (p for p in old if p is not None):
        if total <= most:
            break
        remove(path)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        for file in named[path]:
            users[file] -= 1
            if not users[file]:
                remove(folder / "objects" / file[:2] / file)


def _sizes(folder: Path) -> dict[Path, int]:
    """Every object and manifest with its size."""
    found: dict[Path, int] = {}
    for kind in ("objects", "entries"):
        for path in (folder / kind).glob("*/*"):
            if SHA.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    found[path] = path.stat().st_size
    return found


def _files(manifest: Path) -> set[str]:
    try:
        named = parse_manifest(read_file(manifest, MANIFEST_BYTES), manifest.name)
    except Damaged:
        return set()
    return {sha for sha, _ in named.files.values()}


def _last_use(manifest: Path) -> float:
    try:
        return manifest.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextlib.contextmanager
def _locked(folder: Path, how: int) -> Generator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)
