"""The command line of `superopt-opt`: MLIR's flags, one flag for each pass, and superopt's own.

Flags of passes are taken out first, because their order is the pipeline's; argparse does the rest.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Literal, NoReturn, get_args

from superopt import log
from superopt.cost.gpus import DEFAULT_TARGET, target, target_names
from superopt.driver.arguments import versions
from superopt.driver.runner import captured_stderr
from superopt.errors import BadOption
from superopt.inputs.source import SPLIT_MARKER
from superopt.options import Option, did_you_mean, spell_value
from superopt.transforms import registry
from superopt.transforms.passes import Pass

EmitKind = Literal["mlir", "text", "triton", "ttir", "ttgir", "llir", "ptx", "cubin", "bundle"]

# Suffixes of files that hold something else than MLIR; a bundle is a folder, which is asked for by name.
_SUFFIXES = {"txt": "text", "py": "triton", "ttir": "ttir", "ttgir": "ttgir", "ll": "llir", "llir": "llir",
             "ptx": "ptx", "cubin": "cubin"}  # fmt: skip

_DESCRIPTION = """\
Optimizes, checks and lowers tensor programs. Reads MLIR, runs passes in the order of their flags (or a
--pass-pipeline), and writes the result.
"""
_EPILOG = """\
examples:
  superopt-opt model.mlir --ingest-linalg --emit=text
  superopt-opt model.mlir --superoptimize="target=sm_90 budget=60" --emit=bundle -o out/model
  superopt-opt model.mlir --pass-pipeline='builtin.module(func.func(canonicalize),ingest-linalg,cse)'
"""


@dataclass(frozen=True)
class Settings:
    """What a command line asks for; the fields are named after the flags."""

    input: str = "-"
    output: str = "-"
    plugins: tuple[str, ...] = ()
    passes: tuple[tuple[str, str], ...] = ()
    pass_pipeline: str | None = None
    emit: EmitKind = "mlir"
    target: str | None = None
    report: str | None = None
    split_input_file: str | None = None
    output_split_marker: str = SPLIT_MARKER
    verify_diagnostics: bool = False
    verify_each: bool = True
    verify_each_equivalence: bool = False
    list_sites: bool = False
    allow_unregistered_dialect: bool = False
    no_implicit_module: bool = False
    run_reproducer: bool = False
    emit_bytecode: bool = False
    ptx_counts: bool = False
    dump_pass_pipeline: bool = False
    list_passes: bool = False
    show_dialects: bool = False
    print_ir_before: tuple[str, ...] = ()
    print_ir_after: tuple[str, ...] = ()
    print_ir_before_all: bool = False
    print_ir_after_all: bool = False
    print_ir_after_change: bool = False
    print_ir_after_failure: bool = False
    print_ir_module_scope: bool = False
    print_ir_tree_dir: str | None = None
    print_local_scope: bool = False
    use_nameloc_as_prefix: bool = False
    print_debuginfo: bool = False
    print_op_generic: bool = False
    elide_elementsattrs_if_larger: int | None = None
    timing: bool = False
    timing_display: Literal["list", "tree"] = "tree"
    output_format: Literal["text", "json"] = "text"
    disable_threading: bool = False
    verify_roundtrip: bool = False
    debug_only: tuple[str, ...] = ()
    remarks_filter: re.Pattern[str] | None = None
    pass_statistics: bool = False
    crash_reproducer: str | None = None
    quiet: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}; see {self.prog} --help")


class _Once(argparse.Action):
    """An option that may be given only once, as in MLIR's tools."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if getattr(namespace, f"_seen_{self.dest}", False):
            raise BadOption(f"option '{option_string}' is given twice")
        setattr(namespace, f"_seen_{self.dest}", True)
        setattr(namespace, self.dest, values)


