// Elementwise chains of one shape and stage become thread graphs; a value with two users ends a chain.
// RUN: superopt-opt %s --fuse-thread-graphs | filecheck %s
// RUN: superopt-opt %s --fuse-thread-graphs="min-ops=9" | filecheck %s --check-prefix=NONE

// CHECK-LABEL: func.func @f
// CHECK: %[[SQ:.*]] = "block.square"
// CHECK: %[[ACC:.*]] = "block.accumulate"(%[[SQ]])
// CHECK: %[[EXP:.*]] = "block.exp"(%[[ACC]])
// CHECK: "superopt.fused"(%[[EXP]])
// CHECK: "thread.neg"
// CHECK-NEXT: "thread.sigmoid"
// CHECK-NEXT: "superopt.yield"
// CHECK: "block.save"
// NONE-NOT: superopt.fused
// NONE: "block.sigmoid"
func.func @f(%x: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  %o, %e = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<8x16xf32>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64: -1>} : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %s = "block.square"(%t) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %c = "block.accumulate"(%s) {kind = "sum", loop = 0} : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %b = "block.exp"(%c) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %n = "block.neg"(%b) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %g = "block.sigmoid"(%n) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    "block.save"(%g) {omap = array<i64: 0>} : (tensor<4x16xf32>) -> ()
    "block.save"(%b) {omap = array<i64: 0>} : (tensor<4x16xf32>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64: 3>} : (tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>)
  return %o, %e : tensor<8x16xf32>, tensor<8x16xf32>
}
