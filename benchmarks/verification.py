"""What verification costs, and whether every certificate holds for the independent checker.

    python -m benchmarks.verification        the table, kept in benchmarks/results/verification.json

Each program goes through the whole flow, without a store. Times are CPU seconds of the process itself (the
machine may be shared; compilers run in others): of the searches; of the certificates; of the numeric gate; of
the check of the TTIR before a bundle is written. The certificate is then given to the checker, which shares
no code with what made it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.record import keep

from superopt.diagnostics import Diagnostics
from superopt.inputs.programs import read_program
from superopt.pipeline import Superoptimize, superoptimize
from superopt.run.context import Run
from superopt.verify.checker import check_certificate
from superopt.verify.ttir import verify_compiled

ROOT = Path(__file__).resolve().parents[1]
MUGRAPH = (
    "gated_mlp_b1", "gqa_decode_b1", "gqa_decode_b1_safe", "lora_b1", "mlp_b1", "mqa_decode_b1_safe",
    "norm_transformer_b1", "rmsnorm_linear_b1",
)  # fmt: skip
PROGRAMS = (
    *(f"examples/{name}" for name in ("gated_mlp", "lora", "matmul_bias_gelu", "rmsnorm_linear")),
    *(f"benchmarks/mugraph/{name}" for name in MUGRAPH),
)


def row(path: Path) -> dict[str, Any]:
    """Seconds of each part, what the certificate says, and whether it holds."""
    spent: dict[str, float] = {}
    start, cpu = time.perf_counter(), time.process_time()
    with _cpu_times(spent):
        outcome = superoptimize(read_program(path, Diagnostics()), Superoptimize(store=None), Diagnostics())
    wall, total = time.perf_counter() - start, time.process_time() - cpu
    artifact, note = _cpu(
        lambda: verify_compiled(outcome.original, outcome.lowered, outcome.emitted, outcome.compiled)
    )
    checker, check = _cpu(lambda: check_certificate(outcome.certificate.model_dump_json()))
    form = outcome.certificate.normal_form
    search = sum(s for stage, s in spent.items() if stage.startswith("search"))
    verification = spent.get("verify", 0.0) + artifact
    return {
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(total + artifact, 3),
        "search": round(search, 3),
        "certificates": round(spent.get("verify", 0.0), 3),
        "numerics": round(spent.get("numerics", 0.0), 3),
        "ttir": round(artifact, 3),
        "share": round(verification / (total + artifact), 3),
        "checker": round(checker, 3),
        "holds": check.faults == [],
        "elements": check.comparison.elements if check.comparison else 0,
        "delta": outcome.certificate.delta,
        "guarantee": outcome.certificate.guarantee,
        "normal_form": form.extents if form else None,
        "ttir_end_to_end": all(r.end_to_end for r in note.values()),
    }


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


@contextmanager
def _cpu_times(spent: dict[str, float]) -> Generator[None]:
    """Within it, the pipeline's stages add their CPU seconds to `spent`."""
    timed = Run.timed

    @contextmanager
    def counted(self: Run, stage: str) -> Generator[None]:
        start = time.process_time()
        with timed(self, stage):
            yield
        spent[stage] = spent.get(stage, 0.0) + time.process_time() - start

    Run.timed = counted
    try:
        yield
    finally:
        Run.timed = timed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What verification costs.")
    parser.add_argument("--only", help="programs whose name has this in it")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in PROGRAMS:
        if not args.only or args.only in name:
            rows[name.removeprefix("benchmarks/")] = found = row(ROOT / f"{name}.mlir")
            print(name, found, flush=True)
            if not args.only:
                keep("verification", rows)


if __name__ == "__main__":
    main()
