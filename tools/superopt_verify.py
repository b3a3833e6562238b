"""`superopt-verify`: decides whether two programs compute the same, and checks certificates of that again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.diagnostics import Diagnostics
from superopt.driver.arguments import Parser
from superopt.driver.console import doing
from superopt.driver.isolation import isolated
from superopt.errors import BadInput, IllegalProgram, Location, NotEquivalent, SuperoptError
from superopt.inputs.programs import read_any, read_program

if TYPE_CHECKING:
    from superopt.verify import Certificate
    from superopt.verify.bundle import BundleRecord

_DESCRIPTION = """Decide whether two programs compute the same function over the real numbers, by random tests
over finite fields. Inputs and outputs are matched by position. Exit codes: 0 equivalent; 1 not equivalent; 2 bad
input; 3 undecided: --check recomputed no element of some output, or parts of a bundle cannot be checked here."""
_DIFFERENT, _UNDECIDED = 3, 4  # inside the child process, where 1 is what a crash gives


def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; `argv` is `sys.argv` without the program's name, the result the exit code."""
    options = _parser().parse_args(argv)
    certificates = (options.replay is not None) + (options.check is not None)
    wanted = 0 if certificates else 1 if _bundle_alone(options.programs) else 2
    if certificates > 1 or len(options.programs) != wanted:
        alone = options.programs[0] if len(options.programs) == 1 and not certificates else ""
        if alone and alone != "-" and not Path(alone).exists():
            _parser().error(f"expected two programs or a bundle's folder, got no such folder: {alone}")
        expected = "expected two programs, a bundle's folder, or --replay or --check with a certificate"
        _parser().error(expected + (f", got {alone}" if alone else ""))
    if not options.seconds > 0:
        _parser().error(f"argument --seconds: expected a positive number, got {options.seconds}")
    if not 0 < options.delta < 1:
        _parser().error(f"argument --delta: expected a probability between 0 and 1, got {options.delta}")
    if options.seed is not None and not 0 <= options.seed < 1 << 63:
        _parser().error(f"argument --seed: expected a number from 0 to 2^63 - 1, got {options.seed}")

    code = isolated(lambda: _work(options), "superopt-verify")
    if code > 128:  # a signal ended it
        return code
    return {0: 0, _DIFFERENT: 1, _UNDECIDED: 3}.get(code, 2)


def _parser() -> Parser:
    parser = Parser(prog="superopt-verify", description=_DESCRIPTION)
    parser.add_argument(
        "programs",
        nargs="*",
        metavar="A.mlir B.mlir",
        help="linalg on tensors or the kernel dialect; - is stdin; the second may be a bundle's folder, and the "
        "first then have dynamic extents; a bundle's folder alone is compared with its own original.mlir",
    )
    parser.add_argument(
        "--delta", type=float, default=1e-9, metavar="D",
        help="largest acceptable probability that different programs pass (default: 1e-9)",
    )  # fmt: skip
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the random tests (default: 0; for a bundle, drawn at random)",
    )
    parser.add_argument("--certificate", metavar="OUT.json", help="write the certificate here")
    parser.add_argument("--replay", metavar="CERT.json", help="repeat the tests of a certificate and compare")
    parser.add_argument(
        "--check", metavar="CERT.json",
        help="check a certificate independently: recompute its programs at sampled elements, and repeat "
        "what takes little of --replay",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S",
        help="time limit of --check, which then reports how many elements it did not reach (default: 60)",
    )  # fmt: skip
    return parser


def _work(options: argparse.Namespace) -> int:
    try:
        what = options.check or options.replay or " and ".join(options.programs)
        with doing(f"checking {what}"):
            return _decided(options)
    except SuperoptError as error:
        print(error, file=sys.stderr)
        return 2


def _decided(options: argparse.Namespace) -> int:
    if options.check is not None:
        return _check(options.check, options.seed or 0, options.seconds)
    if options.replay is not None:
        return _replay(options.replay)
    return _bundle(options) if Path(options.programs[-1]).is_dir() else _compare(options)


def _bundle_alone(programs: Sequence[str]) -> bool:
    return len(programs) == 1 and Path(programs[0]).is_dir()


def _compare(options: argparse.Namespace) -> int:
    from superopt.verify import certify

    first, second = (read_program(path, Diagnostics()) for path in options.programs)
    verdict = certify(first, second, delta=options.delta, seed=options.seed or 0)
    if verdict.certificate is None:
        print(f"not equivalent: {verdict.counterexample}")
        return _DIFFERENT
    if options.certificate:
        _write(options.certificate, verdict.certificate)
    print(f"equivalent: {verdict.certificate.summary}")
    return 0


def _bundle(options: argparse.Namespace) -> int:
    program, folder = options.programs if len(options.programs) > 1 else (None, *options.programs)
    return bundle_verdict(program, folder, options.seed, options.delta, options.certificate)


