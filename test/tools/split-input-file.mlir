// Chunks are inputs of their own, with the line numbers of the whole file; one that fails does not stop the others.
// RUN: not superopt-opt %s --split-input-file > %t.out 2> %t.err
// RUN: filecheck %s --input-file=%t.out
// RUN: filecheck %s --input-file=%t.err --check-prefix=ERR
// RUN: not superopt-opt %s 2>&1 | filecheck %s --check-prefix=WHOLE

// CHECK: func.func @first
// CHECK: // -----
// CHECK: func.func @third
// CHECK-NOT: func.func

// ERR: split-input-file.mlir:21:10: error: use of undeclared SSA value name
// ERR-NEXT: return %x : i32
// ERR-NEXT: {{^}}         ^
// WHOLE: split-input-file.mlir:21:10: error
func.func @first(%a: i32) -> i32 {
  return %a : i32
}
// -----
func.func @second(%a: i32) -> i32 {
  return %x : i32
}
// -----
func.func @third(%a: i32) -> i32 {
  return %a : i32
}
