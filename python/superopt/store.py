"""A store of results: what was found once is not searched for again, by this process or another.

    objects/ab/abcd...        immutable files, named by the sha256 of what they hold
    entries/KEY/MANIFEST      one result: JSON that names its files by hash; its own name is its sha256
    index.sqlite              which entry is the best of a key; a cache, built again where it is damaged
    tmp/                      files being written; renamed to their place when whole

A key is everything that the result depends on: program (with shapes and dtypes), target, versions, policy.
Files are written whole, synchronised and renamed, so that a process killed at any moment, a full disk or a
second writer leave each entry either whole or absent. Everything read is checked against its hash, and what
fails is dropped. Contents are data: nothing here runs them, names are checked before they become paths, and
sizes are bounded.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import sqlite3
import tempfile
import time
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics

VERSION = 1
MOST_FILES = 4096
MOST_FILE_BYTES = 64 << 20
MOST_ENTRY_BYTES = 256 << 20
_MANIFEST_BYTES = 4 << 20
_STALE_SECONDS = 24 * 3600
_BUSY_SECONDS = 30.0
_SHA = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,100}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,100}){0,7}")


class StoreUnavailable(SuperoptError):
    """A store that cannot be read or written now: a full disk, missing permissions, a foreign file."""


class _Damaged(Exception):
    """A file of the store that is not what its name says."""


@dataclass(frozen=True)
class Key:
    """What a result depends on; `policy` are the settings that change it."""

    program: str
    target: str
    versions: Mapping[str, str]
    policy: Mapping[str, str | int | float | bool]

    @property
    def digest(self) -> str:
        """sha256 of the key, the name of its entries."""
        return _sha(_json(self.record()))

    def record(self) -> dict[str, object]:
        """The key as JSON."""
        return {
            "program": self.program,
            "target": self.target,
            "versions": dict(self.versions),
            "policy": dict(self.policy),
        }


@dataclass(frozen=True)
class Entry:
    """One result: its files, its predicted or measured seconds, and the seconds spent to find it."""

    files: Mapping[str, bytes]
    seconds: float
    effort: float


@dataclass(frozen=True)
class _Manifest:
    key: dict[str, object]
    seconds: float
    effort: float
    files: dict[str, tuple[str, int]]


def default_folder() -> Path:
    """`$SUPEROPT_STORE`, or `superopt` in the user's cache folder; RuntimeError for a user without a home."""
    if given := os.environ.get("SUPEROPT_STORE"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "superopt"


def chosen_folder(option: str | None) -> Path | None:
    """The folder that the option `store` means: "default" is `default_folder`; None where none is wanted."""
    if option != "default":
        return Path(option) if option else None
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

    def lookup(self, key: Key, *, effort: float = 0.0) -> Entry | None:
        """The best entry of `key` that at least `effort` seconds were spent on, or None.

        Damaged entries count as absent, and are removed where the store can be written.
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
                best = self._entry(manifest)
            except _Damaged:
                with contextlib.suppress(OSError):
                    self._path(digest, name).unlink()
        return best

    def keys(self) -> list[dict[str, object]]:
        """The key of every entry, as JSON."""
        found: list[dict[str, object]] = []
        for digest, name in self._all():
            with contextlib.suppress(_Damaged):
                found.append(self._manifest(digest, name).key)
        return found

    def check(self) -> list[str]:
        """What is damaged, as `KEY/MANIFEST`; every file of every entry is read."""
        damaged: list[str] = []
        for digest, name in self._all():
            try:
                self._entry(self._manifest(digest, name))
            except _Damaged:
                damaged.append(f"{digest}/{name}")
        return damaged

    def _all(self) -> Iterator[tuple[str, str]]:
        root = self.folder / "entries"
        with _available():
            digests = sorted(p.name for p in root.iterdir()) if root.is_dir() else []
        for digest in digests:
            if _SHA.fullmatch(digest):
                for name in self._names(digest):
                    yield digest, name

    def _names(self, digest: str) -> list[str]:
        try:
            found = sorted(p.name for p in (self.folder / "entries" / digest).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unavailable(error) from None
        return [n for n in found if _SHA.fullmatch(n)]

    def _path(self, digest: str, name: str) -> Path:
        return self.folder / "entries" / digest / name

    def _object(self, sha: str) -> Path:
        return self.folder / "objects" / sha[:2] / sha

    def _manifest(self, digest: str, name: str) -> _Manifest:
        manifest = _parse_manifest(_read(self._path(digest, name), _MANIFEST_BYTES), name)
        if _sha(_json(manifest.key)) != digest:
            raise _Damaged("an entry of another key")
        return manifest

    def _entry(self, manifest: _Manifest) -> Entry:
        files: dict[str, bytes] = {}
        for name, (sha, size) in manifest.files.items():
            data = _read(self._object(sha), size)
            if len(data) != size or _sha(data) != sha:
                # Wrong contents under an immutable name would never be written again: remove them.
                with contextlib.suppress(OSError):
                    self._object(sha).unlink()
                raise _Damaged(name)
            files[name] = data
        return Entry(files, manifest.seconds, manifest.effort)

    # --- writing

    def publish(self, key: Key, files: Mapping[str, bytes], *, seconds: float, effort: float = 0.0) -> None:
        """Add a result; of several of one key, lookups give the one with the fewest `seconds`.

        Raises StoreUnavailable, having changed nothing that can be seen, where it cannot be written;
        ValueError for names or sizes that the store does not take.
        """
        _check_files({name: len(data) for name, data in files.items()})
        digest = key.digest
        record = {
            "version": VERSION,
            "key": key.record(),
            "seconds": seconds,
            "effort": effort,
            "files": {name: [_sha(data), len(data)] for name, data in sorted(files.items())},
        }
        text = _json(record)
        if len(text) > _MANIFEST_BYTES:
            raise ValueError(f"expected a manifest of at most {_MANIFEST_BYTES} bytes, got {len(text)}")
        with _available():
            self._clean()
            for data in files.values():
                self._write(self._object(_sha(data)), data)
            self._write(self._path(digest, _sha(text)), text)
        self._index(digest, _sha(text), seconds)

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file whole, or not at all; one that is there has the contents that its name says."""
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
            with contextlib.suppress(_Damaged):
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
            raise _unavailable(error) from None
        return count

    def merge(self, path: Path | str) -> tuple[int, int]:
        """Add the entries of an exported file; returns how many were added or known, and how many damaged."""
        merged = dropped = 0
        try:
            with zipfile.ZipFile(path) as archive:
                names = set(archive.namelist())
                for member in sorted(n for n in names if n.startswith("entries/")):
                    try:
                        self._merge_one(archive, member)
                        merged += 1
                    except (_Damaged, ValueError, zipfile.BadZipFile):
                        dropped += 1
        except (OSError, zipfile.BadZipFile) as error:
            raise StoreUnavailable(f"expected an exported store '{path}', got: {error}") from None
        return merged, dropped

    def _merge_one(self, archive: zipfile.ZipFile, member: str) -> None:
        name = member.rpartition("/")[2]
        manifest = _parse_manifest(_member(archive, member, _MANIFEST_BYTES), name)
        _check_files({n: size for n, (_, size) in manifest.files.items()})
        files: dict[str, bytes] = {}
        for n, (sha, size) in manifest.files.items():
            files[n] = _member(archive, f"objects/{sha}", size)
            if _sha(files[n]) != sha:
                raise _Damaged(n)
        self.publish(_key(manifest.key), files, seconds=manifest.seconds, effort=manifest.effort)


# --- helpers ----------------------------------------------------------------------------------------------


def _json(record: object) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise _Damaged(str(path)) from error
    except OSError as error:
        raise _unavailable(error) from None
    if len(data) > limit:
        raise _Damaged(str(path))
    return data


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    try:
        with archive.open(name) as file:
            data = file.read(limit + 1)  # never more, whatever the archive says of itself
    except (KeyError, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise _Damaged(name) from error
    if len(data) > limit:
        raise _Damaged(name)
    return data


def _parse_manifest(data: bytes, name: str) -> _Manifest:
    if _sha(data) != name:
        raise _Damaged(name)
    try:
        record = json.loads(data)
        if record["version"] != VERSION:
            raise _Damaged(name)
        files = {str(k): (str(sha), int(size)) for k, (sha, size) in record["files"].items()}
        manifest = _Manifest(dict(record["key"]), float(record["seconds"]), float(record["effort"]), files)
        _check_files({n: size for n, (_, size) in files.items()})
        _key(manifest.key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Damaged(name) from error
    if not all(_SHA.fullmatch(sha) for sha, _ in files.values()):
        raise _Damaged(name)
    return manifest


def _key(record: Mapping[str, object]) -> Key:
    versions, policy = record["versions"], record["policy"]
    if set(record) != {"program", "target", "versions", "policy"}:
        raise ValueError("expected a key")
    if not isinstance(versions, dict) or not isinstance(policy, dict):
        raise ValueError("expected a key")
    return Key(str(record["program"]), str(record["target"]), versions, policy)  # type: ignore[reportUnknownArgumentType]


def _check_files(sizes: Mapping[str, int]) -> None:
    """Names that stay in a folder wherever they are written to, and sizes within bounds."""
    if len(sizes) > MOST_FILES:
        raise ValueError(f"expected at most {MOST_FILES} files, got {len(sizes)}")
    for name, size in sizes.items():
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"expected a relative name of letters, digits, '.', '_', '-' and '/', got '{name[:80]}'"
            )
        if not 0 <= size <= MOST_FILE_BYTES:
            raise ValueError(f"expected files of at most {MOST_FILE_BYTES} bytes, got '{name}' of {size}")
    if sum(sizes.values()) > MOST_ENTRY_BYTES:
        raise ValueError(f"expected at most {MOST_ENTRY_BYTES} bytes in all, got {sum(sizes.values())}")


def _unavailable(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"expected a store that can be used, got: {error.strerror or error}")


@contextlib.contextmanager
def _available() -> Generator[None]:
    """Turns what the file system refuses into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise _unavailable(error) from None


# --- for the pipeline: a store that fails never fails a run -----------------------------------------------


def _run_key(program_sha256: str, target: str, policy: Mapping[str, str | int | float | bool]) -> Key:
    versions = {name: _version(name) for name in ("superopt", "triton", "torch-mlir")}
    return Key(program_sha256, target, versions, dict(policy))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def lookup(
    program_sha256: str,
    target: str,
    policy: Mapping[str, str | int | float | bool],
    diagnostics: Diagnostics,
    *,
    effort: float = 0.0,
    folder: Path | None = None,
) -> Entry | None:
    """What an earlier run published for this program, target, policy and these versions; None where nothing
    can be had.

    What is returned is not to be trusted: replay its schedule, which proves it again.
    """
    try:
        return Store(folder).lookup(_run_key(program_sha256, target, policy), effort=effort)
    except StoreUnavailable as error:
        diagnostics.warning(f"the store is not used: {error.message}")
        return None


def publish(
    program_sha256: str,
    target: str,
    policy: Mapping[str, str | int | float | bool],
    files: Mapping[str, bytes],
    diagnostics: Diagnostics,
    *,
    seconds: float,
    effort: float = 0.0,
    folder: Path | None = None,
) -> bool:
    """Publish a run's files (schedule, certificate, report); False, and a warning, where that fails."""
    try:
        Store(folder).publish(_run_key(program_sha256, target, policy), files, seconds=seconds, effort=effort)
    except (StoreUnavailable, ValueError) as error:
        diagnostics.warning(f"the result was not stored: {getattr(error, 'message', error)}")
        return False
    return True
