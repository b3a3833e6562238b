// Grid and loop extents of a kernel are decisions that can be made otherwise.
// RUN: superopt-opt %s --choose-extents | filecheck %s
// RUN: superopt-opt %s --choose-extents --list-sites 2>&1 >/dev/null | filecheck %s --check-prefix=SITES
// RUN: superopt-opt %s --choose-extents='config={"choose-extents": {"a5c544d1ac928d70": "grid=8 loops=4"}}' --verify-each-equivalence | filecheck %s --check-prefix=OTHER
// RUN: not superopt-opt %s --choose-extents='config={"choose-extents": {"a5c544d1ac928d70": "grid=3 loops=1000"}}' 2>&1 | filecheck %s --check-prefix=WRONG

// SITES: choose-extents.mlir:{{[0-9]+}}:8: remark: choose-extents a5c544d1ac928d70: grid=4 loops=2 |
// WRONG: error: choose-extents: expected one of 'grid=4 loops=2', {{.*}} at site a5c544d1ac928d70, got 'grid=3 loops=1000'

// By itself, the pass changes nothing.
// CHECK: tensor<16x64xf16>) -> tensor<16x32xf16>
// CHECK: grid = array<i64: 4>, loops = array<i64: 2>

// OTHER: "block.iterator"(%{{.*}}) {fmap = array<i64: 1>, imap = array<i64: -1>} : (tensor<16x64xf16>) -> tensor<16x16xf16>
// OTHER: "block.iterator"(%{{.*}}) {fmap = array<i64: 0>, imap = array<i64: 1>} : (tensor<64x256xf16>) -> tensor<16x32xf16>
// OTHER: "block.matmul"{{.*}} -> tensor<16x32xf16>
// OTHER: grid = array<i64: 8>, loops = array<i64: 4>
func.func @product(%x: tensor<16x64xf16>, %w: tensor<64x256xf16>) -> tensor<16x256xf16> {
  %y = "superopt.custom"(%x, %w) ({
  ^bb0(%a: tensor<16x64xf16>, %b: tensor<64x256xf16>):
    %i = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64: 1>} : (tensor<16x64xf16>) -> tensor<16x32xf16>
    %j = "block.iterator"(%b) {imap = array<i64: 1>, fmap = array<i64: 0>} : (tensor<64x256xf16>) -> tensor<32x64xf16>
    %p = "block.matmul"(%i, %j) : (tensor<16x32xf16>, tensor<32x64xf16>) -> tensor<16x64xf16>
    %s = "block.accumulate"(%p) {kind = "sum", loop = 0 : i64} : (tensor<16x64xf16>) -> tensor<16x64xf16>
    "block.save"(%s) {omap = array<i64: 1>} : (tensor<16x64xf16>) -> ()
  }) {grid = array<i64: 4>, loops = array<i64: 2>} : (tensor<16x64xf16>, tensor<64x256xf16>) -> tensor<16x256xf16>
  return %y : tensor<16x256xf16>
}
