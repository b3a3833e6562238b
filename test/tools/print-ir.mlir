// RUN: superopt-opt %s --cse --canonicalize --mlir-print-ir-after=cse -o /dev/null 2>&1 | filecheck %s --check-prefix=AFTER
// RUN: superopt-opt %s --cse --canonicalize --mlir-print-ir-before=canonicalize -o /dev/null 2>&1 | filecheck %s --check-prefix=BEFORE
// RUN: superopt-opt %s --cse --cse --ingest-linalg --mlir-print-ir-after-all --mlir-print-ir-after-change -o /dev/null 2>&1 | filecheck %s --check-prefix=CHANGE
// RUN: superopt-opt %s --cse --ingest-linalg --mlir-print-ir-before-all --mlir-print-ir-after-all -o /dev/null 2>&1 | filecheck %s --check-prefix=ALL
// RUN: not superopt-opt %s --cse --mlir-print-ir-after=canonicalize 2>&1 | filecheck %s --check-prefix=NAME
// RUN: superopt-opt %s --mlir-print-debuginfo | filecheck %s --check-prefix=LOC
// RUN: superopt-opt %s --mlir-print-op-generic | filecheck %s --check-prefix=GENERIC

// AFTER: // -----// IR Dump After Cse (cse) //----- //
// AFTER: %0 = arith.addf
// AFTER-NEXT: return
// AFTER-NOT: IR Dump

// BEFORE-NOT: IR Dump After
// BEFORE: // -----// IR Dump Before Canonicalize (canonicalize) //----- //
// BEFORE: return

// CHANGE-COUNT-1: IR Dump After Cse (cse)
// CHANGE-NOT: IR Dump After Cse (cse)
// CHANGE: IR Dump After IngestLinalg (ingest-linalg)
// CHANGE: kernel.add

// ALL: IR Dump Before Cse
// ALL: IR Dump After Cse
// ALL: IR Dump Before IngestLinalg
// ALL: IR Dump After IngestLinalg

// NAME: error: --mlir-print-ir-before/-after names 'canonicalize', which is not among the passes
// LOC: loc("{{.*}}print-ir.mlir":
// GENERIC: "func.func"
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  %1 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
