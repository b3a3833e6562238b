// The grid becomes parallel loops, the for-loop a sequential one; maps become windows, accumulators tiles on chip.
// RUN: superopt-opt %s --block-to-tile | filecheck %s

// CHECK-LABEL: func.func @linear
// CHECK: "superopt.tiled"(%arg0, %arg1, %arg2)
// CHECK: %[[ACC:.*]] = "tile.alloc"() {placement = "chip"} : () -> memref<16x32xf16>
// CHECK: "tile.parallel"() ({
// CHECK-NEXT: ^bb0(%[[X:.*]]: index):
// CHECK: %[[ZERO:.*]] = "tile.constant"() {value = 0.000000e+00 : f64}
// CHECK-NEXT: "tile.store"(%[[ZERO]], %[[ACC]])
// CHECK-NEXT: "tile.for"() ({
// CHECK-NEXT: ^bb0(%[[K:.*]]: index):
// The rows of the second operand are cut by the loop, its columns by the grid.
// CHECK: "tile.load"(%{{.*}}, %[[K]]) {base = array<i64: 0, 0>, dims = array<i64: 1>, scale = array<i64: 16>, sizes = array<i64: 16, 16>}
// CHECK: "tile.load"(%{{.*}}, %[[K]], %[[X]]) {base = array<i64: 0, 0>, dims = array<i64: 0, 1>, scale = array<i64: 16, 32>, sizes = array<i64: 16, 32>}
// CHECK: %[[P:.*]] = "tile.matmul"
// CHECK: %[[OLD:.*]] = "tile.load"(%[[ACC]])
// CHECK: %[[SUM:.*]] = "tile.add"(%[[OLD]], %[[P]])
// CHECK: "tile.store"(%[[SUM]], %[[ACC]])
// CHECK: {start = 0 : i64, step = 1 : i64, stop = 4 : i64}
// What only the epilogue needs is loaded behind the loop.
// CHECK: "tile.load"(%{{.*}}, %[[X]]) {base = array<i64: 0>, dims = array<i64: 0>, scale = array<i64: 32>, sizes = array<i64: 32>}
// CHECK: "tile.store"
// CHECK: {start = 0 : i64, step = 1 : i64, stop = 2 : i64}
func.func @linear(%x: tensor<16x64xf16>, %w: tensor<64x64xf16>, %b: tensor<64xf16>) -> tensor<16x64xf16> {
  %o = "superopt.custom"(%x, %w, %b) ({
  ^bb0(%a: tensor<16x64xf16>, %c: tensor<64x64xf16>, %d: tensor<64xf16>):
    %xt = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64: 1>} : (tensor<16x64xf16>) -> tensor<16x16xf16>
    %wt = "block.iterator"(%c) {imap = array<i64: 1>, fmap = array<i64: 0>} : (tensor<64x64xf16>) -> tensor<16x32xf16>
    %bt = "block.iterator"(%d) {imap = array<i64: 0>, fmap = array<i64: -1>} : (tensor<64xf16>) -> tensor<32xf16>
    %p = "block.matmul"(%xt, %wt) : (tensor<16x16xf16>, tensor<16x32xf16>) -> tensor<16x32xf16>
    %s = "block.accumulate"(%p) {kind = "sum", loop = 0} : (tensor<16x32xf16>) -> tensor<16x32xf16>
    %y = "block.add"(%s, %bt) : (tensor<16x32xf16>, tensor<32xf16>) -> tensor<16x32xf16>
    "block.save"(%y) {omap = array<i64: 1>} : (tensor<16x32xf16>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64: 4>} : (tensor<16x64xf16>, tensor<64x64xf16>, tensor<64xf16>) -> tensor<16x64xf16>
  return %o : tensor<16x64xf16>
}
