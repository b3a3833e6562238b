"""Fuzzing of superopt-opt and superopt-verify, by bytes and by structure.

    python test/fuzz/fuzz.py --seconds=3600 --seed=0 --findings=FOLDER --json=FILE

Inputs are mutated from the `.mlir` files of the tests and examples, from certificates, and from the files of a bundle
(with its hashes mended, so that what lies behind them is reached). Each runs in a forked child with limits of time and
memory. A finding is a traceback (a fault of ours that no user should see), a hang, or an
answer with no message; crashes inside LLVM are counted, as the tools answer them with a message of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from about import about

ROOT = Path(__file__).resolve().parents[2]
SECONDS, BYTES = 30, 6 << 30
GOOD = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"
SMALL = """
func.func @small(%x: tensor<16x32xf16>, %w: tensor<32x16xf16>) -> tensor<16x16xf16> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x32xf16>, tensor<32x16xf16>) -> tensor<16x16xf16>
  %1 = "kernel.relu"(%0) : (tensor<16x16xf16>) -> tensor<16x16xf16>
  return %1 : tensor<16x16xf16>
}
"""
OPT_ARGUMENTS: tuple[list[str], ...] = (
    [],
    ["--ingest-linalg"],
    ["--emit=triton"],
    ["--emit-bytecode"],
    ["--split-input-file"],
)
_TOKEN = re.compile(r"%[\w#]+|\"[\w.]+\"|@\w+|-?\d+(?:\.\d+)?|tensor<[^<>]*>|memref<[^<>]*>|[\w.]+|[^\w\s]")


@dataclass
class Result:
    """What a campaign saw; `findings` are (what, arguments, input)."""

    runs: int = 0
    inputs: Counter[str] = field(default_factory=Counter[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    findings: list[tuple[str, list[str], bytes]] = field(default_factory=list[tuple[str, list[str], bytes]])


def corpus() -> list[bytes]:
    """The seeds: every small `.mlir` file of the project."""
    files = [p for folder in ("test", "examples") for p in sorted((ROOT / folder).rglob("*.mlir"))]
    return [p.read_bytes() for p in files if "Output" not in p.parts and p.stat().st_size < 20_000]


def mutate(seed: bytes, others: list[bytes], generator: random.Random) -> bytes:
    """One to four changes: of bytes, of tokens, of lines, or a piece of another seed."""
    data = seed
    for _ in range(generator.randint(1, 4)):
        kind = generator.randrange(6)
        if kind == 0 and data:  # bytes
            at = generator.randrange(len(data))
            data = data[:at] + bytes([generator.randrange(256)]) + data[at + generator.randrange(2) :]
        elif kind == 1:
            data = data[: generator.randrange(len(data) + 1)]
        else:
            text = data.decode(errors="surrogateescape")
            text = _structured(text, others, kind, generator)
            data = text.encode(errors="surrogateescape")
    return data[:200_000]


def _structured(text: str, others: list[bytes], kind: int, generator: random.Random) -> str:
    lines = text.split("\n")
    if kind == 2:  # a line dropped, doubled or moved
        at = generator.randrange(len(lines))
        line = lines.pop(at)
        for _ in range(generator.randrange(3)):
            lines.insert(generator.randrange(len(lines) + 1), line)
        return "\n".join(lines)
    if kind == 3:  # a line of another seed
        other = generator.choice(others).decode(errors="surrogateescape").split("\n")
        lines.insert(generator.randrange(len(lines) + 1), generator.choice(other))
        return "\n".join(lines)
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return text
    token = generator.choice(tokens)
    if kind == 4 and token[0].lstrip("-").isdigit():
        new = generator.choice(
            ["0", "-1", "1", "9223372036854775807", "99999999999999999999", "4294967296", "7"]
        )
    else:
        new = generator.choice(tokens)[0]
    return text[: token.start()] + new + text[token.end() :]


def campaign(seconds: float, seed: int, most: int | None = None) -> Result:
    """Fuzz until the time or the number of runs is over."""
    _preload()
    generator, seeds, result = random.Random(seed), corpus(), Result()
    certificate = _certificate()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="superopt-fuzz-") as name:
        folder = Path(name)
        bundle = _bundle(folder)
        while time.monotonic() < end and (most is None or result.runs < most):
            base = generator.choice(seeds)
            data = mutate(base, seeds, generator)
            choice = generator.randrange(20)
            path = folder / "input.mlir"
            if choice < 13:
                what, arguments = (
                    "superopt-opt",
                    ["superopt-opt", str(path), *generator.choice(OPT_ARGUMENTS)],
                )
            elif choice < 16:
                what, arguments = "superopt-verify A B", ["superopt-verify", str(path), str(path)]
            elif choice < 18:
                data = mutate(certificate, seeds, generator)
                option = generator.choice(["--check", "--replay"])
                what, arguments = f"superopt-verify {option}", ["superopt-verify", option, str(path)]
            else:
                data = _break_bundle(bundle, folder / "broken", seeds, generator)
                what = "superopt-verify A BUNDLE"
                arguments = ["superopt-verify", str(folder / "program.mlir"), str(folder / "broken")]
            path.write_bytes(data)
            answer, message = _run(arguments, folder)
            result.runs += 1
            result.inputs[what] += 1
            result.answers[answer] += 1
            if answer in ("traceback", "hang", "no message"):
                result.findings.append((f"{answer}: {message}", arguments, data))
    return result


def _preload() -> None:
    """Import what every run needs, so that a forked child starts at once."""
    for name in (
        "dialects.reader",
        "driver.main",
        "tools.superopt_verify",
        "transforms.emit",
        "transforms.emit.bundle",
        "transforms.ingest",
        "verify.certifier",
        "verify.checker",
        "verify.ttir.artifact",
    ):
        importlib.import_module(f"superopt.{name}")
    from superopt.dialects.reader import read

    read(GOOD)


def _certificate() -> bytes:
    from superopt.program import KernelGraph, Node, TensorType, Value
    from superopt.verify import certify

    x = Value(TensorType((4, 4), "f32"))
    first = [Node(op, (x,), (Value(x.type),), {}) for op in ("square",)]
    second = [Node("mul", (x, x), (Value(x.type),), {})]
    graphs = [KernelGraph("g", [x], nodes, [nodes[-1].result]) for nodes in (first, second)]
    certificate = certify(graphs[0], graphs[1]).certificate
    assert certificate is not None
    return certificate.model_dump_json().encode()


def _bundle(folder: Path) -> Path:
    """A small whole bundle, and the program that it computes beside it."""
    from superopt.diagnostics import Diagnostics
    from superopt.dialects.reader import read
    from superopt.pipeline import Superoptimize, superoptimize
    from superopt.transforms.emit import save_bundle

    (folder / "program.mlir").write_text(SMALL)
    settings = Superoptimize(budget=5.0)
    return save_bundle(folder / "bundle", superoptimize(read(SMALL), settings, Diagnostics()))


def _break_bundle(whole: Path, broken: Path, seeds: list[bytes], generator: random.Random) -> bytes:
    """A copy with one file mutated, its hash mended more often than not; returns the file."""
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(whole, broken)
    files = sorted(p for p in broken.rglob("*") if p.is_file() and p.suffix not in (".cubin", ".ptx"))
    path = generator.choice(files)
    data = mutate(path.read_bytes(), seeds, generator)
    path.write_bytes(data)
    if path.name != "bundle.json" and generator.random() < 0.8:
        record = json.loads((broken / "bundle.json").read_text())
        record["files"][str(path.relative_to(broken))] = hashlib.sha256(data).hexdigest()
        (broken / "bundle.json").write_text(json.dumps(record))
    return data


def _run(arguments: list[str], folder: Path) -> tuple[str, str]:
    """The kind of answer, and the message; the tool runs in a child of its own."""
    errors = folder / "stderr"
    child = os.fork()
    if child == 0:
        code = 125
        try:
            handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            null = os.open(os.devnull, os.O_RDWR)
            for source, target in ((null, 0), (null, 1), (handle, 2)):
                os.dup2(source, target)
            sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = _tool(arguments)
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + 2 * SECONDS
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hang", f"more than {2 * SECONDS} s"
        time.sleep(0.002)
    message = errors.read_text(errors="replace")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        return ("hang", "CPU time") if number == signal.SIGXCPU else (f"crash of LLVM ({name})", name)
    code = os.waitstatus_to_exitcode(status)
    if "Traceback (most recent call last)" in message:
        return "traceback", message.strip().splitlines()[-1][:300]
    if code == 0:
        return "accepted", ""
    different = arguments[0] == "superopt-verify" and code == 1  # said on standard output
    return ("refused", "") if message.strip() or different else ("no message", f"exit code {code}")


def _tool(arguments: list[str]) -> int:
    """The tool's work, without its own fork."""
    if arguments[0] == "superopt-opt":
        from superopt.driver.main import run

        return run(arguments[1:])
    from superopt.driver import isolation

    isolation.isolated = lambda work, tool: work()  # type: ignore[assignment]
    from superopt.tools.superopt_verify import main

    return main(arguments[1:])


def _record(result: Result, seed: int, seconds: float) -> dict[str, object]:
    return {
        **about(),
        "seed": seed,
        "seconds": round(seconds, 1),
        "runs": result.runs,
        "inputs": dict(result.inputs.most_common()),
        "answers": dict(result.answers.most_common()),
        "findings": [f"{' '.join(arguments)}: {what}" for what, arguments, _ in result.findings],
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fuzz superopt-opt and superopt-verify.")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, help="folder for inputs that were answered wrongly")
    parser.add_argument("--json", type=Path, help="write what was seen here")
    args = parser.parse_args()
    start = time.monotonic()
    result = campaign(args.seconds, args.seed)
    text = json.dumps(_record(result, args.seed, time.monotonic() - start), indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    for number, (what, arguments, data) in enumerate(result.findings):
        print(f"{' '.join(arguments)}: {what}")
        if args.findings:
            args.findings.mkdir(parents=True, exist_ok=True)
            (args.findings / f"{number}.mlir").write_bytes(data)
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())
