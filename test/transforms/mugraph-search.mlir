// RMSNorm and the projection after it become one kernel: X is loaded once, and the division by the norm, which is
// known only after the loop, has moved behind the product.
// RUN: superopt-opt %s --mugraph-search="target=sm_90 budget=20" 2>&1 | filecheck %s
// RUN: not superopt-opt %s --mugraph-search="prune=magic" 2>&1 | filecheck %s --check-prefix=PRUNE
// RUN: not superopt-opt %s --mugraph-search="budget=-1" 2>&1 | filecheck %s --check-prefix=BUDGET

// CHECK: remark: 1 kernel, predicted {{.*}} us instead of
// CHECK-LABEL: func.func @rmsnorm_linear
// CHECK: "superopt.custom"(%arg0, %arg1)
// CHECK: ^bb0(%[[X:.*]]: tensor<16x4096xf16>, %[[W:.*]]: tensor<4096x6144xf16>):
// CHECK: "block.iterator"(%[[X]])
// CHECK-NOT: "block.iterator"(%[[X]])
// CHECK: "block.accumulate"
// CHECK: "block.accumulate"
// CHECK: "block.rsqrt"
// CHECK: "block.mul"
// CHECK-NEXT: "block.save"
// CHECK: {grid = array<i64: {{[0-9]+}}>, loops = array<i64: {{[0-9]+}}>}
// CHECK-NEXT: return
// PRUNE: option 'prune' expects one of normal-form|smt|none, got 'magic'
// BUDGET: expected a positive budget
func.func @rmsnorm_linear(%x: tensor<16x4096xf16>, %w: tensor<4096x6144xf16>) -> tensor<16x6144xf16> {
  %s = "kernel.square"(%x) : (tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %m = "kernel.reduce_mean"(%s) {dims = array<i64: 1>, keepdims = true} : (tensor<16x4096xf16>) -> tensor<16x1xf16>
  %r = "kernel.rsqrt"(%m) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %y = "kernel.mul"(%x, %r) : (tensor<16x4096xf16>, tensor<16x1xf16>) -> tensor<16x4096xf16>
  %o = "kernel.matmul"(%y, %w) : (tensor<16x4096xf16>, tensor<4096x6144xf16>) -> tensor<16x6144xf16>
  return %o : tensor<16x6144xf16>
}
