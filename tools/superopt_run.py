"""`superopt-run BUNDLE`: runs a bundle's real kernels and checks them against PyTorch in float64.

The kernels run in a process of their own, on the GPU or in Triton's interpreter; on the CPU, the tile programs
that they were emitted from run, compiled. It prints one line, with error and tolerance, for each output and
distribution of inputs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from superopt.driver import console
from superopt.driver.arguments import Parser, said
from superopt.errors import BadInput, SuperoptError
from superopt.numerics import runner
from superopt.transforms.emit.bundle import read_bundle
from superopt.transforms.emit.bundle_buckets import read_buckets


def main(argv: Sequence[str] | None = None) -> int:
    """The console entry. 0: within tolerance; 1: out of tolerance; 2: it could not run, and why."""
    parser = Parser(prog="superopt-run", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("bundle", help="folder written by --emit=bundle or Optimized.save, of buckets, too")
    parser.add_argument(
        "--device",
        choices=runner.DEVICES,
        help="cpu: the tile programs, compiled; default: cuda if available",
    )
    parser.add_argument(
        "--kernels",
        choices=runner.KERNELS,
        help="on the GPU: compiled by the Triton there is (default), or the bundle's cubins",
    )
    parser.add_argument("--check", action="store_true", help="check only; do not time")
    parser.add_argument("--time", action="store_true", help="time only (cuda); do not check")
    parser.add_argument("--seed", type=int, help="seed of the inputs (default: drawn at random)")
    parser.add_argument("--distributions", help="distributions of inputs, comma-separated (default: all)")
    parser.add_argument(
        "--all-blocks",
        action="store_true",
        help="interpreter: run all blocks of a kernel for every distribution",
    )
    parser.add_argument("--json", help="also write the result to this file")
    args = parser.parse_args(argv)
    try:
        return _run_all(args)
    except KeyboardInterrupt:
        print("superopt-run: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run_all(args: argparse.Namespace) -> int:
    """Run the bundle, or that of each bucket; returns the exit code."""
    try:
        buckets = read_buckets(Path(args.bundle))
        if buckets and args.json:
            raise BadInput(f"expected --json with one bundle, got buckets, each a folder: {args.bundle}")
        bundles = [str(Path(args.bundle) / b.folder) for b in buckets.buckets] if buckets else [args.bundle]
        for bundle in bundles:
            read_bundle(bundle)
    except SuperoptError as error:
        print(said("superopt-run", error), file=sys.stderr)
        return 2
    codes: set[int] = set()
    for bundle in bundles:
        if buckets:
            print(f"--- {bundle}", flush=True)
        codes.add(_run(bundle, args))
    return max(codes)


def _run(bundle: str, args: argparse.Namespace) -> int:
    """Run one bundle in a process of its own; returns its exit code."""
    # The runner and the checks of this version: only the kernels and the reference are the bundle's.
    command = [sys.executable, "-P", "-E", str(Path(runner.__file__)), "--bundle", bundle]
    for name in ("seed", "device", "kernels", "distributions", "json"):
        if (value := getattr(args, name)) is not None:
            command.append(f"--{name}={value}")
    flags = {"check": args.check, "time": args.time, "all-blocks": args.all_blocks}
    command += [f"--{name}" for name, given in flags.items() if given]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = console.run(command, environment, f"running {bundle}")
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0 or code > 2:
        print(f"superopt-run: error: the kernels' process ended with status {code}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
