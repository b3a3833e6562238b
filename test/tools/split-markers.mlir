// Chunks may be separated by other lines, and so may their outputs.
// RUN: superopt-opt %s --split-input-file="// ====" --output-split-marker="// next" | filecheck %s
// RUN: superopt-opt %s --split-input-file="// ====" --verify-roundtrip | filecheck %s --check-prefix=DEFAULT
// RUN: not superopt-opt %s --split-input-file= 2>&1 | filecheck %s --check-prefix=EMPTY

// CHECK: func.func @first
// CHECK: // next
// CHECK: func.func @first
// CHECK-NOT: // -----
// DEFAULT: func.func @first
// DEFAULT: // -----
// DEFAULT: func.func @first
// EMPTY: error: argument --split-input-file: expected a marker of one line, got ''
func.func @first(%a: i32) -> i32 {
  return %a : i32
}
// ====
func.func @first(%a: i32) -> i32 {
  %0 = arith.addi %a, %a : i32
  return %0 : i32
}
