// RUN: superopt-opt %s --join-parts --split-input-file | filecheck %s

// A kernel reads the parts of a sum, and joins them.
// CHECK-LABEL: func.func @joined(
// CHECK-SAME: %[[P:.*]]: tensor<8x256x64xf16>
// CHECK-NOT: kernel.reduce_sum
// CHECK: superopt.custom"(%[[P]])
// CHECK: %[[T:.*]] = "block.iterator"(%{{.*}}) {fmap = array<i64>, imap = array<i64: 1>} : (tensor<8x256x64xf16>) -> tensor<8x8x64xf16>
// CHECK-NEXT: "block.reduce_sum"(%[[T]]) {dims = array<i64: 0>} : (tensor<8x8x64xf16>) -> tensor<8x64xf16>
func.func @joined(%p: tensor<8x256x64xf16>) -> tensor<256x64xf16> {
  %s = "kernel.reduce_sum"(%p) {dims = array<i64: 0>, keepdims = false} : (tensor<8x256x64xf16>) -> tensor<256x64xf16>
  %y = "superopt.custom"(%s) ({
  ^bb0(%a: tensor<256x64xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<256x64xf16>) -> tensor<8x64xf16>
    %e = "block.exp"(%t) : (tensor<8x64xf16>) -> tensor<8x64xf16>
    "block.save"(%e) {omap = array<i64: 0>} : (tensor<8x64xf16>) -> ()
  }) {grid = array<i64: 32>, loops = array<i64>} : (tensor<256x64xf16>) -> tensor<256x64xf16>
  return %y : tensor<256x64xf16>
}

// -----

// So where the kernel sees the sum in another shape.
// CHECK-LABEL: func.func @viewed(
// CHECK: %[[V:.*]] = "kernel.reshape"(%{{.*}}) : (tensor<8x1x256x64xf16>) -> tensor<8x256x64xf16>
// CHECK-NOT: kernel.reduce_sum
// CHECK: superopt.custom"(%[[V]])
func.func @viewed(%p: tensor<8x1x256x64xf16>) -> tensor<256x64xf16> {
  %s = "kernel.reduce_sum"(%p) {dims = array<i64: 0>, keepdims = true} : (tensor<8x1x256x64xf16>) -> tensor<1x1x256x64xf16>
  %v = "kernel.reshape"(%s) {shape = array<i64: 256, 64>} : (tensor<1x1x256x64xf16>) -> tensor<256x64xf16>
  %y = "superopt.custom"(%v) ({
  ^bb0(%a: tensor<256x64xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<256x64xf16>) -> tensor<8x64xf16>
    %e = "block.exp"(%t) : (tensor<8x64xf16>) -> tensor<8x64xf16>
    "block.save"(%e) {omap = array<i64: 0>} : (tensor<8x64xf16>) -> ()
  }) {grid = array<i64: 32>, loops = array<i64>} : (tensor<256x64xf16>) -> tensor<256x64xf16>
  return %y : tensor<256x64xf16>
}

// -----

// What is returned is computed once.
// CHECK-LABEL: func.func @returned(
// CHECK: %[[S:.*]] = "kernel.reduce_sum"
// CHECK: superopt.custom"(%[[S]])
func.func @returned(%p: tensor<8x256x64xf16>) -> (tensor<256x64xf16>, tensor<256x64xf16>) {
  %s = "kernel.reduce_sum"(%p) {dims = array<i64: 0>, keepdims = false} : (tensor<8x256x64xf16>) -> tensor<256x64xf16>
  %y = "superopt.custom"(%s) ({
  ^bb0(%a: tensor<256x64xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<256x64xf16>) -> tensor<8x64xf16>
    %e = "block.exp"(%t) : (tensor<8x64xf16>) -> tensor<8x64xf16>
    "block.save"(%e) {omap = array<i64: 0>} : (tensor<8x64xf16>) -> ()
  }) {grid = array<i64: 32>, loops = array<i64>} : (tensor<256x64xf16>) -> tensor<256x64xf16>
  return %s, %y : tensor<256x64xf16>, tensor<256x64xf16>
}

// -----

// Every block would join all of the long sums that all blocks read.
// CHECK-LABEL: func.func @dearer(
// CHECK: kernel.reduce_sum
func.func @dearer(%p: tensor<512x64x64xf16>, %x: tensor<4096x64xf16>) -> tensor<4096x64xf16> {
  %s = "kernel.reduce_sum"(%p) {dims = array<i64: 0>, keepdims = false} : (tensor<512x64x64xf16>) -> tensor<64x64xf16>
  %y = "superopt.custom"(%x, %s) ({
  ^bb0(%a: tensor<4096x64xf16>, %b: tensor<64x64xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<4096x64xf16>) -> tensor<32x64xf16>
    %w = "block.iterator"(%b) {imap = array<i64: -1>, fmap = array<i64>} : (tensor<64x64xf16>) -> tensor<64x64xf16>
    %m = "block.matmul"(%t, %w) : (tensor<32x64xf16>, tensor<64x64xf16>) -> tensor<32x64xf16>
    "block.save"(%m) {omap = array<i64: 0>} : (tensor<32x64xf16>) -> ()
  }) {grid = array<i64: 128>, loops = array<i64>} : (tensor<4096x64xf16>, tensor<64x64xf16>) -> tensor<4096x64xf16>
  return %y : tensor<4096x64xf16>
}
