"""Running the steps of a pipeline on a module, one by one: printed, timed, verified as asked."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from superopt.diagnostics import Diagnostics
from superopt.driver import isolation, output, timing
from superopt.driver.pipeline import MODULE, Step, spell
from superopt.errors import BadInput, BadOption, Location, SuperoptError
from superopt.inputs.python_files import blamed, file_of
from superopt.inputs.source import Source, SourceError
from superopt.options import did_you_mean
from superopt.program import KernelGraph
from superopt.transforms import registry
from superopt.transforms.passes import GraphPass, ModulePass
from superopt.transforms.tunable import Tunable


@dataclass(frozen=True)
class Instruments:
    """What to do around each pass; the names are those of the flags."""

    print_before: tuple[str, ...] = ()
    print_after: tuple[str, ...] = ()
    print_before_all: bool = False
    print_after_all: bool = False
    print_after_change: bool = False
    print_after_failure: bool = False
    verify_each: bool = True
    verify_each_equivalence: bool = False
    list_sites: bool = False
    allow_unregistered: bool = False
    crash_reproducer: str | None = None
    module_scope: bool = False
    tree: str | None = None


@dataclass(frozen=True)
class Printing:
    """How IR is printed; the names are those of the flags."""

    debuginfo: bool = False
    generic: bool = False
    elide_elements_above: int | None = None
    local_scope: bool = False
    names_of_locations: bool = False

    def text(self, module: Any, source_name: str) -> str:
        """`module`, or an operation in it, as text, ending in a newline."""
        text: str = module.get_asm(
            enable_debug_info=self.debuginfo,
            print_generic_op_form=self.generic,
            large_elements_limit=self.elide_elements_above,
            large_resource_limit=self.elide_elements_above,
            use_local_scope=self.local_scope,
            use_name_loc_as_prefix=self.names_of_locations,
        )
        if self.debuginfo:  # a module parsed from memory calls its file "-"
            text = text.replace('loc("-":', f'loc("{source_name}":')
        return text.rstrip("\n") + "\n"


@dataclass
class Runner:
    """Runs `steps` on modules of one context and gathers times and statistics over all of them."""

    context: Any
    steps: Sequence[Step]
    instruments: Instruments
    printing: Printing
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    operations: list[tuple[str, Counter[str], Counter[str]]] = field(
        default_factory=list[tuple[str, Counter[str], Counter[str]]]
    )
    count_operations: bool = False
    dumps: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    failed: bool = False  # the reproducer is that of the first failure

    def run(self, module: Any, source: Source, diagnostics: Diagnostics) -> Any:
        """The module after every step; raises `SuperoptError`. `module` itself may be changed or left behind."""
        for number, step in enumerate(self.steps):
            isolation.phase(f"running {step.name} on {source.name}")
            self._reproducer(module, number)
            before = _counts(module) if self.count_operations else Counter[str]()
            self._print_before(step, module, source)
            old_text = self._text(module, source) if self.instruments.print_after_change else ""
            proving = self.instruments.verify_each_equivalence
            graphs = _graphs(module, source.name) if proving else {}
            _note_source(module, source.name, diagnostics)
            with self.timed(timing.row(number, step)):
                try:
                    module = self._apply(step, module, source, diagnostics)
                    if proving:
                        _check_equivalent(step, graphs, _graphs(module, source.name))
                except SuperoptError:
                    self.failed = True
                    self._print_after_failure(step, module, source)
                    raise
            if self.count_operations:
                self.operations.append((step.name, before, _counts(module)))
            self._print_after(step, module, source, old_text)
        if self.instruments.crash_reproducer is not None and not self.failed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.instruments.crash_reproducer)
        return module

    @contextlib.contextmanager
    def timed(self, what: str) -> Generator[None]:
        """Add the time spent inside to the entry `what` of the timing report."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def verify(self, module: Any, source: Source) -> None:
        """Check `module` by the rules of every level; raises `SuperoptError`."""
        from superopt.dialects import base

        base.verify(module, allow_unregistered=self.instruments.allow_unregistered, filename=source.name)

    def statistics_report(self) -> str:
        """How many operations each pass left, and which kinds it added or removed."""
        lines = [timing.banner("Pass statistics report")]
        for name, before, after in self.operations:
            lines.append(f"{name}")
            lines.append(f"  (S) {before.total():>6} operations before")
            lines.append(f"  (S) {after.total():>6} operations after")
            for op in sorted(set(before) | set(after)):
                if before[op] != after[op]:
                    lines.append(f"  (S) {after[op] - before[op]:>+6} {op}")
        return "\n".join(lines) + "\n"

    # --- one step -----------------------------------------------------------------------------------------

    def _apply(self, step: Step, module: Any, source: Source, diagnostics: Diagnostics) -> Any:
        if step.implementation is not None and module.name != MODULE:
            raise BadInput(
                f"pass '{step.name}' expects a {MODULE}, got '{module.name}'", Location(source.name)
            )
        match step.implementation:
            case None:
                self._run_native(step, module, source)
            case ModulePass() as implementation:
                with blamed(implementation, f"the pass '{implementation.flag}'"):
                    implementation.run(module.opview, diagnostics)
                self.verify(module, source)
            case GraphPass() as implementation:
                module = self._run_graph_pass(implementation, module, source, diagnostics)
                self.verify(module, source)
            case other:
                raise TypeError(f"{type(other).__name__} derives from neither GraphPass nor ModulePass")
        return module

    def _run_native(self, step: Step, module: Any, source: Source) -> None:
        from superopt.dialects.mlir import ir

        manager = parse_native(step, self.context)
        manager.enable_verifier(self.instruments.verify_each)
        try:
            manager.run(module)
        except ir.MLIRError as error:
            raise SourceError(error, source.name) from None

    def _run_graph_pass(
        self, implementation: GraphPass, module: Any, source: Source, diagnostics: Diagnostics
    ) -> Any:
        """Every function read, changed and written back; declarations stay as they are."""
        from superopt.dialects import argument_names, reader, writer
        from superopt.dialects.mlir import ir

        texts: list[str] = []
        for function in reader.functions(module):
            if not function.regions[0].blocks:
                texts.append(function.get_asm(enable_debug_info=True))
                continue
            graph = reader.read_function(function, source.name)
            if self.instruments.list_sites and isinstance(implementation, Tunable):
                for site in implementation.sites(graph, Diagnostics()):
                    said = f"{implementation.flag} {site.at}: {' | '.join(site.choices)}"
                    diagnostics.remark(said, site.location)
            with blamed(implementation, f"the pass '{implementation.flag}'"):
                made = cast("object", implementation.apply(graph, diagnostics))
            if not isinstance(made, KernelGraph):
                raise BadInput(
                    f"expected the pass '{implementation.flag}' to return a KernelGraph, got "
                    f"{type(made).__name__}",
                    Location(str(file_of(implementation))),
                )
            texts.append(writer.to_text(made, locations=True))
        try:
            return argument_names.parse("\n".join(texts), self.context).operation
        except ir.MLIRError as error:
            raise SourceError(error, f"<{implementation.flag}>") from None

    # --- printing -----------------------------------------------------------------------------------------

    def _text(self, module: Any, source: Source) -> str:
        return self.printing.text(module, source.name)

    def _print_before(self, step: Step, module: Any, source: Source) -> None:
        if self.instruments.print_before_all or step.name in self.instruments.print_before:
            self._dump("Before", step, module, source)

    def _print_after(self, step: Step, module: Any, source: Source, old: str) -> None:
        ask = self.instruments
        wanted = ask.print_after_all or step.name in ask.print_after
        if ask.print_after_change:  # alone it means all that changed; with the others it filters them
            alone = not ask.print_after_all and not ask.print_after
            wanted = (wanted or alone) and self._text(module, source) != old
        if wanted:
            self._dump("After", step, module, source)

    def _print_after_failure(self, step: Step, module: Any, source: Source) -> None:
        if self.instruments.print_after_failure or self.instruments.print_after_all:
            self._dump("After", step, module, source, " Failed")

    def _dump(self, when: str, step: Step, module: Any, source: Source, suffix: str = "") -> None:
        """Print what the step works on: the module or, for a pass nested in other operations, each of these; at
        module scope, the module for each."""
        title = "".join(word.capitalize() for word in step.name.replace("_", "-").split("-"))
        whole = self.instruments.module_scope
        for path in _anchored(module, step.anchors):
            on = f" ('{path[-1].name}' operation{_symbol(path[-1])})" if whole else ""
            text = f"// -----// IR Dump {when} {title}{suffix} ({step.name}){on} //----- //\n"
            text += self._text(module if whole else path[-1], source)
            if self.instruments.tree is None:
                sys.stderr.write(text + "\n")
                continue
            folders = tuple(_folder(operation) for operation in path)
            folder = Path(self.instruments.tree, *folders)
            output.make_folder(folder)
            output.write(str(folder / f"{self._dump_number(folders)}_{step.name}.mlir"), text)

    def _dump_number(self, folders: tuple[str, ...]) -> str:
        """The next number of an operation, by its folders, behind those of the operations around it, as MLIR
        counts: an operation that was not printed yet counts as if it was once one in it is."""
        self.dumps[folders] = self.dumps.get(folders, -1) + 1
        around = (folders[:i] for i in range(1, len(folders) + 1))
        return "_".join(str(self.dumps.setdefault(each, 0)) for each in around)

    def _reproducer(self, module: Any, number: int) -> None:
        """Write what is about to run, so that it survives whatever happens to this process."""
        if self.instruments.crash_reproducer is not None and not self.failed:
            text = module.get_asm(enable_debug_info=False).rstrip("\n")
            output.write(self.instruments.crash_reproducer, reproducer(text, spell(self.steps[number:])))


