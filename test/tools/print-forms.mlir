// How values, attributes and locations are printed.
// RUN: superopt-opt %s --mlir-print-debuginfo | filecheck %s --check-prefix=ALIAS
// RUN: superopt-opt %s --mlir-print-debuginfo --mlir-print-local-scope | filecheck %s --check-prefix=LOCAL
// RUN: superopt-opt %s --mlir-use-nameloc-as-prefix | filecheck %s --check-prefix=NAME

// ALIAS: arith.addi {{.*}} loc(#loc
// LOCAL-NOT: #loc
// LOCAL: arith.addi {{.*}} loc("total"(
// NAME: %total = arith.addi
func.func @f(%a: i32) -> i32 {
  %0 = arith.addi %a, %a : i32 loc("total"("model.py":3:1))
  return %0 : i32
}
