"""A store of results: what was found once is not searched for again, by this process or another.

    objects/ab/abcd...        immutable files, named by the sha256 of what they hold
    entries/KEY/MANIFEST      one result: JSON that names its files by hash; its own name is its sha256
    index.sqlite              which entry is the best of a key; a cache, rebuilt if it is damaged
    tmp/                      files being written; renamed to their place when whole
    lock                      held by writers together, and alone by what removes old entries

A key is everything that the result depends on: program (with shapes and dtypes), target, versions, policy.
Files are written whole, synchronised and renamed, so that a process killed at any moment, a full disk or a
second writer leave each entry either whole or absent. Everything read is checked against its hash, and what
fails is dropped. Contents are data: nothing here runs them, names are checked before they become paths, and
sizes are bounded: beyond a limit the least recently used entries go (`eviction`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from platformdirs import user_cache_path

from superopt.errors import Location
from superopt.store import eviction
from superopt.store.records import (
    MANIFEST_BYTES,
    SHA,
    VERSION,
    Damaged,
    Entry,
    Key,
    Manifest,
    StoreUnavailable,
    available,
    check_files,
    parse_manifest,
    read_file,
    read_key,
    read_member,
    sha256,
    to_json,
    unavailable,
)


def _no_export(path: Path | str, got: str) -> StoreUnavailable:
    expected = "expected a zip that superopt-store export wrote"
    return StoreUnavailable(f"{expected}, got {got[0].lower()}{got[1:]}", Location(str(path)))


_STALE_SECONDS = 24 * 3600
_BUSY_SECONDS = 30.0


def default_folder() -> Path:
    """`$SUPEROPT_STORE`, or `superopt` in the user's cache folder; RuntimeError for a user without a home."""
    if given := os.environ.get("SUPEROPT_STORE"):
        return Path(given)
    Path.home()
    return user_cache_path("superopt", appauthor=False)


def chosen_folder(option: str | None) -> Path | None:
    """The folder that the option `store` means: "default" is `default_folder`; None where none is wanted."""
    if option != "default":
        return Path(option) if option and option != "none" else None
    if os.environ.get("SUPEROPT_STORE") == "none":
        return None
    try:
        return default_folder()
    except RuntimeError:  # a user without a home
        return None


