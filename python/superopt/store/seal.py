"""Seals: what this user's superopt proved is told apart from what anybody may have written into a store.

A seal is an HMAC (RFC 2104, with SHA-256) of an entry's key and files, with a secret of the user that lies
outside of any store, is never exported, and that nobody else may read. Who can forge a seal can read the user's
private files, and need not forge. An entry without a valid seal, such as another user's or another machine's, is
not damaged: it is worth what an unproved entry is.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from platformdirs import user_state_path

FILE = "seal"
"""The name of the file in an entry that holds its seal."""
_BYTES = 32


def secret_path() -> Path:
    """Where the user's secret is."""
    return user_state_path("superopt", appauthor=False) / "secret"


def sealed(digest: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of an entry of the key `digest` with their seal; without one where there is no secret."""
    secret = _secret(make=True)
    return dict(files) if secret is None else {**files, FILE: _seal(secret, digest, files)}


def holds(digest: str, files: Mapping[str, bytes]) -> bool:
    """Whether the files of an entry of the key `digest` are as this user sealed them."""
    secret = _secret(make=False)
    others = {name: data for name, data in files.items() if name != FILE}
    return secret is not None and hmac.compare_digest(files.get(FILE, b""), _seal(secret, digest, others))


def _seal(secret: bytes, digest: str, files: Mapping[str, bytes]) -> bytes:
    # Names and hashes have fixed forms: no two entries give the same text.
    lines = [digest, *(f"{sha256(files[name]).hexdigest()} {name}" for name in sorted(files))]
    return hmac.new(secret, "\n".join(lines).encode(), sha256).hexdigest().encode()


def _secret(*, make: bool) -> bytes | None:
    """The user's secret; None where it is missing, or where others may read or have written it.

    To `make` one replaces a file of the user that holds none, such as one that a full disk left empty.
    """
    path = secret_path()
    if not path.is_absolute():  # a user without a home
        return None
    if (found := _private(path)) is not None or not make:
        return found
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
            try:
                os.link(temporary, path)
            except FileExistsError:
                # Where another process was first, its secret is the one.
                if _private(path) is None and _is_own_file(path.lstat()):
                    os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return _private(path)


def _private(path: Path) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe is not waited for
    except OSError:
        return None
    try:
        about = os.fstat(handle)
        if not _is_own_file(about) or about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return None
        data = os.read(handle, _BYTES + 1)
    finally:
        os.close(handle)
    return data if len(data) == _BYTES else None


def _is_own_file(about: os.stat_result) -> bool:
    return stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid()
