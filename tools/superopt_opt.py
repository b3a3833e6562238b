"""`superopt-opt`: runs passes on MLIR; `--help` lists them. `superopt.driver` does the work."""

from __future__ import annotations

import sys

from superopt.driver.isolation import isolated
from superopt.driver.main import run


def main() -> int:
    """The console entry: the command line is `sys.argv`, the result the exit code.

    0: done; 1: the program was refused or something failed; 2: bad command line.
    """

    def work() -> int:
        return run(sys.argv[1:])

    return isolated(work, "superopt-opt")


if __name__ == "__main__":
    sys.exit(main())
