// RUN: not superopt-opt %s 2>&1 | filecheck %s --check-prefix=STRICT
// RUN: superopt-opt %s --allow-unregistered-dialect | filecheck %s
// RUN: superopt-opt %s --allow-unregistered-dialect --no-implicit-module | filecheck %s --check-prefix=BARE

// STRICT: unregistered.mlir:11:8: error: expected a known registered operation, got 'toy.add'
// CHECK: module
// CHECK: "toy.add"
// BARE-NOT: module
// BARE: "toy.add"
func.func @f(%a: i32) -> i32 {
  %0 = "toy.add"(%a) : (i32) -> i32
  return %0 : i32
}