def reproducer(text: str, pipeline: str) -> str:
    """The module with the pipeline to run on it, in MLIR's reproducer format."""
    quoted = pipeline.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f"{text}\n\n{{-#\n  external_resources: {{\n    mlir_reproducer: {{\n"
        f'      pipeline: "{quoted}",\n      disable_threading: true,\n      verify_each: true\n'
        "    }\n  }\n#-}\n"
    )


def parse_native(step: Step, context: Any) -> Any:
    """MLIR's pass manager for a native step; raises `BadOption` for a pass or option that it does not know."""
    from superopt.dialects.mlir import passmanager

    with captured_stderr() as said:
        try:
            return passmanager.PassManager.parse(str(step), context)
        except ValueError as error:
            reason = _reason(str(error), said())
    if "does not refer to a registered pass" in reason:
        hint = did_you_mean(step.name, [*registry.flags(), *registry.NATIVE_PASSES])
        reason = f"unknown pass '{step.name}'{hint}; --list-passes prints the known ones"
    else:
        reason = f"{step.name}: {reason}"
    raise BadOption(reason, step.location)


def _reason(raised: str, printed: str) -> str:
    """The informative line of MLIR's message on a bad pipeline; part of it goes to standard error only."""
    lines = [line.strip() for line in f"{printed}\n{raised}".splitlines() if line.strip()]
    for prefix in ("<Pass-Options-Parser>: ", ": for the --"):
        for line in lines:
            if line.startswith(prefix):
                return line.removeprefix("<Pass-Options-Parser>: ").removeprefix(": ")
    first = next((line for line in lines if "error: " in line), lines[0] if lines else "not understood")
    return first.partition("error: ")[2] or first


