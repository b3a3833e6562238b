// A convolution, its bias, a residual and an activation are one kernel.
// RUN: superopt-opt %s --superoptimize="budget=30 against=operators store=none" --report=%t.json | filecheck %s
// RUN: filecheck %s --input-file %t.json --check-prefix=REPORT

// CHECK: "superopt.tiled"(
// CHECK: tile.mask
// CHECK: tile.matmul
// CHECK-NOT: superopt.tiled
// CHECK-NOT: kernel.
// REPORT: "optimizer": "derivation",
// REPORT: "outcome": "chosen"
// REPORT: "improved": true
func.func @block(%x: tensor<1x32x14x14xf16>, %w: tensor<32x32x3x3xf16>, %b: tensor<32x1x1xf16>) -> tensor<1x32x14x14xf16> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>} : (tensor<1x32x14x14xf16>, tensor<32x32x3x3xf16>) -> tensor<1x32x14x14xf16>
  %1 = "kernel.add"(%0, %b) : (tensor<1x32x14x14xf16>, tensor<32x1x1xf16>) -> tensor<1x32x14x14xf16>
  %2 = "kernel.add"(%1, %x) : (tensor<1x32x14x14xf16>, tensor<1x32x14x14xf16>) -> tensor<1x32x14x14xf16>
  %3 = "kernel.relu"(%2) : (tensor<1x32x14x14xf16>) -> tensor<1x32x14x14xf16>
  return %3 : tensor<1x32x14x14xf16>
}