class _Version(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        sys.stdout.write(versions())
        raise SystemExit(0)


class _Help(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        sys.stdout.write(parser.format_help() + "\n" + pass_help() + "\n" + _EPILOG)
        raise SystemExit(0)


def parse(arguments: Sequence[str]) -> Settings:
    """The settings of a command line; raises `BadOption`, or `SystemExit` after `--help` and `--version`."""
    parser = _parser()
    plugins, arguments = _load_plugins(arguments)
    arguments = [_two_dashes(a, parser) for a in arguments]
    bare = {"--verify-each": "true", "--split-input-file": SPLIT_MARKER}
    arguments = [f"{a}={bare[a]}" if a in bare else a for a in arguments]
    passes, rest = _take_passes(arguments)
    space, unknown = parser.parse_known_args(rest)
    for argument in unknown:
        if argument.startswith("--"):
            passes.append(_native_or_unknown(argument, parser))
        else:
            raise BadOption(f"unexpected argument '{argument}': one input file is read")
    if unknown:  # passes that only MLIR knows: put all of them back in the order they were given
        order = [a.split("=")[0].removeprefix("--") for a in arguments]
        passes.sort(key=lambda p: order.index(p[0]) if p[0] in order else len(order))
    if (schedule := vars(space).pop("schedule")) is not None:
        passes.append(("replay-schedule", f"file={spell_value(schedule)}"))
    values = {k: v for k, v in vars(space).items() if not k.startswith("_") and k != "plugins"}
    values["emit"] = values["emit"] or _emitted_as(values["output"])
    return _consistent(Settings(plugins=tuple(plugins), passes=tuple(passes), **values))


def spelled(settings: Settings) -> list[str]:
    """The flags that say what is done with the input, without those for what is printed and written."""
    flags = [f"--load-pass-plugin={file}" for file in settings.plugins]
    flags += [f"--{name}={options}" if options else f"--{name}" for name, options in settings.passes]
    if settings.pass_pipeline is not None:
        flags.append(f"--pass-pipeline={settings.pass_pipeline}")
    given = {
        "--run-reproducer": settings.run_reproducer,
        "--allow-unregistered-dialect": settings.allow_unregistered_dialect,
    }
    return flags + [flag for flag, on in given.items() if on]


def _load_plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Register the passes of plugins, so that their flags are known; returns their files and other arguments."""
    parser = _Parser(prog="superopt-opt", add_help=False, allow_abbrev=False)
    _add_plugins(parser)
    space, rest = parser.parse_known_args(arguments)
    if space.plugins:
        from superopt.driver import plugins

        for file in space.plugins:
            plugins.load(file)
    return space.plugins, rest


def _add_plugins(group: Any) -> None:
    group.add_argument(
        "--load-pass-plugin",
        metavar="FILE.py",
        action="append",
        dest="plugins",
        default=[],
        help="add the passes and optimizers that this Python file defines",
    )


def _consistent(settings: Settings) -> Settings:
    """`settings`, unless it asks for things that exclude each other."""
    if settings.passes and settings.pass_pipeline is not None:
        raise BadOption("--pass-pipeline excludes the flags of single passes")
    if settings.output_format != "text" and not settings.timing:
        raise BadOption("--mlir-output-format writes times: expected --mlir-timing with it")
    if settings.print_ir_tree_dir is not None and not _prints(settings):
        raise BadOption(
            "--mlir-print-ir-tree-dir takes what --mlir-print-ir-before/-after print: name one of these"
        )
    if settings.emit_bytecode and settings.emit != "mlir":
        raise BadOption(f"--emit-bytecode excludes --emit={settings.emit}")
    if settings.split_input_file and (settings.emit_bytecode or settings.emit not in ("mlir", "text")):
        raise BadOption("--split-input-file gives text: --emit=mlir or --emit=text")
    if settings.ptx_counts and settings.emit != "ptx":
        raise BadOption(f"--ptx-counts counts PTX: expected --emit=ptx, got --emit={settings.emit}")
    if settings.emit == "bundle" and settings.output == "-" and not settings.verify_diagnostics:
        raise BadOption("--emit=bundle writes a folder: name it with -o FOLDER")
    return settings


def _prints(settings: Settings) -> bool:
    """Whether IR is printed around passes."""
    return bool(
        settings.print_ir_before or settings.print_ir_after or settings.print_ir_before_all
        or settings.print_ir_after_all or settings.print_ir_after_change or settings.print_ir_after_failure
    )  # fmt: skip


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """Every flag with two dashes that argparse knows."""
    groups = parser._action_groups  # pyright: ignore[reportPrivateUsage]
    actions = [a for g in groups for a in g._group_actions]  # pyright: ignore[reportPrivateUsage]
    return [o for a in actions for o in a.option_strings if o.startswith("--")]


def _two_dashes(argument: str, parser: argparse.ArgumentParser) -> str:
    """`-cse` as `--cse`: MLIR's tools take one dash or two."""
    if not argument.startswith("-") or argument.startswith("--") or len(argument) < 3:
        return argument
    name = argument[1:].split("=")[0]
    is_pass = name in registry.flags() or name in registry.NATIVE_PASSES
    return f"-{argument}" if is_pass or f"--{name}" in _flags(parser) else argument


def _take_passes(arguments: Iterable[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The flags of known passes with their options, in order, and the other arguments."""
    passes: list[tuple[str, str]] = []
    rest: list[str] = []
    for argument in arguments:
        name, _, options = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and (name in registry.flags() or name in registry.NATIVE_PASSES):
            passes.append((name, options))
        else:
            rest.append(argument)
    return passes, rest


def _native_or_unknown(argument: str, parser: argparse.ArgumentParser) -> tuple[str, str]:
    """A pass that only MLIR knows, as in `--test-foo=bar`; raises `BadOption` if MLIR does not know it."""
    name, _, options = argument.removeprefix("--").partition("=")
    from superopt.dialects.mlir import ir, passmanager

    with captured_stderr():
        try:
            passmanager.PassManager.parse(f"any({name})", ir.Context())
        except ValueError:
            known = [*registry.flags(), *registry.NATIVE_PASSES, *(f[2:] for f in _flags(parser))]
            hint = did_you_mean(name, known)
            raise BadOption(f"unknown pass or option '--{name}'{hint}; see --help") from None
    return name, options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="superopt-opt",
        usage='superopt-opt [options] [--PASS[="name=value ..."] ...] [FILE]',
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    _add_general(parser.add_argument_group("general"))
    _add_passes(parser.add_argument_group("passes and checks"))
    _add_output(parser.add_argument_group("output"))
    _add_watching(parser.add_argument_group("watching passes (to standard error)"))
    return parser


def _switch(group: Any, flag: str, help_: str, dest: str | None = None) -> None:
    group.add_argument(flag, help=help_, action="store_true", **({"dest": dest} if dest else {}))


def _value(group: Any, flag: str, metavar: str, help_: str, **more: Any) -> None:
    group.add_argument(flag, metavar=metavar, help=help_, action=_Once, **more)


def _add_general(group: Any) -> None:
    group.add_argument(
        "input", nargs="?", default="-", metavar="FILE", help="MLIR to read; - is standard input"
    )
    _value(group, "-o", "FILE", "where to write; - is standard output", dest="output", default="-")
    group.add_argument("-h", "--help", action=_Help, nargs=0, dest="_help", help="print this help")
    group.add_argument("--version", action=_Version, nargs=0, dest="_version", help="print versions")
    _switch(group, "--list-passes", "print every pass and its options")
    _switch(group, "--show-dialects", "print the known dialects")
    _switch(group, "--quiet", "suppress progress and remarks")


def _add_passes(group: Any) -> None:
    _value(group, "--pass-pipeline", "TEXT", "passes to run, as in builtin.module(a,func.func(b{x=1}))")
    _value(group, "--schedule", "FILE", "same as --replay-schedule=file=FILE after all other passes")
    _add_plugins(group)
    _switch(group, "--dump-pass-pipeline", "print the pipeline to standard error")
    _value(
        group, "--verify-each", "BOOL", "verify after each pass (default: true)", type=_truth, default=True
    )
    _switch(
        group,
        "--verify-each-equivalence",
        "after each Python pass, prove that the program still computes the same",
    )
    _switch(group, "--list-sites", "print as remarks the decisions of passes: sites, and what they may be")
    _switch(
        group,
        "--verify-diagnostics",
        "check messages against expected-error (-warning, -remark, -note) comments",
    )
    _value(
        group,
        "--split-input-file",
        "MARKER",
        f"treat chunks separated by lines of this marker (default: {SPLIT_MARKER}) as separate inputs",
        type=_marker,
    )
    _value(
        group,
        "--output-split-marker",
        "MARKER",
        f"the line between the outputs of chunks (default: {SPLIT_MARKER})",
        default=SPLIT_MARKER,
    )
    _switch(
        group,
        "--verify-roundtrip",
        "check that the input, printed as text and as bytecode, is read as it was",
    )
    _switch(group, "--mlir-disable-threading", "MLIR's passes use one thread", "disable_threading")
    _switch(group, "--allow-unregistered-dialect", "accept operations of unregistered dialects")
    _switch(group, "--no-implicit-module", "do not wrap the input in a module")
    _value(
        group,
        "--mlir-pass-pipeline-crash-reproducer",
        "FILE",
        "if a pass fails or crashes, write a reproducer here for --run-reproducer",
        dest="crash_reproducer",
    )
    _switch(group, "--run-reproducer", "run the pipeline recorded in the input file")


def _add_output(group: Any) -> None:
    kinds = get_args(EmitKind)
    emit = f"what to write: {'|'.join(kinds)} (default: what the suffix of -o names, else mlir)"
    _value(group, "--emit", "KIND", emit, type=_one_of(*kinds))
    known = target_names()
    targets = (
        f"target of --emit: {'|'.join(known)}, a GPU such as H100, or native (default: the passes' target, else "
        f"{DEFAULT_TARGET})"
    )
    _value(group, "--target", "SM", targets, type=_target)
    _value(
        group,
        "--report",
        "FILE",
        "write the passes' report as JSON, or, to FILE.html, a page on the run of --superoptimize",
    )
    _switch(group, "--emit-bytecode", "write MLIR bytecode")
    _switch(group, "--ptx-counts", "with --emit=ptx: write what a block of each kernel does before it")
    _switch(group, "--mlir-print-debuginfo", "print locations", "print_debuginfo")
    _switch(group, "--mlir-print-op-generic", "print the generic form", "print_op_generic")
    _switch(
        group,
        "--mlir-print-local-scope",
        "print attributes and types in place, without aliases",
        "print_local_scope",
    )
    _switch(
        group,
        "--mlir-use-nameloc-as-prefix",
        "call values by the names of their locations",
        "use_nameloc_as_prefix",
    )
    _value(
        group,
        "--mlir-elide-elementsattrs-if-larger",
        "N",
        "elide constants with more than N elements",
        dest="elide_elementsattrs_if_larger",
        type=_natural,
    )


def _add_watching(group: Any) -> None:
    for when in ("before", "after"):
        flag, dest = f"--mlir-print-ir-{when}", f"print_ir_{when}"
        _value(
            group,
            flag,
            "PASSES",
            f"print IR {when} these passes, comma-separated",
            dest=dest,
            type=_names,
            default=(),
        )
        _switch(group, f"{flag}-all", f"print IR {when} each pass", f"{dest}_all")
    _switch(group, "--mlir-print-ir-after-change", "print IR only if it changed", "print_ir_after_change")
    _switch(
        group, "--mlir-print-ir-after-failure", "print IR after a pass that failed", "print_ir_after_failure"
    )
    _switch(
        group,
        "--mlir-print-ir-module-scope",
        "print the whole module around passes on functions, too",
        "print_ir_module_scope",
    )
    _value(
        group,
        "--mlir-print-ir-tree-dir",
        "FOLDER",
        "print IR to files in a tree of folders that follows the nesting of passes, not to standard error",
        dest="print_ir_tree_dir",
        type=_folder,
    )
    _switch(group, "--mlir-timing", "print how long each pass took", "timing")
    _value(
        group,
        "--mlir-timing-display",
        "FORM",
        "tree: in the order and nesting of the passes (the default); list: by name, longest first",
        dest="timing_display",
        type=_one_of("tree", "list"),
        default="tree",
    )
    _value(
        group,
        "--mlir-output-format",
        "FORM",
        "how --mlir-timing is written: text (the default) or json",
        dest="output_format",
        type=_one_of("text", "json"),
        default="text",
    )
    _value(
        group,
        "--debug-only",
        "KINDS",
        f"print these events of a run as they happen, comma-separated: {', '.join(log.KINDS)}",
        type=_events,
        default=(),
    )
    _value(group, "--remarks-filter", "REGEX", "show only the remarks that match", type=_regex)
    _switch(
        group, "--mlir-pass-statistics", "count the operations each pass adds and removes", "pass_statistics"
    )


def _truth(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"expected true or false, got '{text}'")
    return values[text.lower()]


def _one_of(*names: str) -> Callable[[str], str]:
    """The type of an option that takes one of these."""

    def named(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(
                f"expected one of {', '.join(names)}, got '{text}'{did_you_mean(text, names)}"
            )
        return text

    return named


def _events(text: str) -> tuple[str, ...]:
    return tuple(map(_one_of(*log.KINDS), _names(text)))


def _marker(text: str) -> str:
    if not text.strip() or "\n" in text:
        raise argparse.ArgumentTypeError(f"expected a marker of one line, got '{text}'")
    return text.strip()


def _folder(text: str) -> str:
    if not text or text == "-":
        raise argparse.ArgumentTypeError(f"expected a folder, got '{text}'")
    return text


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"expected a regular expression, got '{text}': {error}") from None


def _emitted_as(output: str) -> str:
    """What a file of this name holds; MLIR where the suffix says nothing."""
    return _SUFFIXES.get(output[output.rfind(".") + 1 :] if "." in output else "", "mlir")


def _target(text: str) -> str:
    try:
        return target(text).name
    except BadOption as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of elements, got '{text}'")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


# --- the list of passes -----------------------------------------------------------------------------------


def loaded_passes() -> list[tuple[str, type[Pass] | None, str]]:
    """Every Python pass: flag, class, and, if the class cannot be imported and is None, why."""
    found: list[tuple[str, type[Pass] | None, str]] = []
    for flag in registry.flags():
        try:
            found.append((flag, registry.load(flag), ""))
        except ImportError as error:
            found.append((flag, None, str(error)))
    return found


def default_text(option: Option) -> str:
    """The default of an option in words."""
    return "required" if option.default is MISSING else f"default: {spell_value(option.default)}"


def pass_help() -> str:
    """The section of `--help` on passes, which `--list-passes` prints, too."""
    lines = ['passes, in the order given; options as --flag="name=value name=value":']
    for flag, loaded, reason in loaded_passes():
        lines += _entry(f"  --{flag}", loaded.summary() if loaded else f"not available: {reason}")
        for option in loaded.options() if loaded else ():
            note = f"{option.help} ({option.type_name}; {default_text(option)})".strip()
            lines += _entry(f"      {option.name}", note)
    lines.append("MLIR's passes (any other pass that MLIR knows may be named, too):")
    for flag, summary in registry.NATIVE_PASSES.items():
        lines += _entry(f"  --{flag}", summary)
    return "\n".join(lines) + "\n"


def _entry(name: str, text: str, width: int = 32) -> list[str]:
    wrapped = textwrap.wrap(text, 100 - width) or [""]
    first = f"{name:<{width - 1}} {wrapped[0]}" if len(name) < width else f"{name}  {wrapped[0]}"
    return [first, *(" " * width + line for line in wrapped[1:])]
