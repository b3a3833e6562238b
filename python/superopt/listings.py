"""What the compiler makes of a kernel's source, each line with the line of the source that it comes from.

Triton names source lines in TTIR (`loc`), LLVM in PTX (`.loc`), and ptxas in the line table of a cubin, which
nvdisasm reads. Where a helper of Triton's library was inlined, its caller's line counts.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from superopt.errors import SuperoptError
from superopt.transforms.emit.compile import SOURCE_STARTS, Compiled

Listing: TypeAlias = list[tuple[str, int | None]]
"""Lines with their numbers in the kernel's source, from 1; None where a line has none."""

_DEFINED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_USED = re.compile(r" loc\(((?:[^()]|\([^()]*\))*)\)")
_PLACE = re.compile(r'"([^"]*)":(\d+):\d+')
_FILE = re.compile(r'\s*\.file\s+(\d+) "(.*)"')
_LOC = re.compile(r"\s*\.loc\s+(\d+) (\d+) \d+(?:.*inlined_at (\d+) (\d+))?")
_SASS = re.compile(r'\s*//## File "([^"]*)", line (\d+)')


class NoDisassembly(SuperoptError):
    """Triton's nvdisasm is missing, or rejects a cubin."""


def source(text: str) -> Listing:
    """The source itself."""
    return [(line, number) for number, line in enumerate(text.splitlines(), 1)]


def ttir(compiled: Compiled) -> Listing:
    """The Triton IR, without the locations that the numbers tell."""
    defined = _pairs(_DEFINED, compiled.ttir)
    found: Listing = []
    for line in compiled.ttir.splitlines():
        if not _DEFINED.match(line):
            used = _USED.findall(line)
            number = _resolved(used[-1], defined, compiled) if used else None
            found.append((_USED.sub("", line), number))
    return found


def _pairs(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    """What the pattern's second group says of its first, from all lines."""
    return {m[1]: m[2] for line in text.splitlines() if (m := pattern.match(line))}


def _resolved(location: str, defined: dict[str, str], compiled: Compiled, depth: int = 0) -> int | None:
    """The line that a location names, by itself or through others; the first one that is in the source."""
    for name in re.findall(r'"[^"]*":\d+:\d+|#loc\d*', location) if depth < 16 else ():
        if place := _PLACE.fullmatch(name):
            number = _own(place[1], int(place[2]), compiled)
        else:
            number = _resolved(defined.get(name, ""), defined, compiled, depth + 1)
        if number is not None:
            return number
    return None


def ptx(compiled: Compiled) -> Listing:
    """The PTX, without `.loc` and the tables for debuggers."""
    text = compiled.ptx.partition("\t.section\t.debug")[0]
    files = _pairs(_FILE, compiled.ptx)
    found: Listing = []
    number: int | None = None
    for line in text.splitlines():
        if m := _LOC.match(line):
            places = [(m[1], m[2]), (m[3], m[4])]
            numbers = [_own(files.get(f, ""), int(n), compiled) for f, n in places if f]
            number = next((n for n in numbers if n is not None), None)
        elif not _FILE.match(line):
            found.append((line, number if line.startswith("\t") else None))
    return found


def sass(compiled: Compiled) -> Listing:
    """What nvdisasm reads in the cubin; raises NoDisassembly where it cannot."""
    found: Listing = []
    number, fresh = None, True
    for line in disassembled(compiled.cubin).splitlines():
        if m := _SASS.match(line):
            # An inlined place is followed by its callers, innermost first.
            own = _own(m[1], int(m[2]), compiled)
            number, fresh = (own if fresh or number is None else number), False
        else:
            fresh = True
            if "/*" in line or line.startswith("."):
                found.append(
                    (re.sub(r"^ {8}|(?<=\*/) {15}", "", line.rstrip()), number if "/*" in line else None)
                )
    return found


@lru_cache(maxsize=64)
def disassembled(cubin: bytes) -> str:
    """What nvdisasm, which comes with Triton, prints: instructions, labels, and their places in files."""
    spec = importlib.util.find_spec("triton")
    folders = spec.submodule_search_locations or () if spec is not None else ()
    tools = [Path(f, "backends", "nvidia", "bin", "nvdisasm") for f in folders]
    tool = next((t for t in tools if t.is_file()), None)
    if tool is None:
        raise NoDisassembly("expected nvdisasm among Triton's tools, got none")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "-g", "-c", file.name], capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoDisassembly(f"expected SASS of nvdisasm, got: {error}") from None
    if done.returncode != 0:
        raise NoDisassembly(f"expected SASS of nvdisasm, got: {done.stderr.strip()[:200]}")
    return done.stdout


def _own(file: str, line: int, compiled: Compiled) -> int | None:
    """The line of the kernel's source; None for a place in another file, or above the kernel."""
    number = line - SOURCE_STARTS
    return number if Path(file).name == f"{compiled.name}.py" and number > 0 else None