def bundle_verdict(
    program: str | Path | None,
    folder: str | Path,
    seed: int | None = None,
    delta: float = 1e-9,
    certificate: str | None = None,
) -> int:
    """Compare a bundle, or those of all buckets, with a program, in this process: 0 where they agree,
    `_DIFFERENT`, or `_UNDECIDED`. Without a program, with what they say that they compute.

    Raises SuperoptError for what cannot be read.
    """
    from superopt.verify import bundle, bundle_buckets

    given = None if program is None else read_any(program, Diagnostics())
    in_buckets = (Path(folder) / bundle_buckets.FILE).exists()
    if in_buckets and certificate:
        raise BadInput(f"expected --certificate with one bundle, got buckets, each with its own: {folder}")
    try:
        if not in_buckets:
            record = bundle.verify_bundle(given, folder, seed=seed, delta=delta)
            if certificate:
                _write(certificate, record.certificate)
            return _say(record, alone=given is None)
        records, covered = bundle_buckets.verify_buckets(given, folder, seed=seed, delta=delta)
    except (IllegalProgram, NotEquivalent) as error:
        print(f"not equivalent: {error.message}")
        return _DIFFERENT
    codes: set[int] = set()
    for bounds, record in records.items():
        print(f"--- {bounds}")
        codes.add(_say(record, alone=given is None))
    print(f"--- buckets for {covered}")
    return max(codes)


def _say(record: BundleRecord, *, alone: bool) -> int:
    says = "undecided" if record.unchecked else "equivalent to its original.mlir" if alone else "equivalent"
    print(f"{says}: {record.certificate.summary}")
    if record.ranged is not None:
        print(record.ranged.summary)
    for target, artifact in record.artifacts.items():
        print(f"{target}: {artifact.summary}")
    for what in record.unchecked:
        print(f"not checked: {what}")
    if not record.unchecked:
        print(
            "TTIR, PTX and cubins are what this Triton makes of the kernels, other files what superopt writes"
        )
    if alone:
        print("not checked: whether original.mlir is the program that you mean; name that before the folder")
    print("not checked: remarks (names, versions, the schedule's seed and reason)")
    return _UNDECIDED if record.unchecked else 0


def _check(path: str, seed: int, seconds: float) -> int:
    from superopt.verify.certifier import replay_cheap
    from superopt.verify.checker import check_certificate

    text = _text(path)
    certificate = _parsed(path, text)
    check = check_certificate(text, seed=seed + 1, seconds=seconds)  # at points of its own
    # The checker believes the figures of the bound, the normal form and the relation: these are made again.
    again = None if check.faults else replay_cheap(certificate)
    if faults := [*check.faults, *(again.faults if again else ())]:
        print(f"{path}: does not hold: {'; '.join(faults)}")
        return _DIFFERENT
    assert again is not None
    assert check.comparison is not None
    bound = certificate.bound
    if again.bounding:
        bound += " by figures that take --replay to make again"
    elif again.trusted:
        tests = "1 test that takes" if again.trusted == 1 else f"{again.trusted} tests that take"
        bound += f", made again but for {tests} --replay"
    else:
        bound += ", made again"
    paper = f"; Theorem 4 of Mirage would ask for {check.paper_tests} tests" if check.paper_tests else ""
    compared = check.comparison
    drawn = compared.elements + compared.skipped
    done = f"{compared.elements} of {drawn} elements recomputed"
    if compared.from_values:
        values = f"{compared.values} value{'s' * (compared.values != 1)} that both compute"
        done += f", {compared.from_values} of them from {values}, compared at {compared.between} elements"
    if compared.skipped:
        done += f"; {compared.skipped} not: too much work, or more than {seconds:g} s"
    says = "undecided" if compared.silent else "holds"
    print(f"{path}: {says}: {bound}{paper}; {done}")
    return _UNDECIDED if compared.silent else 0


def _replay(path: str) -> int:
    from superopt.verify.certifier import replay

    certificate = _parsed(path, _text(path))
    if differences := replay(certificate):
        print(f"{path}: does not hold: {'; '.join(differences)}")
        return _DIFFERENT
    print(f"{path}: holds: {certificate.summary}")
    return 0


def _text(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"expected a file that can be read, got: {error.strerror}", Location(path)) from None


def _parsed(path: str, text: bytes) -> Certificate:
    from pydantic import ValidationError

    from superopt.verify import Certificate

    try:
        return Certificate.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise BadInput(f"expected a certificate, got {where}: {first['msg']}", Location(path)) from None


def _write(path: str, certificate: Certificate) -> None:
    try:
        Path(path).write_text(certificate.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"expected a file that can be written, got: {error.strerror}", Location(path)
        ) from None


if __name__ == "__main__":
    sys.exit(main())
