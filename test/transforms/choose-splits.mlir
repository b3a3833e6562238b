// How many parts a reduction has that two kernels share is a decision on the lowered program.
// RUN: superopt-opt %s --block-to-tile --kernel-to-tile --choose-splits --list-sites 2>&1 >/dev/null | filecheck %s --check-prefix=SITES
// SITES: remark: choose-splits 680b3edfd01ce0e6.split: 4 | 2 | 8 | 16

// RUN: superopt-opt %s --block-to-tile --kernel-to-tile > %t.before
// RUN: superopt-opt %s --block-to-tile --kernel-to-tile --choose-splits | diff %t.before -
// RUN: superopt-opt %s --block-to-tile --kernel-to-tile --choose-splits='config={"choose-splits": {"680b3edfd01ce0e6.split": "2"}}' --verify-each-equivalence | filecheck %s

// CHECK: tensor<16x256xf16>) -> tensor<16x2x128xf16>
// CHECK: -> tensor<2x16x32xf16>
func.func @f(%x: tensor<16x256xf16>, %w: tensor<256x32xf16>) -> tensor<16x32xf16> {
  %xs = "kernel.reshape"(%x) {shape = array<i64: 16, 4, 64>} : (tensor<16x256xf16>) -> tensor<16x4x64xf16>
  %ws = "kernel.reshape"(%w) {shape = array<i64: 4, 64, 32>} : (tensor<256x32xf16>) -> tensor<4x64x32xf16>
  %p = "superopt.custom"(%xs, %ws) ({
  ^bb0(%a: tensor<16x4x64xf16>, %b: tensor<4x64x32xf16>):
    %at = "block.iterator"(%a) {imap = array<i64: 1>, fmap = array<i64>} : (tensor<16x4x64xf16>) -> tensor<16x1x64xf16>
    %ar = "block.reshape"(%at) : (tensor<16x1x64xf16>) -> tensor<16x64xf16>
    %bt = "block.iterator"(%b) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<4x64x32xf16>) -> tensor<1x64x32xf16>
    %br = "block.reshape"(%bt) : (tensor<1x64x32xf16>) -> tensor<64x32xf16>
    %c = "block.matmul"(%ar, %br) : (tensor<16x64xf16>, tensor<64x32xf16>) -> tensor<16x32xf16>
    %cr = "block.reshape"(%c) : (tensor<16x32xf16>) -> tensor<1x16x32xf16>
    "block.save"(%cr) {omap = array<i64: 0>} : (tensor<1x16x32xf16>) -> ()
  }) {grid = array<i64: 4>, loops = array<i64>} : (tensor<16x4x64xf16>, tensor<4x64x32xf16>) -> tensor<4x16x32xf16>
  %o = "kernel.reduce_sum"(%p) {dims = array<i64: 0>, keepdims = false} : (tensor<4x16x32xf16>) -> tensor<16x32xf16>
  return %o : tensor<16x32xf16>
}
