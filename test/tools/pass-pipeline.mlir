// One pipeline over native and Python passes; flags in the order given mean the same as a pipeline.
// RUN: superopt-opt %s --pass-pipeline='builtin.module(func.func(cse),ingest-linalg,func.func(canonicalize))' --dump-pass-pipeline 2>&1 | filecheck %s
// RUN: superopt-opt %s --cse -ingest-linalg --dump-pass-pipeline 2>&1 | filecheck %s --check-prefix=FLAGS

// CHECK: Pass Manager with 3 passes:
// CHECK-NEXT: builtin.module(func.func(cse),ingest-linalg,func.func(canonicalize))
// CHECK: func.func @f
// CHECK-NEXT: "kernel.add"(%arg0, %arg0)
// CHECK-NOT: "kernel.add"
// CHECK: return

// FLAGS: Pass Manager with 2 passes:
// FLAGS-NEXT: builtin.module(cse,ingest-linalg)
// FLAGS: "kernel.add"
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  %1 = arith.addf %a, %a : tensor<4xf32>
  %2 = arith.mulf %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
