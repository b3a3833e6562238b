// TOSA is lowered to linalg and read like it; without --ingest-linalg, the message names the flag.
// RUN: superopt-opt %s --ingest-linalg --emit=text | filecheck %s
// RUN: not superopt-opt %s --emit=text 2>&1 | filecheck %s --check-prefix=FLAG
// RUN: superopt-opt %s --superoptimize="budget=1 store=none against=operators" --emit=triton | filecheck %s --check-prefix=TRITON

// CHECK: = matmul(x, w)
// CHECK-NEXT: = exp(
// FLAG: got 'tosa.const'; --ingest-linalg turns
// TRITON: @triton.jit
func.func @mlp(%x: tensor<1x16x64xf32>, %w: tensor<1x64x32xf32>) -> tensor<1x16x32xf32> {
  %z = "tosa.const"() <{values = dense<0.0> : tensor<1xf32>}> : () -> tensor<1xf32>
  %0 = tosa.matmul %x, %w, %z, %z : (tensor<1x16x64xf32>, tensor<1x64x32xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x16x32xf32>
  %1 = tosa.exp %0 : (tensor<1x16x32xf32>) -> tensor<1x16x32xf32>
  return %1 : tensor<1x16x32xf32>
}
