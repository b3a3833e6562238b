"""The table of malformed and unsupported inputs: what is given, and what the answer has to say.

`docs/errors.md` shows it with the messages that the tools really print; `test_bad_input.py` checks both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GOOD = """func.func @f(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "kernel.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""


@dataclass(frozen=True)
class Case:
    """One bad input: `arguments` run beside `files`; the answer is `exit_code` and holds `says`."""

    name: str
    arguments: tuple[str, ...]
    says: str
    files: dict[str, str | bytes] = field(default_factory=dict[str, "str | bytes"])
    exit_code: int = 1
    tool: str = "superopt-opt"


def kernel(body: str, result: str = "tensor<8x16xf32>") -> dict[str, str | bytes]:
    """A file of one function on `%x: tensor<8x16xf32>`, whose `body` defines `%0`."""
    text = f"func.func @f(%x: tensor<8x16xf32>) -> {result} {{\n  {body}\n  return %0 : {result}\n}}\n"
    return {"x.mlir": text}


def custom(
    imap: str = "1", omap: str = "1", grid: str = "4", tile: str = "8x4", shape: str = "8x16"
) -> dict[str, str | bytes]:
    """A custom kernel that copies, with one map or extent to get wrong."""
    return {
        "x.mlir": f"""func.func @f(%x: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
  %0 = "superopt.custom"(%x) ({{
  ^bb0(%a: tensor<{shape}xf32>):
    %t = "block.iterator"(%a) {{imap = array<i64: {imap}>, fmap = array<i64>}}
        : (tensor<{shape}xf32>) -> tensor<{tile}xf32>
    "block.save"(%t) {{omap = array<i64: {omap}>}} : (tensor<{tile}xf32>) -> ()
  }}) {{grid = array<i64: {grid}>, loops = array<i64>}} : (tensor<{shape}xf32>) -> tensor<{shape}xf32>
  return %0 : tensor<{shape}xf32>
}}
"""
    }


def linalg_add(type_: str) -> dict[str, str | bytes]:
    """`linalg.add` of two tensors of one type."""
    return {
        "x.mlir": f"func.func @f(%a: {type_}, %b: {type_}, %o: {type_}) -> {type_} {{\n"
        f"  %0 = linalg.add ins(%a, %b : {type_}, {type_}) outs(%o : {type_}) -> {type_}\n"
        f"  return %0 : {type_}\n}}\n"
    }


def many_operations(count: int, last: str) -> dict[str, str | bytes]:
    """A file of `count` operations that ends with the line `last`."""
    lines = ["func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {", "  %0 = arith.addf %x, %x : tensor<4xf32>"]
    lines += [f"  %{i} = arith.addf %{i - 1}, %x : tensor<4xf32>" for i in range(1, count)]
    return {"x.mlir": "\n".join([*lines, last, "}"]) + "\n"}


_RUN = ("x.mlir",)
_SEARCH = ("x.mlir", "--superoptimize")
_GOOD: dict[str, str | bytes] = {"x.mlir": GOOD}

CASES = (
    # what is no MLIR
    Case("no such file", ("missing.mlir",), "missing.mlir: error: no such file"),
    Case("a directory", (".",), ".: error: expected a file, got a directory"),
    Case("an empty file", _RUN, "x.mlir:1:1: error: expected an MLIR module, got empty input", {"x.mlir": ""}),
    Case("binary noise", _RUN, "x.mlir:2:3: error: expected MLIR text or bytecode, got binary data", {"x.mlir": b"ab\n\x7fE\x00\x01\xff"}),
    Case("text that is not UTF-8", _RUN, "x.mlir:2:10: error: expected UTF-8 text, got the byte 0xe9", {"x.mlir": b"// ok\n// caf\xc3\xa9 \xe9\n"}),
    Case("truncated bytecode", _RUN, "x.mlir: error: attempting to parse a byte at the end of the bytecode", {"x.mlir": b"ML\xefR\x0dMLIR24.0.0git\x00\x1f"}),
    Case("brackets nested 10,000 deep", _RUN, "x.mlir:1:269: error: expected at most 256 nested brackets", {"x.mlir": '"a.b"() {x = ' + "[" * 10_000 + "]" * 10_000 + "} : () -> ()"}),
    Case("types nested 10,000 deep", _RUN, "error: expected at most 256 nested brackets", {"x.mlir": '"a.b"() : () -> ' + "tuple<" * 10_000 + "i32" + ">" * 10_000}),
    # MLIR that does not parse or verify
    Case("a syntax error", _RUN, "x.mlir:1:14: error: expected non-function type", {"x.mlir": "func.func @f( {\n}\n"}),
    Case("an undeclared value", _RUN, "x.mlir:2:21: error: use of undeclared SSA value name", kernel('%0 = "kernel.exp"(%y) : (tensor<8x16xf32>) -> tensor<8x16xf32>')),
    Case("a type that contradicts itself", _RUN, "x.mlir:3:10: error: use of value '%0' expects different type", kernel('%0 = "kernel.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>', "tensor<8xf32>")),
    Case("an error at the end of 100,000 operations", _RUN, "x.mlir:100002:10: error: use of undeclared SSA value name", many_operations(100_000, "  return %y : tensor<4xf32>")),
    Case("an operation of an unknown dialect", _RUN, "x.mlir:2:8: error: expected a known registered operation, got 'toy.exp'", kernel('%0 = "toy.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>')),
    Case("an unknown operation of the kernel dialect", _RUN, "x.mlir:2:8: error: unregistered operation 'kernel.frobnicate'", kernel('%0 = "kernel.frobnicate"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>')),
    Case("a wrong result shape", _RUN, "x.mlir:2:8: error: expected result type tensor<8x16xf32>, got tensor<16x8xf32>", kernel('%0 = "kernel.exp"(%x) : (tensor<8x16xf32>) -> tensor<16x8xf32>', "tensor<16x8xf32>")),
    Case("operands of two dtypes", _RUN, "x.mlir:3:8: error: 'add' expected operands of one dtype, got f16 and f32", kernel('%c = "kernel.constant"() {value = 1.0} : () -> tensor<f16>\n  %0 = "kernel.add"(%x, %c) : (tensor<8x16xf32>, tensor<f16>) -> tensor<8x16xf32>')),
    Case("an attribute of the wrong kind", _RUN, "x.mlir:2:8: error: 'reduce_sum' expected attribute 'dims' of kind ints", kernel('%0 = "kernel.reduce_sum"(%x) {dims = "one"} : (tensor<8x16xf32>) -> tensor<8xf32>', "tensor<8xf32>")),
    Case("an attribute that is missing", _RUN, "x.mlir:2:8: error: 'reduce_sum' expected attribute 'dims' (ints), got none", kernel('%0 = "kernel.reduce_sum"(%x) : (tensor<8x16xf32>) -> tensor<8xf32>', "tensor<8xf32>")),
    Case("an unsupported dtype", _RUN, "got 'f64'", kernel('%c = "kernel.constant"() {value = 1.0} : () -> tensor<f64>\n  %0 = "kernel.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>')),
    Case("StableHLO as its printer writes it", _RUN, "x.mlir:2:8: error: Dialect `stablehlo' not found for custom op 'stablehlo.exponential'; stablehlo-opt --stablehlo-legalize-to-linalg turns stablehlo into linalg", kernel("%0 = stablehlo.exponential %x : tensor<8x16xf32>")),
    Case("StableHLO in generic form", _RUN, "x.mlir:2:8: error: expected a known registered operation, got 'stablehlo.exponential'; stablehlo-opt --stablehlo-legalize-to-linalg turns", kernel('%0 = "stablehlo.exponential"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>')),
    Case("the torch dialect", _RUN, "; torch-mlir-opt --torch-backend-to-linalg-on-tensors-backend-pipeline turns torch into linalg", kernel('%0 = torch.aten.exp %x : tensor<8x16xf32> -> tensor<8x16xf32>')),
    # rules of the block level
    Case("an imap out of range", _RUN, "x.mlir:4:10: error: 'iterator' expected 'imap' entries in [-1, 2), got 2", custom(imap="2")),
    Case("tiles that do not cover", _RUN, "x.mlir:4:10: error: 'iterator' expected tiles along dimension 1 that cover its extent 16", custom(grid="5", tile="8x3")),
    Case("an output dimension that two blocks write", _RUN, "or two blocks write one output, got -1", custom(omap="-1", tile="8x4")),
    Case("more shared memory than any target has", _RUN, "x.mlir:2:8: error: expected at most 232448 bytes of shared memory", custom(grid="2", shape="1024x512", tile="1024x256")),
    # what can be parsed but not taken
    Case("a dynamic shape", ("x.mlir", "--ingest-linalg"), "x.mlir:1:1: error: expected static extents", linalg_add("tensor<?x16xf32>")),
    Case("an extent of zero", ("x.mlir",), "x.mlir:1:1: error: expected input 'x' to have extents of 1 to 2147483647", {"x.mlir": GOOD.replace("8x16", "0x16")}),
    Case("an extent beyond 32 bits", ("x.mlir",), "x.mlir:1:1: error: expected input 'x' to have extents of 1 to 2147483647", {"x.mlir": GOOD.replace("8x16", "3000000000x16")}),
    Case("a file of comments only", _SEARCH, "x.mlir: error: expected one function with a body, got 0", {"x.mlir": "// nothing\n"}),
    Case("a function without a body", _SEARCH, "x.mlir: error: expected one function with a body, got 0", {"x.mlir": "func.func private @f(tensor<4xf32>) -> tensor<4xf32>\n"}),
    Case("two functions at once", _SEARCH, "x.mlir:5:1: error: expected one function with a body, got 2", {"x.mlir": GOOD + GOOD.replace("@f", "@g")}),
    Case("linalg where kernels are expected", ("x.mlir", "--partition"), "; --ingest-linalg turns linalg into it", linalg_add("tensor<8x16xf32>")),
    # command lines
    Case("an unknown flag", ("x.mlir", "--canonicalise"), "superopt-opt: error: unknown pass or option '--canonicalise' (did you mean 'canonicalize'?)", _GOOD, exit_code=2),
    Case("an unknown pass in a pipeline", ("x.mlir", "--pass-pipeline=builtin.module(cse,ingest-linarg)"), "--pass-pipeline:1:20: error: unknown pass 'ingest-linarg' (did you mean 'ingest-linalg'?)", _GOOD, exit_code=2),
    Case("a pipeline without its operation", ("x.mlir", "--pass-pipeline=cse"), "--pass-pipeline:1:1: error: expected a pipeline wrapped in the operation it runs on", _GOOD, exit_code=2),
    Case("a pipeline with a bracket missing", ("x.mlir", "--pass-pipeline=builtin.module(func.func(cse)"), "--pass-pipeline:1:30: error: expected ',' or ')' after 'func.func'", _GOOD, exit_code=2),
    Case("an unknown option of a pass", ("x.mlir", "--superoptimize=bugdet=3"), "--superoptimize:1:17: error: superoptimize has no option 'bugdet' (did you mean 'budget'?)", _GOOD, exit_code=2),
    Case("an option of the wrong type", ("x.mlir", "--superoptimize=budget=soon"), "--superoptimize:1:17: error: superoptimize: option 'budget' expects a number, got 'soon'", _GOOD, exit_code=2),
    Case("an option of a native pass", ("x.mlir", "--canonicalize=max-iterations=few"), "--canonicalize:1:16: error: canonicalize: ", _GOOD, exit_code=2),
    Case("an option given twice", ("x.mlir", "--superoptimize=seed=1 seed=2"), "--superoptimize:1:24: error: superoptimize: option 'seed' is given twice", _GOOD, exit_code=2),
    Case("a negative budget", ("x.mlir", "--superoptimize=budget=-1"), "error: expected a positive budget in seconds, got -1", _GOOD, exit_code=2),
    Case("a negative seed", ("x.mlir", "--superoptimize=seed=-1"), "--superoptimize:1:17: error: expected a non-negative seed, got -1", _GOOD, exit_code=2),
    Case("an integer beyond 32 bits", ("x.mlir", "--mugraph-search=max-states=99999999999"), "--mugraph-search:1:18: error: mugraph-search: option 'max-states' expects an integer between", _GOOD, exit_code=2),
    Case("a number of warps that no block has", ("x.mlir", "--block-to-tile=num-warps=3"), "--block-to-tile:1:17: error: expected num-warps of 1, 2, 4, 8, 16, 32, got 3", _GOOD, exit_code=2),
    Case("an e-graph into a folder that does not exist", ("x.mlir", "--saturate-tiles=print-egraph=no/x.dot"), "--saturate-tiles:1:18: error: expected print-egraph to name a file in a folder that exists", _GOOD, exit_code=2),
    Case("an unknown GPU to optimize for", ("x.mlir", "--superoptimize=target=sm_75"), "error: expected a target of ", _GOOD, exit_code=2),
    Case("an unknown GPU to emit for", ("x.mlir", "--emit=ptx", "--target=sm_75"), "error: argument --target: expected a target of ", _GOOD, exit_code=2),
    Case("an unknown kind of output", ("x.mlir", "--emit=sass"), "error: argument --emit: expected one of mlir, text, triton, ttir, ttgir, llir, ptx, cubin, bundle, got 'sass'", _GOOD, exit_code=2),
    Case("a flag given twice", ("x.mlir", "-o", "a", "-o", "b"), "superopt-opt: error: option '-o' is given twice", _GOOD, exit_code=2),
    Case("a flag without its value", ("x.mlir", "-o"), "superopt-opt: error: argument -o: expected one argument", _GOOD, exit_code=2),
    Case("a truth value that is none", ("x.mlir", "--verify-each=perhaps"), "expected true or false, got 'perhaps'", _GOOD, exit_code=2),
    Case("two input files", ("x.mlir", "y.mlir"), "superopt-opt: error: unexpected argument 'y.mlir'", _GOOD, exit_code=2),
    Case("flags that exclude each other", ("x.mlir", "--cse", "--pass-pipeline=builtin.module(cse)"), "--pass-pipeline excludes the flags of single passes", _GOOD, exit_code=2),
    Case("IR printed after a pass that does not run", ("x.mlir", "--cse", "--mlir-print-ir-after=inline"), "names 'inline', which is not among the passes", _GOOD, exit_code=2),
    Case("a reproducer that is none", ("x.mlir", "--run-reproducer"), "x.mlir: error: expected a reproducer, got a file without 'mlir_reproducer'", _GOOD),
    Case("a GPU that is misspelt", ("x.mlir", "--superoptimize=target=H10"), "got 'H10' (did you mean 'H100'?)", _GOOD, exit_code=2),
    Case("a page on a run that there was not", ("x.mlir", "--cse", "--report=r.html"), "superopt-opt: error: --report=FILE.html shows one run of --superoptimize, got 0", _GOOD, exit_code=2),
    # outputs: all refused before any work is done
    Case("an output in a folder that does not exist", ("x.mlir", "-o", "no/y.mlir"), "no/y.mlir: error: cannot write: no such folder no", _GOOD),
    Case("an output that is a directory", ("x.mlir", "-o", "."), ".: error: cannot write: is a directory", _GOOD),
    Case("a bundle to standard output", ("x.mlir", "--emit=bundle"), "superopt-opt: error: --emit=bundle writes a folder: name it with -o FOLDER", _GOOD, exit_code=2),
    Case("counts of what is not PTX", ("x.mlir", "--emit=ttir", "--ptx-counts"), "superopt-opt: error: --ptx-counts counts PTX: expected --emit=ptx, got --emit=ttir", _GOOD, exit_code=2),
    Case("a bundle onto a file", ("x.mlir", "--emit=bundle", "-o", "x.mlir"), "x.mlir: error: cannot write: expected a folder, got a file", _GOOD),
    Case("a report that cannot be written", ("x.mlir", "--report=no/r.json"), "no/r.json: error: cannot write: no such folder no", _GOOD),
    # the other tools
    Case("a truncated certificate", ("--replay", "c.json"), "c.json: error: expected a certificate, got the document: Invalid JSON", {"c.json": '{"version": 1, "prog'}, exit_code=2, tool="superopt-verify"),
    Case("a certificate that is another document", ("--replay", "c.json"), "c.json: error: expected a certificate, got", {"c.json": '{"version": 1}'}, exit_code=2, tool="superopt-verify"),
    Case("a certificate that is missing", ("--replay", "c.json"), "c.json: error: ", exit_code=2, tool="superopt-verify"),
    Case("a seed of tests that nobody draws", ("x.mlir", "x.mlir", "--seed=-1"), "superopt-verify: error: argument --seed: expected a number from 0 to 2^63 - 1, got -1", _GOOD, exit_code=2, tool="superopt-verify"),
    Case("one program to compare", ("x.mlir",), "superopt-verify: error: expected two programs, a bundle's folder, or --replay or --check with a certificate, got x.mlir", _GOOD, exit_code=2, tool="superopt-verify"),
    Case("a bundle to verify that is missing", ("out/model",), "superopt-verify: error: expected two programs or a bundle's folder, got no such folder: out/model", exit_code=2, tool="superopt-verify"),
    Case("a program to compare that does not parse", ("x.mlir", "y.mlir"), "y.mlir:1:14: error: expected non-function type", {**_GOOD, "y.mlir": "func.func @f( {\n}\n"}, exit_code=2, tool="superopt-verify"),
    Case("a bundle that is none", (".",), "superopt-run: error: expected a bundle, got a folder without bundle.json", exit_code=2, tool="superopt-run"),
    Case("a module to import that is missing", ("m.py:f",), "m.py: error: cannot read: no such file", tool="superopt-import"),
    Case("a factory that is missing", ("m.py:g",), "m.py: error: expected a function 'g', got no such name; it has f", {"m.py": "def f():\n    return 3\n"}, tool="superopt-import"),
    Case("a factory that returns something else", ("m.py:f",), "m.py:1:1: error: expected 'f' to return (module, tuple of example inputs), got int", {"m.py": "def f():\n    return 3\n"}, tool="superopt-import"),
    Case("a module that raises", ("m.py:f",), "m.py:1:1: error: the file raised ZeroDivisionError", {"m.py": "1/0\n"}, tool="superopt-import"),
    Case("a Python file", ("x.py",), "x.py: error: expected MLIR, got Python; superopt-import x.py:FACTORY -o OUT.mlir writes the MLIR of a PyTorch module", {"x.py": "import torch\n"}),
    Case("a document", ("x.md",), "x.md: error: expected MLIR, got a text for people: x.md", {"x.md": "# A title\n"}),
    Case("a program to measure that is missing", ("prepare", "x.mlir", "-o", "f"), "x.mlir: error: no such file", tool="superopt-bench"),
    Case("a GPU to measure for that is unknown", ("prepare", "x.mlir", "-o", "f", "--target=sm_75"), "error: expected a target of ", _GOOD, exit_code=2, tool="superopt-bench"),
    Case("a folder to prepare that is a file", ("prepare", "x.mlir", "-o", "x.mlir"), "error: expected a folder to write into, got a file: x.mlir", _GOOD, tool="superopt-bench"),
    Case("a budget that is none", ("prepare", "x.mlir", "-o", "f", "--budget=-1"), "superopt-bench: error: argument --budget: expected a positive number of seconds, got -1", _GOOD, exit_code=2, tool="superopt-bench"),
    Case("a folder to measure that is none", ("measure", ".", "-o", "r.json"), "superopt-bench: error: expected a prepared folder, got none: .", exit_code=2, tool="superopt-bench"),
    Case("results that are none", ("report", "r.json"), "error: expected results in r.json, got another document", {"r.json": "{}"}, tool="superopt-bench"),
    Case("results that are missing", ("report", "r.json"), "error: expected results or a prepared folder, got no such file: r.json", tool="superopt-bench"),
    Case("results to learn from that are missing", ("model", "no"), "error: expected a folder of results, got none: no", tool="superopt-bench"),
    Case("an option of another tool that is misspelt", (".", "--devce=cpu"), "superopt-run: error: unrecognized arguments: --devce=cpu (did you mean '--device'?); see superopt-run --help", exit_code=2, tool="superopt-run"),
    Case("an option of a tool's command", ("prepare", "x.mlir", "-o", "f", "--budgt=3"), "superopt-bench: error: unrecognized arguments: --budgt=3 (did you mean '--budget'?); see superopt-bench --help", _GOOD, exit_code=2, tool="superopt-bench"),
    Case("a device that there is not", (".", "--device=cud"), "superopt-run: error: argument --device: expected one of cuda, interpreter, cpu, got 'cud' (did you mean 'cuda'?)", exit_code=2, tool="superopt-run"),
    Case("a command that is misspelt", ("lst",), "superopt-store: error: argument COMMAND: expected one of list, check, export, merge, got 'lst' (did you mean 'list'?)", exit_code=2, tool="superopt-store"),
    Case("no factory to import", (), "superopt-import: error: the following arguments are required: FILE.py:FACTORY; see superopt-import --help", exit_code=2, tool="superopt-import"),
)  # fmt: skip
