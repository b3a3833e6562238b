// An online-softmax attention kernel as Triton: the rescaled sums carry their factor into tl.dot.
// RUN: superopt-opt %s --emit=triton | filecheck %s

// CHECK: @triton.jit
// CHECK: def attention_0(
// CHECK: = tl.program_id(0)
// CHECK: for step_k in range(0, 128, 32):
// CHECK: new_running_max = tl.maximum(old_running_max, reduce_max)
// CHECK: acc = tl.dot(exp.to(tl.float16), {{.*}}, mul)
// CHECK: tl.store(
func.func @attention(%q: tensor<64x64xf16>, %k: tensor<64x128xf16>, %v: tensor<128x64xf16>) -> tensor<64x64xf16> {
  %o = "superopt.custom"(%q, %k, %v) ({
  ^bb0(%a: tensor<64x64xf16>, %b: tensor<64x128xf16>, %c: tensor<128x64xf16>):
    %qt = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64: -1>} : (tensor<64x64xf16>) -> tensor<32x64xf16>
    %kt = "block.iterator"(%b) {imap = array<i64: -1>, fmap = array<i64: 1>} : (tensor<64x128xf16>) -> tensor<64x32xf16>
    %vt = "block.iterator"(%c) {imap = array<i64: -1>, fmap = array<i64: 0>} : (tensor<128x64xf16>) -> tensor<32x64xf16>
    %s = "block.matmul"(%qt, %kt) : (tensor<32x64xf16>, tensor<64x32xf16>) -> tensor<32x32xf16>
    %rm = "block.reduce_max"(%s) {dims = array<i64: 1>, keepdims = true} : (tensor<32x32xf16>) -> tensor<32x1xf16>
    %m = "block.running_max"(%rm) {loop = 0} : (tensor<32x1xf16>) -> tensor<32x1xf16>
    %d = "block.sub"(%s, %m) : (tensor<32x32xf16>, tensor<32x1xf16>) -> tensor<32x32xf16>
    %e = "block.exp"(%d) : (tensor<32x32xf16>) -> tensor<32x32xf16>
    %n = "block.matmul"(%e, %vt) : (tensor<32x32xf16>, tensor<32x64xf16>) -> tensor<32x64xf16>
    %z = "block.reduce_sum"(%e) {dims = array<i64: 1>, keepdims = true} : (tensor<32x32xf16>) -> tensor<32x1xf16>
    %an = "block.accumulate"(%n, %m) {kind = "rescaled", loop = 0} : (tensor<32x64xf16>, tensor<32x1xf16>) -> tensor<32x64xf16>
    %az = "block.accumulate"(%z, %m) {kind = "rescaled", loop = 0} : (tensor<32x1xf16>, tensor<32x1xf16>) -> tensor<32x1xf16>
    %y = "block.div"(%an, %az) : (tensor<32x64xf16>, tensor<32x1xf16>) -> tensor<32x64xf16>
    "block.save"(%y) {omap = array<i64: 0>} : (tensor<32x64xf16>) -> ()
  }) {grid = array<i64: 2>, loops = array<i64: 4>} : (tensor<64x64xf16>, tensor<64x128xf16>, tensor<128x64xf16>) -> tensor<64x64xf16>
  return %o : tensor<64x64xf16>
}
