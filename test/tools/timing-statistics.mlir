// RUN: superopt-opt %s --cse --ingest-linalg --mlir-timing --mlir-pass-statistics -o /dev/null 2>&1 | filecheck %s

// CHECK: Execution time report
// CHECK: Total Execution Time:
// CHECK: Parser
// CHECK-NEXT: {{ }}cse
// CHECK-NEXT: ingest-linalg
// CHECK-NEXT: Output
// CHECK-NEXT: (100.0%) Total
// CHECK: Pass statistics report
// CHECK: cse
// CHECK-NEXT: (S) 5 operations before
// CHECK-NEXT: (S) 4 operations after
// CHECK-NEXT: (S) -1 arith.addf
// CHECK: ingest-linalg
// CHECK: (S) +1 kernel.add
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  %1 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
