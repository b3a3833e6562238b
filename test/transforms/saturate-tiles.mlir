// RMS normalization and a linear layer become one kernel: the sum of squares moves into the product's loop.
// RUN: superopt-opt %s --saturate-tiles="inline=all statistics=true" 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REMARK --input-file %t

// CHECK-LABEL: func.func @rmsnorm_linear
// CHECK: "superopt.tiled"
// CHECK: "tile.parallel"
// CHECK: "tile.matmul"
// CHECK-NOT: "superopt.tiled"
// CHECK: return

// REMARK: remark: all: {{.*}} nodes in {{.*}} classes after {{.*}} iterations (saturated)
// REMARK: remark: all: loop-insertion2
// REMARK: remark: all: mul-matmul
// REMARK: remark: 1 kernel, predicted
func.func @rmsnorm_linear(%x: tensor<16x256xf16>, %w: tensor<256x512xf16>) -> tensor<16x512xf16> {
  %sq = "kernel.square"(%x) : (tensor<16x256xf16>) -> tensor<16x256xf16>
  %mean = "kernel.reduce_mean"(%sq) {dims = array<i64: 1>, keepdims = true} : (tensor<16x256xf16>) -> tensor<16x1xf16>
  %r = "kernel.rsqrt"(%mean) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %xn = "kernel.mul"(%x, %r) : (tensor<16x256xf16>, tensor<16x1xf16>) -> tensor<16x256xf16>
  %o = "kernel.matmul"(%xn, %w) : (tensor<16x256xf16>, tensor<256x512xf16>) -> tensor<16x512xf16>
  return %o : tensor<16x512xf16>
}
