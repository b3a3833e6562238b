// What the operator table cannot say is kept, with a remark that says where and why; its neighbours come through.
// RUN: superopt-opt %s --ingest-linalg --split-input-file > %t.out 2> %t.err
// RUN: filecheck %s < %t.out
// RUN: filecheck %s --check-prefix=REMARK < %t.err

// REMARK-NOT: pooling_nhwc_min
// REMARK: ingest-linalg-extern.mlir:37:{{[0-9]+}}: remark: 'linalg.generic' is kept as superopt.extern: tensors of element type f64
// REMARK: ingest-linalg-extern.mlir:53:{{[0-9]+}}: remark: 'linalg.generic' is kept as superopt.extern: a reduction that is not a sum, maximum or minimum

// CHECK-LABEL: func.func @smallest
// CHECK-NOT: superopt.extern
// CHECK: "superopt.nest"(%arg0){{.*}}maps = "(d0, d1 + d4, d2 + d5, d3)"
// CHECK: "kernel.relu"
func.func @smallest(%x: tensor<1x6x6x3xf32>) -> tensor<1x4x4x3xf32> {
  %high = arith.constant 0x7F800000 : f32
  %zeros = arith.constant dense<0.0> : tensor<1x4x4x3xf32>
  %e = tensor.empty() : tensor<1x4x4x3xf32>
  %k = tensor.empty() : tensor<3x3xf32>
  %f = linalg.fill ins(%high : f32) outs(%e : tensor<1x4x4x3xf32>) -> tensor<1x4x4x3xf32>
  %c = linalg.pooling_nhwc_min ins(%x, %k : tensor<1x6x6x3xf32>, tensor<3x3xf32>) outs(%f : tensor<1x4x4x3xf32>) -> tensor<1x4x4x3xf32>
  %r = arith.maximumf %c, %zeros : tensor<1x4x4x3xf32>
  return %r : tensor<1x4x4x3xf32>
}

// -----

// CHECK-LABEL: func.func @wide
// CHECK: "kernel.exp"
// CHECK: "superopt.extern"
// CHECK-SAME: -> tensor<4xf64>
func.func @wide(%x: tensor<4xf32>) -> tensor<4xf64> {
  %e = tensor.empty() : tensor<4xf32>
  %e64 = tensor.empty() : tensor<4xf64>
  %p = linalg.exp ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>


  %w = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%p : tensor<4xf32>) outs(%e64 : tensor<4xf64>) {
  ^bb0(%in: f32, %out: f64):
    %0 = arith.extf %in : f32 to f64
    linalg.yield %0 : f64
  } -> tensor<4xf64>
  return %w : tensor<4xf64>
}

// -----

// CHECK-LABEL: func.func @product
// CHECK: "superopt.extern"(%arg0, %arg1)
func.func @product(%x: tensor<4x8xf32>, %init: tensor<4xf32>) -> tensor<4xf32> {


  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x8xf32>) outs(%init : tensor<4xf32>) {
  ^bb0(%in: f32, %acc: f32):
    %0 = arith.mulf %in, %acc : f32
    linalg.yield %0 : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}
