"""The store as the pipeline uses it: a store that fails never fails a run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.store import seal
from superopt.store.folder import Store
from superopt.store.records import Entry, Key, StoreUnavailable

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics


def _run_key(program_sha256: str, target: str, policy: Mapping[str, str | int | float | bool]) -> Key:
    return Key(program_sha256, target, versions(), dict(policy))


def versions() -> dict[str, str]:
    """Those of the packages that results depend on."""
    return {name: _version(name) for name in ("superopt", "triton", "torch-mlir")}


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
    sealed: bool = False,
) -> Entry | None:
    """What an earlier run published for this program, target, policy and these versions; None where nothing
    can be had.

    Do not trust what it returns: replay its schedule, which proves it again. `sealed` leaves out whatever this
    user has not sealed (`superopt.store.seal`); what is left is as it was published.
    """
    key = _run_key(program_sha256, target, policy)

    def accepted(files: Mapping[str, bytes]) -> bool:
        return not sealed or seal.holds(key.digest, files)

    try:
        return Store(folder).lookup(key, effort=effort, accepted=accepted)
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
    sealed: bool = False,
) -> bool:
    """Publish a run's files (schedule, certificate, report); False, and a warning, where that fails."""
    key = _run_key(program_sha256, target, policy)
    try:
        files = seal.sealed(key.digest, files) if sealed else files
        if sealed and seal.FILE not in files:  # nobody would believe it
            raise StoreUnavailable(f"expected a secret that only the user can read in {seal.secret_path()}")
        Store(folder).publish(key, files, seconds=seconds, effort=effort)
    except (StoreUnavailable, ValueError) as error:
        diagnostics.warning(f"the result was not stored: {getattr(error, 'message', error)}")
        return False
    return True
