// Remarks by their text, and the events of a run as they happen.
// RUN: superopt-opt %S/../transforms/ingest-linalg-extern.mlir --split-input-file --ingest-linalg --remarks-filter="nothing of this" -o /dev/null > %t.err 2>&1 && test ! -s %t.err
// RUN: superopt-opt %S/../transforms/ingest-linalg-extern.mlir --split-input-file --ingest-linalg --remarks-filter="type f6." -o /dev/null 2>&1 | filecheck %s --check-prefix=SHOWN
// RUN: superopt-opt %s --superoptimize="budget=1 store=none" --debug-only=gate,result -o /dev/null 2>&1 | filecheck %s --check-prefix=DEBUG
// RUN: not superopt-opt %s --debug-only=gates 2>&1 | filecheck %s --check-prefix=MEANT
// RUN: not superopt-opt %s --remarks-filter="(" 2>&1 | filecheck %s --check-prefix=REGEX

// SHOWN-NOT: pooling_nhwc_min
// SHOWN: remark: 'linalg.generic' is kept as superopt.extern: tensors of element type f64
// SHOWN-NOT: a reduction that is not

// DEBUG-NOT: stage:
// DEBUG: gate: program: f, gate: legal, passed: True
// DEBUG: result: program: f
// MEANT: error: argument --debug-only: expected one of stage, gate, result, got 'gates' (did you mean 'gate'?)
// REGEX: error: argument --remarks-filter: expected a regular expression, got '('
func.func @f(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = "kernel.relu"(%a) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
