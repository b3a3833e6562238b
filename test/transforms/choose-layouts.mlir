// Values between kernels lie in memory as what reads them wants, where no kernel need move them then.
// RUN: superopt-opt %s --choose-layouts --split-input-file | filecheck %s

// Each is a decision that can be made otherwise.
// RUN: superopt-opt %s --choose-layouts --split-input-file --list-sites 2>&1 >/dev/null | filecheck %s --check-prefix=SITES
// SITES: choose-layouts.mlir:{{[0-9]+}}:8: remark: choose-layouts 7b40c51d355e2b25: saved | stays
// SITES: remark: choose-layouts c92db4618e3f9886: read | stays
// RUN: superopt-opt %s --choose-layouts='config={"choose-layouts": {"7b40c51d355e2b25": "stays"}}' --split-input-file | filecheck %s --check-prefix=STAYS
// STAYS-LABEL: func.func @saved
// STAYS: kernel.transpose
// STAYS-LABEL: func.func @both

// The kernel that makes the value saves it so: its omap is permuted.
// CHECK-LABEL: func.func @saved
// CHECK: %[[T:.*]] = "block.transpose"(%{{.*}}) {perm = array<i64: 1, 0, 2>} : (tensor<1x16x64xf16>) -> tensor<16x1x64xf16>
// CHECK-NEXT: "block.save"(%[[T]]) {omap = array<i64: 1, 0>}
// CHECK-NOT: "block.save"
// CHECK: -> tensor<64x8x64xf16>
// CHECK-NOT: kernel.transpose
// CHECK: "kernel.matmul"
func.func @saved(%x: tensor<8x64x64xf16>, %w: tensor<512x256xf16>) -> tensor<64x256xf16> {
  %v = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<8x64x64xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0, 1>, fmap = array<i64>} : (tensor<8x64x64xf16>) -> tensor<1x16x64xf16>
    %e = "block.exp"(%t) : (tensor<1x16x64xf16>) -> tensor<1x16x64xf16>
    "block.save"(%e) {omap = array<i64: 0, 1>} : (tensor<1x16x64xf16>) -> ()
  }) {grid = array<i64: 8, 4>, loops = array<i64>} : (tensor<8x64x64xf16>) -> tensor<8x64x64xf16>
  %m = "kernel.transpose"(%v) {perm = array<i64: 1, 0, 2>} : (tensor<8x64x64xf16>) -> tensor<64x8x64xf16>
  %r = "kernel.reshape"(%m) {shape = array<i64: 64, 512>} : (tensor<64x8x64xf16>) -> tensor<64x512xf16>
  %y = "kernel.matmul"(%r, %w) : (tensor<64x512xf16>, tensor<512x256xf16>) -> tensor<64x256xf16>
  return %y : tensor<64x256xf16>
}

// -----

// Both orders are wanted: both are saved, which moves less than a transpose does.
// CHECK-LABEL: func.func @both
// CHECK-COUNT-2: "block.save"
// CHECK-NOT: kernel.transpose
func.func @both(%x: tensor<64x64xf16>) -> (tensor<64x64xf16>, tensor<64x64xf16>) {
  %v = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<64x64xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<64x64xf16>) -> tensor<32x64xf16>
    %e = "block.exp"(%t) : (tensor<32x64xf16>) -> tensor<32x64xf16>
    "block.save"(%e) {omap = array<i64: 0>} : (tensor<32x64xf16>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64>} : (tensor<64x64xf16>) -> tensor<64x64xf16>
  %m = "kernel.transpose"(%v) {perm = array<i64: 1, 0>} : (tensor<64x64xf16>) -> tensor<64x64xf16>
  return %v, %m : tensor<64x64xf16>, tensor<64x64xf16>
}

// -----

// The kernel that reads the value reads it as it lies: imap and fmap are permuted, through the reshape.
// CHECK-LABEL: func.func @read
// CHECK-NOT: kernel.transpose
// CHECK: "block.iterator"(%{{.*}}) {fmap = array<i64: 2>, imap = array<i64: 1>} : (tensor<4x8x256xf16>) -> tensor<4x1x64xf16>
// CHECK-NEXT: "block.transpose"(%{{.*}}) {perm = array<i64: 1, 0, 2>} : (tensor<4x1x64xf16>) -> tensor<1x4x64xf16>
// CHECK-NEXT: "block.reshape"(%{{.*}}) : (tensor<1x4x64xf16>) -> tensor<4x64xf16>
func.func @read(%x: tensor<4x8x256xf16>) -> tensor<32x1xf16> {
  %m = "kernel.transpose"(%x) {perm = array<i64: 1, 0, 2>} : (tensor<4x8x256xf16>) -> tensor<8x4x256xf16>
  %r = "kernel.reshape"(%m) {shape = array<i64: 32, 256>} : (tensor<8x4x256xf16>) -> tensor<32x256xf16>
  %v = "superopt.custom"(%r) ({
  ^bb0(%a: tensor<32x256xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64: 1>} : (tensor<32x256xf16>) -> tensor<4x64xf16>
    %s = "block.reduce_sum"(%t) {dims = array<i64: 1>, keepdims = true} : (tensor<4x64xf16>) -> tensor<4x1xf16>
    %c = "block.accumulate"(%s) {kind = "sum", loop = 0} : (tensor<4x1xf16>) -> tensor<4x1xf16>
    "block.save"(%c) {omap = array<i64: 0>} : (tensor<4x1xf16>) -> ()
  }) {grid = array<i64: 8>, loops = array<i64: 4>} : (tensor<32x256xf16>) -> tensor<32x1xf16>
  return %v : tensor<32x1xf16>
}

