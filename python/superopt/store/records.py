"""What a store holds, as bytes: keys, manifests, and the checks of what comes from outside."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import zipfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from superopt.errors import SuperoptError

VERSION = 1
MOST_FILES = 4096
MOST_FILE_BYTES = 64 << 20
MOST_ENTRY_BYTES = 256 << 20
MANIFEST_BYTES = 4 << 20
SHA = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,100}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,100}){0,7}")


class StoreUnavailable(SuperoptError):
    """A store that cannot be read or written now: a full disk, missing permissions, a foreign file."""


class Damaged(Exception):
    """A file of the store whose contents do not match its name."""


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
        return sha256(to_json(self.record()))

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
class Manifest:
    """What an entry consists of: its files by name, each as hash and size."""

    key: dict[str, object]
    seconds: float
    effort: float
    files: dict[str, tuple[str, int]]


def to_json(record: object) -> bytes:
    """Compact JSON, the same bytes for the same record."""
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    """The sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_file(path: Path, limit: int) -> bytes:
    """The contents of a file of at most `limit` bytes; raises Damaged for anything else."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise Damaged(str(path)) from error
    except OSError as error:
        raise unavailable(error) from None
    if len(data) > limit:
        raise Damaged(str(path))
    return data


def read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """The contents of a member of an archive, likewise."""
    try:
        with archive.open(name) as file:
            data = file.read(limit + 1)  # never more, whatever the archive claims
    except (KeyError, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise Damaged(name) from error
    if len(data) > limit:
        raise Damaged(name)
    return data


def parse_manifest(data: bytes, name: str) -> Manifest:
    """The manifest in `data`, whose name is its hash; raises Damaged if it is not one."""
    if sha256(data) != name:
        raise Damaged(name)
    try:
        record = json.loads(data)
        if record["version"] != VERSION:
            raise Damaged(name)
        files = {str(k): (str(sha), int(size)) for k, (sha, size) in record["files"].items()}
        manifest = Manifest(dict(record["key"]), float(record["seconds"]), float(record["effort"]), files)
        check_files({n: size for n, (_, size) in files.items()})
        read_key(manifest.key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(name) from error
    timed = math.isfinite(manifest.seconds) and math.isfinite(manifest.effort)
    if not timed or not all(SHA.fullmatch(sha) for sha, _ in files.values()):
        raise Damaged(name)
    return manifest


def read_key(record: Mapping[str, object]) -> Key:
    """A key from its record; raises ValueError if that is not one."""
    versions, policy = record["versions"], record["policy"]
    if set(record) != {"program", "target", "versions", "policy"}:
        raise ValueError("expected a key")
    if not isinstance(versions, dict) or not isinstance(policy, dict):
        raise ValueError("expected a key")
    return Key(str(record["program"]), str(record["target"]), versions, policy)  # type: ignore[reportUnknownArgumentType]


def check_files(sizes: Mapping[str, int]) -> None:
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


def unavailable(error: OSError) -> StoreUnavailable:
    """What the file system refused, as the error of a store."""
    return StoreUnavailable(f"expected a usable store, got: {error.strerror or error}")


@contextlib.contextmanager
def available() -> Generator[None]:
    """Turns errors of the file system into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise unavailable(error) from None
