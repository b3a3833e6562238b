// Long trips become short ones; the accumulators are the same.
// RUN: superopt-opt %s --refine-loops --split-input-file | filecheck %s

// CHECK-LABEL: func.func @normed
// CHECK: "block.iterator"(%{{.*}}) {fmap = array<i64: 1>, imap = array<i64: -1>} : (tensor<16x1024xf16>) -> tensor<16x64xf16>
// CHECK: "block.iterator"(%{{.*}}) {fmap = array<i64: 0>, imap = array<i64: 1>} : (tensor<1024x512xf16>) -> tensor<64x256xf16>
// CHECK: "block.accumulate"{{.*}} : (tensor<16x256xf16>) -> tensor<16x256xf16>
// CHECK: "block.accumulate"{{.*}} : (tensor<16x1xf16>) -> tensor<16x1xf16>
// CHECK: loops = array<i64: 16>
func.func @normed(%x: tensor<16x1024xf16>, %w: tensor<1024x512xf16>) -> tensor<16x512xf16> {
  %o = "superopt.custom"(%x, %w) ({
  ^bb0(%a: tensor<16x1024xf16>, %b: tensor<1024x512xf16>):
    %xt = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64: 1>} : (tensor<16x1024xf16>) -> tensor<16x256xf16>
    %wt = "block.iterator"(%b) {imap = array<i64: 1>, fmap = array<i64: 0>} : (tensor<1024x512xf16>) -> tensor<256x256xf16>
    %p = "block.matmul"(%xt, %wt) : (tensor<16x256xf16>, tensor<256x256xf16>) -> tensor<16x256xf16>
    %s = "block.reduce_sum"(%xt) {dims = array<i64: 1>, keepdims = true} : (tensor<16x256xf16>) -> tensor<16x1xf16>
    %pa = "block.accumulate"(%p) {kind = "sum", loop = 0} : (tensor<16x256xf16>) -> tensor<16x256xf16>
    %sa = "block.accumulate"(%s) {kind = "sum", loop = 0} : (tensor<16x1xf16>) -> tensor<16x1xf16>
    %y = "block.mul"(%pa, %sa) : (tensor<16x256xf16>, tensor<16x1xf16>) -> tensor<16x256xf16>
    "block.save"(%y) {omap = array<i64: 1>} : (tensor<16x256xf16>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64: 4>} : (tensor<16x1024xf16>, tensor<1024x512xf16>) -> tensor<16x512xf16>
  return %o : tensor<16x512xf16>
}

// -----

// A deep product without a loop gets one, and an accumulator.
// CHECK-LABEL: func.func @deep
// CHECK: "block.iterator"(%{{.*}}) {fmap = array<i64: 1>, imap = array<i64: -1>} : (tensor<16x1024xf16>) -> tensor<16x128xf16>
// CHECK: "block.matmul"
// CHECK-NEXT: "block.accumulate"(%{{.*}}) {kind = "sum", loop = 0 : i64}
// CHECK-NEXT: "block.relu"
// CHECK: loops = array<i64: 8>
func.func @deep(%x: tensor<16x1024xf16>, %w: tensor<1024x64xf16>) -> tensor<16x64xf16> {
  %o = "superopt.custom"(%x, %w) ({
  ^bb0(%a: tensor<16x1024xf16>, %b: tensor<1024x64xf16>):
    %xt = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64>} : (tensor<16x1024xf16>) -> tensor<16x1024xf16>
    %wt = "block.iterator"(%b) {imap = array<i64: 1>, fmap = array<i64>} : (tensor<1024x64xf16>) -> tensor<1024x32xf16>
    %p = "block.matmul"(%xt, %wt) : (tensor<16x1024xf16>, tensor<1024x32xf16>) -> tensor<16x32xf16>
    %y = "block.relu"(%p) : (tensor<16x32xf16>) -> tensor<16x32xf16>
    "block.save"(%y) {omap = array<i64: 1>} : (tensor<16x32xf16>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64>} : (tensor<16x1024xf16>, tensor<1024x64xf16>) -> tensor<16x64xf16>
  return %o : tensor<16x64xf16>
}

// -----

// What is divided by its own sum needs all of the axis at once: nothing changes.
// CHECK-LABEL: func.func @needs_all
// CHECK: loops = array<i64>
func.func @needs_all(%x: tensor<16x1024xf16>, %w: tensor<1024x64xf16>) -> tensor<16x64xf16> {
  %o = "superopt.custom"(%x, %w) ({
  ^bb0(%a: tensor<16x1024xf16>, %b: tensor<1024x64xf16>):
    %xt = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64>} : (tensor<16x1024xf16>) -> tensor<16x1024xf16>
    %wt = "block.iterator"(%b) {imap = array<i64: 1>, fmap = array<i64>} : (tensor<1024x64xf16>) -> tensor<1024x32xf16>
    %s = "block.reduce_sum"(%xt) {dims = array<i64: 1>, keepdims = true} : (tensor<16x1024xf16>) -> tensor<16x1xf16>
    %d = "block.div"(%xt, %s) : (tensor<16x1024xf16>, tensor<16x1xf16>) -> tensor<16x1024xf16>
    %p = "block.matmul"(%d, %wt) : (tensor<16x1024xf16>, tensor<1024x32xf16>) -> tensor<16x32xf16>
    "block.save"(%p) {omap = array<i64: 1>} : (tensor<16x32xf16>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64>} : (tensor<16x1024xf16>, tensor<1024x64xf16>) -> tensor<16x64xf16>
  return %o : tensor<16x64xf16>
}