class Store:
    """The store in `folder`, which is made when something is published.

    Any number of processes may use one store at once. Raises StoreUnavailable where the file system refuses.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()

    # --- reading

    def lookup(
        self,
        key: Key,
        *,
        effort: float = 0.0,
        accepted: Callable[[Mapping[str, bytes]], bool] = lambda _: True,
    ) -> Entry | None:
        """The best entry of `key` that at least `effort` seconds were spent on, or None.

        Those whose files are not `accepted` count as absent, and so do damaged ones, which are removed where the
        store can be written.
        """
        digest = key.digest
        names = self._names(digest)
        if (first := self._indexed(digest)) in names:
            names.remove(first)
            names.insert(0, first)
        best: Entry | None = None
        for name in names:
            try:
                manifest = self._manifest(digest, name)
                if manifest.effort < effort or (best is not None and best.seconds <= manifest.seconds):
                    continue
                found = self._entry(manifest)
            except Damaged:
                with contextlib.suppress(OSError):
                    self._path(digest, name).unlink()
                continue
            if not accepted(found.files):
                continue
            best = found
            with contextlib.suppress(OSError):  # a read-only store evicts nothing, either
                os.utime(self._path(digest, name))
        return best

    def entries(self, key: Key) -> list[Entry]:
        """Every whole entry of `key`, in the order of their names."""
        digest, found = key.digest, list[Entry]()
        for name in self._names(digest):
            with contextlib.suppress(Damaged):
                found.append(self._entry(self._manifest(digest, name)))
        return found

    def keys(self) -> list[dict[str, object]]:
        """The key of every entry, as JSON."""
        found: list[dict[str, object]] = []
        for digest, name in self._all():
            with contextlib.suppress(Damaged):
                found.append(self._manifest(digest, name).key)
        return found

    def manifests(self) -> Iterator[tuple[Manifest, float]]:
        """What every entry consists of, and when it was last used, in seconds of `time.time()`."""
        for digest, name in self._all():
            with contextlib.suppress(Damaged, FileNotFoundError):
                yield self._manifest(digest, name), self._path(digest, name).stat().st_mtime

    def file(self, manifest: Manifest, name: str) -> bytes:
        """One file of an entry; raises Damaged where it is none, or not as it was written."""
        sha, size = manifest.files.get(name, ("", 0))
        if not sha:
            raise Damaged(name)
        data = read_file(self._object(sha), size)
        if len(data) != size or sha256(data) != sha:
            raise Damaged(name)
        return data

    def check(self) -> list[str]:
        """What is damaged, as `KEY/MANIFEST`; every file of every entry is read."""
        damaged: list[str] = []
        for digest, name in self._all():
            try:
                self._entry(self._manifest(digest, name))
            except Damaged:
                damaged.append(f"{digest}/{name}")
        return damaged

    def _all(self) -> Iterator[tuple[str, str]]:
        root = self.folder / "entries"
        with available():
            digests = sorted(p.name for p in root.iterdir()) if root.is_dir() else []
        for digest in digests:
            if SHA.fullmatch(digest):
                for name in self._names(digest):
                    yield digest, name

    def _names(self, digest: str) -> list[str]:
        try:
            found = sorted(p.name for p in (self.folder / "entries" / digest).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unavailable(error) from None
        return [n for n in found if SHA.fullmatch(n)]

    def _path(self, digest: str, name: str) -> Path:
        return self.folder / "entries" / digest / name

    def _object(self, sha: str) -> Path:
        return self.folder / "objects" / sha[:2] / sha

    def _manifest(self, digest: str, name: str) -> Manifest:
        manifest = parse_manifest(read_file(self._path(digest, name), MANIFEST_BYTES), name)
        if sha256(to_json(manifest.key)) != digest:
            raise Damaged("an entry of another key")
        return manifest

    def _entry(self, manifest: Manifest) -> Entry:
        files: dict[str, bytes] = {}
        for name, (sha, size) in manifest.files.items():
            data = read_file(self._object(sha), size)
            if len(data) != size or sha256(data) != sha:
                # Wrong contents under an immutable name would never be written again: remove them.
                with contextlib.suppress(OSError):
                    self._object(sha).unlink()
                raise Damaged(name)
            files[name] = data
        return Entry(files, manifest.seconds, manifest.effort)

    # --- writing

    def publish(self, key: Key, files: Mapping[str, bytes], *, seconds: float, effort: float = 0.0) -> None:
        """Add a result; of several with one key, lookups return the one with the fewest `seconds`.

        Raises StoreUnavailable, having changed nothing that can be seen, where it cannot be written;
        ValueError for names or sizes that the store does not accept.
        """
        check_files({name: len(data) for name, data in files.items()})
        digest = key.digest
        record = {
            "version": VERSION,
            "key": key.record(),
            "seconds": seconds,
            "effort": effort,
            "files": {name: [sha256(data), len(data)] for name, data in sorted(files.items())},
        }
        text = to_json(record)
        if len(text) > MANIFEST_BYTES:
            raise ValueError(f"expected a manifest of at most {MANIFEST_BYTES} bytes, got {len(text)}")
        most = eviction.limit()
        with available(), eviction.writing(self.folder):
            self._clean()
            for data in files.values():
                self._write(self._object(sha256(data)), data)
            self._write(self._path(digest, sha256(text)), text)
        self._index(digest, sha256(text), seconds)
        eviction.keep_below(self.folder, most)

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file whole, or not at all; an existing one has the contents that its name says."""
        if path.is_file() and path.read_bytes() == data:
            return
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=temporary)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _clean(self) -> None:
        """Remove what killed writers left behind."""
        temporary = self.folder / "tmp"
        if not temporary.is_dir():
            return
        for path in temporary.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    # --- the index

    def _indexed(self, digest: str) -> str:
        path = self.folder / "index.sqlite"
        if not path.is_file():
            return ""
        try:
            uri = f"{path.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as database:
                row = database.execute("SELECT manifest FROM best WHERE key = ?", (digest,)).fetchone()
        except sqlite3.Error:
            return ""  # the entries' files are the truth
        return str(row[0]) if row else ""

    def _index(self, digest: str, manifest: str, seconds: float) -> None:
        path = self.folder / "index.sqlite"
        for _ in range(2):
            try:
                with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)) as database:
                    database.execute("BEGIN IMMEDIATE")
                    database.execute(
                        "CREATE TABLE IF NOT EXISTS best (key TEXT PRIMARY KEY, manifest TEXT, seconds REAL)"
                    )
                    database.execute(
                        "INSERT INTO best VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
                        "manifest = excluded.manifest, seconds = excluded.seconds "
                        "WHERE excluded.seconds < best.seconds",
                        (digest, manifest, seconds),
                    )
                    database.execute("COMMIT")
                return
            except sqlite3.OperationalError:
                return  # busy or full: the entry is there without it
            except sqlite3.DatabaseError:
                with contextlib.suppress(OSError):
                    path.unlink()

    # --- moving entries between stores

    def export(self, path: Path | str) -> int:
        """Write every whole entry to one zip file, the same bytes for the same entries; returns their number."""
        count = 0
        members: dict[str, bytes] = {}
        for digest, name in self._all():
            with contextlib.suppress(Damaged):
                manifest = self._manifest(digest, name)
                entry = self._entry(manifest)
                members[f"entries/{digest}/{name}"] = self._path(digest, name).read_bytes()
                members |= {f"objects/{manifest.files[n][0]}": data for n, data in entry.files.items()}
                count += 1
        target = Path(path)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                for name in sorted(members):
                    archive.writestr(zipfile.ZipInfo(name), members[name], zipfile.ZIP_DEFLATED)
            os.replace(temporary, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise unavailable(error) from None
        return count

    def merge(self, path: Path | str) -> tuple[int, int]:
        """Add the entries of an exported file; returns how many were added or known, and how many damaged."""
        merged = dropped = 0
        try:
            with zipfile.ZipFile(path) as archive:
                names = set(archive.namelist())
                if names and not any(n.startswith("entries/") for n in names):
                    raise _no_export(path, "a zip of other files")
                for member in sorted(n for n in names if n.startswith("entries/")):
                    try:
                        self._merge_one(archive, member)
                        merged += 1
                    except (Damaged, ValueError, zipfile.BadZipFile):
                        dropped += 1
        except (OSError, zipfile.BadZipFile) as error:
            reason = isinstance(error, OSError) and error.strerror
            raise _no_export(path, reason or "a file of another kind") from None
        return merged, dropped

    def _merge_one(self, archive: zipfile.ZipFile, member: str) -> None:
        name = member.rpartition("/")[2]
        manifest = parse_manifest(read_member(archive, member, MANIFEST_BYTES), name)
        check_files({n: size for n, (_, size) in manifest.files.items()})
        files: dict[str, bytes] = {}
        for n, (sha, size) in manifest.files.items():
            files[n] = read_member(archive, f"objects/{sha}", size)
            if sha256(files[n]) != sha:
                raise Damaged(n)
        self.publish(read_key(manifest.key), files, seconds=manifest.seconds, effort=manifest.effort)
