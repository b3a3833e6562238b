// What derivation leaves as it is behind a convolution is searched, too: two kernels, of which the second multiplies,
// adds and squashes.
// RUN: superopt-opt %s --superoptimize="budget=40 against=operators store=none" --report=%t.json | filecheck %s
// RUN: filecheck %s --input-file %t.json --check-prefix=REPORT

// CHECK: "superopt.tiled"(
// CHECK: tile.matmul
// CHECK: "superopt.custom"(
// CHECK: block.add
// CHECK: block.relu
// CHECK-NOT: kernel.matmul
// CHECK-NOT: kernel.add
// REPORT: "outcome": "chosen"
// REPORT: "improved": true
func.func @net(%x: tensor<1x32x8x8xf16>, %w: tensor<32x32x3x3xf16> {superopt.weight}, %b: tensor<32x1x1xf16> {superopt.weight}, %v: tensor<2048x64xf16> {superopt.weight}, %c: tensor<64xf16> {superopt.weight}) -> tensor<1x64xf16> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>} : (tensor<1x32x8x8xf16>, tensor<32x32x3x3xf16>) -> tensor<1x32x8x8xf16>
  %1 = "kernel.add"(%0, %b) : (tensor<1x32x8x8xf16>, tensor<32x1x1xf16>) -> tensor<1x32x8x8xf16>
  %2 = "kernel.relu"(%1) : (tensor<1x32x8x8xf16>) -> tensor<1x32x8x8xf16>
  %3 = "kernel.reshape"(%2) {shape = array<i64: 1, 2048>} : (tensor<1x32x8x8xf16>) -> tensor<1x2048xf16>
  %4 = "kernel.matmul"(%3, %v) : (tensor<1x2048xf16>, tensor<2048x64xf16>) -> tensor<1x64xf16>
  %5 = "kernel.add"(%4, %c) : (tensor<1x64xf16>, tensor<64xf16>) -> tensor<1x64xf16>
  %6 = "kernel.relu"(%5) : (tensor<1x64xf16>) -> tensor<1x64xf16>
  return %6 : tensor<1x64xf16>
}