@contextlib.contextmanager
def captured_stderr() -> Generator[Any]:
    """Catch what native code writes to file descriptor 2; yields a function that returns it so far."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def said() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _graphs(module: Any, file: str) -> dict[str, KernelGraph]:
    """The functions of `module` that are in superopt's dialects, by name."""
    from superopt.dialects import reader

    found = [f for f in reader.functions(module) if reader.is_kernel_function(f)]
    return {g.name: g for g in (reader.read_function(f, file) for f in found)}


def _note_source(module: Any, file: str, diagnostics: Diagnostics) -> None:
    """Keep the program of a module that has one, before the first pass that may change it."""
    if diagnostics.source is None and module.name == MODULE:
        graphs = _graphs(module, file)
        diagnostics.source = next(iter(graphs.values())) if len(graphs) == 1 else None


def _check_equivalent(step: Step, before: dict[str, KernelGraph], after: dict[str, KernelGraph]) -> None:
    """Raise NotEquivalent unless every function that was and is in superopt's dialects computes the same."""
    from superopt import verify

    for name in before.keys() & after.keys():
        verify.check_each(before[name], after[name], step.name)


def _counts(module: Any) -> Counter[str]:
    from superopt.dialects.mlir import ir

    found: Counter[str] = Counter()

    def visit(operation: Any) -> Any:
        found[operation.name] += 1
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return found


def _anchored(module: Any, anchors: Sequence[str]) -> Generator[list[Any]]:
    """The operations that a pass with these anchors runs on, each after those that it lies in."""
    if len(anchors) < 2:
        yield [module]
        return
    for region in module.regions:
        for operation in (op.operation for block in region for op in block):
            if operation.name == anchors[1]:
                for path in _anchored(operation, anchors[1:]):
                    yield [module, *path]


def _symbol(operation: Any) -> str:
    """`: @f`, where the operation has a name."""
    name = operation.attributes.get("sym_name")
    return "" if name is None else f": @{name.value}"


def _folder(operation: Any) -> str:
    """The name of an operation's folder, as mlir-opt's."""
    name = operation.attributes.get("sym_name")
    text = f"{operation.name}_{name.value if name is not None else 'no-symbol-name'}"
    return re.sub(r"[^\w-]", "_", text)
