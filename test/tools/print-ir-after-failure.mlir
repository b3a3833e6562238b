// What a pass left when it failed, and how to replay the failure.
// RUN: not superopt-opt %s --cse --affine-loop-unroll --mlir-print-ir-after-failure --mlir-pass-pipeline-crash-reproducer=%t.mlir 2>&1 | filecheck %s
// RUN: filecheck %s --input-file=%t.mlir --check-prefix=REPRODUCER
// RUN: not superopt-opt %t.mlir --run-reproducer 2>&1 | filecheck %s --check-prefix=REPLAY
// RUN: superopt-opt %s --cse --mlir-pass-pipeline-crash-reproducer=%t.none.mlir -o /dev/null
// RUN: not ls %t.none.mlir
// RUN: not superopt-opt %s --run-reproducer 2>&1 | filecheck %s --check-prefix=NONE

// CHECK: IR Dump After AffineLoopUnroll Failed (affine-loop-unroll)
// CHECK: func.func @f
// CHECK: error: unable to schedule pass 'AffineLoopUnroll'
// REPRODUCER: func.func @f
// REPRODUCER: mlir_reproducer
// REPRODUCER-NEXT: pipeline: "builtin.module(affine-loop-unroll)"
// REPLAY: error: unable to schedule pass 'AffineLoopUnroll'
// NONE: error: expected a reproducer, got a file without 'mlir_reproducer'
func.func @f(%a: i32) -> i32 {
  return %a : i32
}