// -----

// Blocks that cut across what the reshape joins keep the transpose.
// CHECK-LABEL: func.func @cut
// CHECK: kernel.transpose
// CHECK: {fmap = array<i64>, imap = array<i64: 0>} : (tensor<32x256xf16>) -> tensor<2x256xf16>
func.func @cut(%x: tensor<4x8x256xf16>) -> tensor<32x256xf16> {
  %m = "kernel.transpose"(%x) {perm = array<i64: 1, 0, 2>} : (tensor<4x8x256xf16>) -> tensor<8x4x256xf16>
  %r = "kernel.reshape"(%m) {shape = array<i64: 32, 256>} : (tensor<8x4x256xf16>) -> tensor<32x256xf16>
  %v = "superopt.custom"(%r) ({
  ^bb0(%a: tensor<32x256xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<32x256xf16>) -> tensor<2x256xf16>
    %s = "block.exp"(%t) : (tensor<2x256xf16>) -> tensor<2x256xf16>
    "block.save"(%s) {omap = array<i64: 0>} : (tensor<2x256xf16>) -> ()
  }) {grid = array<i64: 16>, loops = array<i64>} : (tensor<32x256xf16>) -> tensor<32x256xf16>
  return %v : tensor<32x256xf16>
}

// -----

// Blocks would touch single elements of the other layout: the transpose stays.
// CHECK-LABEL: func.func @scattered
// CHECK: kernel.transpose
func.func @scattered(%x: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %v = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<64x64xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<64x64xf16>) -> tensor<1x64xf16>
    %e = "block.exp"(%t) : (tensor<1x64xf16>) -> tensor<1x64xf16>
    "block.save"(%e) {omap = array<i64: 0>} : (tensor<1x64xf16>) -> ()
  }) {grid = array<i64: 64>, loops = array<i64>} : (tensor<64x64xf16>) -> tensor<64x64xf16>
  %m = "kernel.transpose"(%v) {perm = array<i64: 1, 0>} : (tensor<64x64xf16>) -> tensor<64x64xf16>
  return %m : tensor<64x64xf16>
}

// -----

// A product takes its operand transposed, and another is made transposed; other permutations stay.
// CHECK-LABEL: func.func @products
// CHECK: "kernel.matmul"(%{{.*}}, %{{.*}}) {transpose_b = true} : (tensor<64x128xf16>, tensor<256x128xf16>)
// CHECK: "kernel.matmul"(%{{.*}}, %{{.*}}) {transpose_a = true, transpose_b = true} : (tensor<128x64xf16>, tensor<256x128xf16>)
// CHECK: "kernel.transpose"(%{{.*}}) {perm = array<i64: 1, 0, 2, 3>}
func.func @products(%x: tensor<64x128xf16>, %w: tensor<256x128xf16>, %v: tensor<128x64xf16>, %z: tensor<2x3x8x8xf16>, %u: tensor<2x8x8xf16>)
    -> (tensor<64x256xf16>, tensor<64x256xf16>, tensor<3x2x8x8xf16>) {
  %t = "kernel.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<256x128xf16>) -> tensor<128x256xf16>
  %y = "kernel.matmul"(%x, %t) : (tensor<64x128xf16>, tensor<128x256xf16>) -> tensor<64x256xf16>
  %p = "kernel.matmul"(%w, %v) : (tensor<256x128xf16>, tensor<128x64xf16>) -> tensor<256x64xf16>
  %q = "kernel.transpose"(%p) {perm = array<i64: 1, 0>} : (tensor<256x64xf16>) -> tensor<64x256xf16>
  %o = "kernel.transpose"(%z) {perm = array<i64: 1, 0, 2, 3>} : (tensor<2x3x8x8xf16>) -> tensor<3x2x8x8xf16>
  %r = "kernel.matmul"(%o, %u) : (tensor<3x2x8x8xf16>, tensor<2x8x8xf16>) -> tensor<3x2x8x8xf16>
  return %y, %q, %r : tensor<64x256xf16>, tensor<64x256xf16>, tensor<3x2x8x8xf16>
}
