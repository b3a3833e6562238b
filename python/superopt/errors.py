"""Errors a user can cause, and where they happened.

Every error that the user can fix derives from `SuperoptError`; it names what was expected, what was
got, and (where there is a source) file, line and column. Tools print `str(error)` and exit non-zero; a
traceback always means a bug in superopt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superopt.report import Report


@dataclass(frozen=True)
class Location:
    """A place in a source file; line and column count from 1, 0 where unknown."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        file = TEXT if self.file in MEMORY else self.file
        return f"{file}:{self.line}:{self.column}" if self.line else self.file or "<unknown>"

    def named(self, file: str) -> Location:
        """The place with `file` for text that was parsed from memory."""
        unnamed = self.file == "-" or (self.line and not self.file)
        return replace(self, file=file) if file and unnamed else self


TEXT = "<text>"
MEMORY = ("", "-")
"""What the file of a place is called where its text came from no file: by us, and by MLIR."""
UNKNOWN = Location()


class SuperoptError(Exception):
    """Base of every error that a user can cause.

    `location` says where; `str(error)` reads `file:line:col: error: message`, or `error: message`.
    """

    def __init__(self, message: str, location: Location = UNKNOWN) -> None:
        super().__init__(message)
        self.message = message
        self.location = location

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location != UNKNOWN else ""
        return f"{where}error: {self.message}"


class IllegalProgram(SuperoptError):
    """IR that breaks a rule of its level: shapes, dtypes, maps, extents, memory."""


class UnsupportedProgram(SuperoptError):
    """A well-formed program that superopt cannot handle: dynamic shapes, an unknown dtype."""


class NoKernels(UnsupportedProgram):
    """A program without kernels that are proved, not even operator by operator; `report` is the run's."""

    def __init__(self, message: str, location: Location = UNKNOWN, report: Report | None = None) -> None:
        super().__init__(message, location)
        self.report = report


class BadInput(SuperoptError):
    """A file or stream that cannot be read, parsed or written."""


class BadOption(SuperoptError):
    """An unknown pass, option, target or value."""


class NotEquivalent(SuperoptError):
    """Two programs that should be equivalent but are not."""
