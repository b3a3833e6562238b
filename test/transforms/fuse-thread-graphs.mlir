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

// A value that is used twice, both times in the thread graph, is computed in it; a constant is a number in it.
// CHECK-LABEL: func.func @diamond
// CHECK-NOT: block.constant
// CHECK: "superopt.fused"(%{{.*}}) ({
// CHECK-NEXT: ^bb0(%{{.*}}: tensor<4x16xf32>):
// CHECK-NEXT: "thread.constant"
// CHECK-NEXT: "thread.sub"
// CHECK-NEXT: "thread.sigmoid"
// CHECK-NEXT: "thread.mul"
// CHECK-NEXT: "superopt.yield"
func.func @diamond(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %o = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<8x16xf32>):
    %c = "block.constant"() {value = 0.5 : f64} : () -> tensor<f32>
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %d = "block.sub"(%t, %c) : (tensor<4x16xf32>, tensor<f32>) -> tensor<4x16xf32>
    %g = "block.sigmoid"(%d) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %m = "block.mul"(%d, %g) : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
    "block.save"(%m) {omap = array<i64: 0>} : (tensor<4x16xf32>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %o : tensor<8x16xf32>
}

// A reduction ends a thread graph; what it gives starts another, as threads have exchanged it, and so do row values
// that are broadcast.
// CHECK-LABEL: func.func @reduced
// CHECK: %[[SUM:.*]] = "superopt.fused"
// CHECK: "thread.square"
// CHECK-NEXT: "thread.reduce_sum"
// CHECK-NEXT: "superopt.yield"
// CHECK: %[[ROOT:.*]] = "superopt.fused"(%[[SUM]])
// CHECK: "thread.sqrt"
// CHECK-NEXT: "thread.reciprocal"
// CHECK-NEXT: "superopt.yield"
// CHECK: "superopt.fused"(%{{.*}}, %[[ROOT]])
// CHECK: "thread.mul"
// CHECK-NEXT: "thread.neg"
func.func @reduced(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %o = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<8x16xf32>):
    %t = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %q = "block.square"(%t) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %s = "block.reduce_sum"(%q) {dims = array<i64: 1>, keepdims = true} : (tensor<4x16xf32>) -> tensor<4x1xf32>
    %r = "block.sqrt"(%s) : (tensor<4x1xf32>) -> tensor<4x1xf32>
    %i = "block.reciprocal"(%r) : (tensor<4x1xf32>) -> tensor<4x1xf32>
    %m = "block.mul"(%t, %i) : (tensor<4x16xf32>, tensor<4x1xf32>) -> tensor<4x16xf32>
    %n = "block.neg"(%m) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    "block.save"(%n) {omap = array<i64: 0>} : (tensor<4x16xf32>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %o : tensor<8x16xf32>
}
