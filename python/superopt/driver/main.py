"""`superopt-opt` from arguments to exit code, in one process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from superopt import __version__, log, render
from superopt.again import command
from superopt.diagnostics import Diagnostics
from superopt.driver import command_line, isolation, output, pipeline, timing
from superopt.driver.command_line import Settings
from superopt.driver.runner import Instruments, Printing, Runner, parse_native
from superopt.errors import BadInput, BadOption, Location, SuperoptError
from superopt.inputs import source
from superopt.inputs.source import Message, Source, SourceError
from superopt.transforms.tunable import Tunable

FAILED, MISUSED = 1, 2


def run(arguments: Sequence[str]) -> int:
    """Do what the command line asks; gives 0, `FAILED` or `MISUSED` and says why on standard error."""
    try:
        settings = command_line.parse(arguments)
        return 0 if _informed(settings) else _process(settings)
    except SystemExit as done:  # --help, --version
        return done.code if isinstance(done.code, int) else 0
    except BadOption as error:
        _say(_rendered(_as_message(error)))
        return MISUSED
    except SuperoptError as error:
        _say(_rendered(_as_message(error)))
        return FAILED
    except KeyboardInterrupt:
        _say("superopt-opt: interrupted; nothing was written")
        return 128 + signal.SIGINT
    except isolation.Terminated as error:
        _say("superopt-opt: terminated; nothing was written")
        return error.exit_code
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except RecursionError:
        _say("superopt-opt: error: expected a program of less depth, got one too deep to walk")
        return FAILED
    except MemoryError:
        _say("superopt-opt: error: out of memory")
        return FAILED


def _informed(settings: Settings) -> bool:
    """Answer `--list-passes` and `--show-dialects`; returns whether one of them was given."""
    if settings.list_passes:
        output.write("-", command_line.pass_help())
    if settings.show_dialects:
        output.write("-", "Available Dialects: " + ",".join(_dialects()) + "\n")
    return settings.list_passes or settings.show_dialects


@dataclass
class _Outcome:
    """What became of one chunk of the input."""

    module: Any
    diagnostics: Diagnostics
    messages: list[Message]

    @property
    def failed(self) -> bool:
        return self.module is None


def _process(settings: Settings) -> int:
    written = [(settings.output, settings.emit == "bundle"), (settings.report, False)]
    for path, folder in (*written, (settings.print_ir_tree_dir, True)):
        if path is not None:
            output.check_writable(path, folder=folder)
    isolation.phase(f"reading {settings.input}")
    whole = source.read(settings.input)
    text = _pipeline_text(settings, whole)
    if text is not None:
        steps = pipeline.parse(text)
    else:
        steps = [pipeline.flag_step(flag, options) for flag, options in settings.passes]
    settings = _of_one_target(settings, steps)
    runner = _runner(settings, steps)
    chunks = source.split(whole, settings.split_input_file) if settings.split_input_file else [whole]
    outcomes = [_one(settings, runner, chunk) for chunk in chunks]
    if settings.verify_diagnostics:
        return _compare(chunks, outcomes)
    for chunk, outcome in zip(chunks, outcomes, strict=True):
        for message in outcome.messages:
            if message.severity != "remark" or _wanted(settings, message):
                _say(_rendered(message, chunk))
    _write_report(settings, outcomes)
    failed = any(o.failed for o in outcomes)
    if not failed or settings.split_input_file:
        with runner.timed("Output"):
            _emit(settings, runner, chunks, outcomes)
    if settings.timing:
        report = timing.report(runner.seconds, settings.timing_display, settings.output_format)
        _say(report)
    if settings.pass_statistics:
        _say(runner.statistics_report())
    return FAILED if failed else 0


def _wanted(settings: Settings, remark: Message) -> bool:
    matches = settings.remarks_filter is None or settings.remarks_filter.search(remark.text)
    return bool(matches) and not settings.quiet


def _pipeline_text(settings: Settings, whole: Source) -> str | None:
    if not settings.run_reproducer:
        return settings.pass_pipeline
    if settings.passes or settings.pass_pipeline is not None:
        raise BadOption("--run-reproducer takes the passes from the input file; name none")
    found = source.reproducer_pipeline(whole)
    if found is None:
        raise BadInput("expected a reproducer, got a file without 'mlir_reproducer'", Location(whole.name))
    return found


def _of_one_target(settings: Settings, steps: list[pipeline.Step]) -> Settings:
    """The settings with the target that the passes are given; raises BadOption where there are several."""
    if settings.emit in ("mlir", "text"):
        return settings
    found = {f"--{s.name}": t for s in steps if (t := getattr(s.implementation, "target", None))}
    if settings.target is not None:
        found["--target"] = settings.target
    if len({*found.values()}) > 1:
        got = ", ".join(f"{target} of {name}" for name, target in found.items())
        raise BadOption(f"expected one target, got {got}")
    return replace(settings, target=next(iter(found.values()), None))


def _runner(settings: Settings, steps: list[pipeline.Step]) -> Runner:
    """A runner whose native steps MLIR has accepted, so that a wrong pass is known before any work."""
    from superopt.dialects import base

    context = base.context()
    if settings.disable_threading:
        context.enable_multithreading(False)
    log.show(settings.debug_only)
    for step in steps:
        if step.implementation is None:
            parse_native(step, context)
    for name in (*settings.print_ir_before, *settings.print_ir_after):
        if name not in [s.name for s in steps]:
            raise BadOption(f"--mlir-print-ir-before/-after names '{name}', which is not among the passes")
    if settings.list_sites and not any(isinstance(s.implementation, Tunable) for s in steps):
        known = [f for f, loaded, _ in command_line.loaded_passes() if loaded and issubclass(loaded, Tunable)]
        raise BadOption(f"--list-sites: expected a pass that has sites, of {', '.join(known)}, got none")
    if settings.dump_pass_pipeline:
        _say(f"Pass Manager with {len(steps)} passes:\n{pipeline.spell(steps)}\n")
    instruments = Instruments(
        print_before=settings.print_ir_before,
        print_after=settings.print_ir_after,
        print_before_all=settings.print_ir_before_all,
        print_after_all=settings.print_ir_after_all,
        print_after_change=settings.print_ir_after_change,
        print_after_failure=settings.print_ir_after_failure,
        verify_each=settings.verify_each,
        verify_each_equivalence=settings.verify_each_equivalence,
        list_sites=settings.list_sites,
        allow_unregistered=settings.allow_unregistered_dialect,
        crash_reproducer=settings.crash_reproducer,
        module_scope=settings.print_ir_module_scope,
        tree=settings.print_ir_tree_dir,
    )
    printing = Printing(
        debuginfo=settings.print_debuginfo,
        generic=settings.print_op_generic,
        elide_elements_above=settings.elide_elementsattrs_if_larger,
        local_scope=settings.print_local_scope,
        names_of_locations=settings.use_nameloc_as_prefix,
    )
    return Runner(context, steps, instruments, printing, count_operations=settings.pass_statistics)


def _one(settings: Settings, runner: Runner, chunk: Source) -> _Outcome:
    """Parse, verify and transform one chunk; its errors become messages."""
    from superopt.driver import console

    text = chunk.text if settings.input == "-" else None
    again = command(settings.input, *command_line.spelled(settings), text=text)
    diagnostics = Diagnostics(file=chunk.name, command=again)
    errors: list[Message] = []
    module = None
    try:
        isolation.phase(f"parsing {chunk.name}")
        with runner.timed("Parser"):
            module = source.parse(chunk, runner.context, implicit_module=not settings.no_implicit_module)
            runner.verify(module, chunk)
            if settings.verify_roundtrip:
                source.check_roundtrip(module, chunk.name)
        with console.progress(diagnostics, show=not settings.quiet):
            module = runner.run(module, chunk, diagnostics)
    except SourceError as error:
        module, errors = None, list(error.messages)
    except BadOption:
        raise
    except SuperoptError as error:
        module, errors = None, [_as_message(error)]
    said = [Message(m.severity, m.message, m.location) for m in diagnostics.messages]
    return _Outcome(module, diagnostics, [m.named(chunk.name) for m in (*said, *errors)])


def _compare(chunks: list[Source], outcomes: list[_Outcome]) -> int:
    """`--verify-diagnostics`: success means that every chunk reported what its comments announce."""
    from superopt.driver import expected

    wrong = [
        line
        for chunk, outcome in zip(chunks, outcomes, strict=True)
        for line in expected.failures(chunk, outcome.messages)
    ]
    for line in wrong:
        _say(line)
    return FAILED if wrong else 0


def _emit(settings: Settings, runner: Runner, chunks: list[Source], outcomes: list[_Outcome]) -> None:
    isolation.phase(f"writing {settings.output}")
    done = [(c, o) for c, o in zip(chunks, outcomes, strict=True) if not o.failed]
    if settings.emit_bytecode:
        ((_, outcome),) = done
        output.write(settings.output, _bytecode(outcome.module))
        return
    if settings.emit in ("mlir", "text"):
        if settings.emit == "mlir":
            texts = [runner.printing.text(o.module, c.name) for c, o in done]
        else:
            texts = [_drawn(o.module, c.name) for c, o in done]
        output.write(settings.output, f"{settings.output_split_marker}\n".join(texts))
        return
    from superopt.driver import emission

    ((chunk, outcome),) = done
    emission.emit(settings, outcome.module, outcome.diagnostics, chunk.name)


def _drawn(module: Any, name: str) -> str:
    from superopt.dialects import reader

    graphs = [reader.read_function(f, name) for f in reader.functions(module) if f.regions[0].blocks]
    return "\n".join(render.text(graph) for graph in graphs)


def _bytecode(module: Any) -> bytes:
    import io

    stream = io.BytesIO()
    module.write_bytecode(stream)
    return stream.getvalue()


def _write_report(settings: Settings, outcomes: list[_Outcome]) -> None:
    if settings.report is None:
        return
    import json

    if settings.report.endswith(".html"):
        output.write(settings.report, _page(outcomes))
        return
    reports = [json.loads(_report(o.diagnostics)) for o in outcomes]
    content = reports[0] if len(reports) == 1 else {"inputs": reports}
    output.write(settings.report, json.dumps(content, indent=2) + "\n")


def _page(outcomes: list[_Outcome]) -> str:
    """The page of the only run; raises BadOption where there was none, or several."""
    from superopt.page import page

    found = [o.diagnostics.artifacts["outcome"] for o in outcomes if "outcome" in o.diagnostics.artifacts]
    if len(found) != 1:
        raise BadOption(f"--report=FILE.html shows one run of --superoptimize, got {len(found)}")
    return page(found[0])


def _report(diagnostics: Diagnostics) -> str:
    """JSON: of `--superoptimize`, else of the searches that ran; an input that neither has seen has none."""
    if "report" in diagnostics.artifacts:
        return diagnostics.artifacts["report"]
    if not diagnostics.searches:
        return "{}"
    from superopt.report import SearchReports

    return SearchReports(superopt=__version__, searches=diagnostics.searches).model_dump_json()


# --- messages ---------------------------------------------------------------------------------------------


def _as_message(error: SuperoptError) -> Message:
    return Message("error", error.message, error.location)


def _rendered(message: Message, chunk: Source | None = None, *, note: bool = False) -> str:
    """`file:line:col: error: text`, with the line of the source and a caret below if it is available."""
    where = "superopt-opt" if message.location == Location() else str(message.location)
    out = f"{where}: {'note' if note else message.severity}: {message.text}"
    if chunk is not None and message.location.file == chunk.name:
        line = chunk.line(message.location.line)
        if line.strip() and len(line) <= 200:
            caret = "".join(c if c == "\t" else " " for c in line[: message.location.column - 1])
            out += f"\n{line}\n{caret}^"
    return "\n".join([out, *(_rendered(n, chunk, note=True) for n in message.notes)])


def _say(text: str) -> None:
    sys.stderr.write(text.rstrip("\n") + "\n")


def _dialects() -> list[str]:
    """The names of all dialects: those of superopt and those that the bindings can load."""
    import pkgutil

    from superopt.dialects import base
    from superopt.dialects.mlir import binding, ir

    context = base.context()
    package = binding("dialects")
    candidates = {m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")}
    known = {"builtin", *base.DIALECTS}
    for name in candidates:
        try:
            context.get_dialect_descriptor(name)
        except (ValueError, RuntimeError, ir.MLIRError):
            continue
        known.add(name)
    return sorted(known)
