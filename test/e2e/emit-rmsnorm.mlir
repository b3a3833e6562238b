// The example of docs/emission.md, line by line.
// RUN: superopt-opt %s --emit=triton | filecheck %s

// CHECK: @triton.jit
// CHECK-NEXT: def f_0(x_ptr, w_ptr, out0_ptr):
// CHECK-NEXT: # 96 blocks, each computes its tile of out0.
// CHECK-NEXT: block_x = tl.program_id(0)
// CHECK-NEXT: span_16 = tl.arange(0, 16)
// CHECK-NEXT: span_64 = tl.arange(0, 64)
// CHECK-NEXT: block_x_span = block_x * 64 + tl.arange(0, 64)
// CHECK-NEXT: acc = tl.zeros([16, 64], tl.float32)
// CHECK-NEXT: acc_1 = tl.zeros([16], tl.float32)
// CHECK-NEXT: x_ptrs = x_ptr + span_16[:, None] * 4096 + span_64[None, :]
// CHECK-NEXT: w_ptrs = w_ptr + span_64[:, None] * 6144 + block_x_span[None, :]
// CHECK-NEXT: # 64 trips, each reads 16x64 of x and 64x64 of w.
// CHECK-NEXT: for k in range(0, 4096, 64):
// CHECK-NEXT: x = tl.load(x_ptrs)
// CHECK-NEXT: w = tl.load(w_ptrs)
// CHECK-NEXT: acc = tl.dot(x, w, acc)
// CHECK-NEXT: square = x.to(tl.float32) * x.to(tl.float32)
// CHECK-NEXT: reduce_sum = tl.sum(square, axis=1)
// CHECK-NEXT: acc_1 = acc_1 + reduce_sum
// CHECK-NEXT: x_ptrs += 64
// CHECK-NEXT: w_ptrs += 393216
// CHECK-NEXT: div = acc_1 / 4096.0
// CHECK-NEXT: rsqrt = tl.rsqrt(div)
// CHECK-NEXT: mul = acc * rsqrt[:, None]
// CHECK-NEXT: tl.store(out0_ptr + span_16[:, None] * 6144 + block_x_span[None, :], mul.to(tl.float16))
func.func @f(%x: tensor<16x4096xf16>, %w: tensor<4096x6144xf16>) -> tensor<16x6144xf16> {
  %o = "superopt.custom"(%x, %w) ({
  ^bb0(%a: tensor<16x4096xf16>, %b: tensor<4096x6144xf16>):
    %xt = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64: 1>}
        : (tensor<16x4096xf16>) -> tensor<16x64xf16>
    %wt = "block.iterator"(%b) {imap = array<i64: 1>, fmap = array<i64: 0>}
        : (tensor<4096x6144xf16>) -> tensor<64x64xf16>
    %p = "block.matmul"(%xt, %wt) : (tensor<16x64xf16>, tensor<64x64xf16>) -> tensor<16x64xf16>
    %acc = "block.accumulate"(%p) {kind = "sum", loop = 0} : (tensor<16x64xf16>) -> tensor<16x64xf16>
    %sq = "block.square"(%xt) : (tensor<16x64xf16>) -> tensor<16x64xf16>
    %s = "block.reduce_sum"(%sq) {dims = array<i64: 1>, keepdims = true} : (tensor<16x64xf16>) -> tensor<16x1xf16>
    %sa = "block.accumulate"(%s) {kind = "sum", loop = 0} : (tensor<16x1xf16>) -> tensor<16x1xf16>
    %c = "block.constant"() {value = 4096.0 : f64} : () -> tensor<f16>
    %m = "block.div"(%sa, %c) : (tensor<16x1xf16>, tensor<f16>) -> tensor<16x1xf16>
    %r = "block.rsqrt"(%m) : (tensor<16x1xf16>) -> tensor<16x1xf16>
    %y = "block.mul"(%acc, %r) : (tensor<16x64xf16>, tensor<16x1xf16>) -> tensor<16x64xf16>
    "block.save"(%y) {omap = array<i64: 1>} : (tensor<16x64xf16>) -> ()
  }) {grid = array<i64: 96>, loops = array<i64: 64>}
      : (tensor<16x4096xf16>, tensor<4096x6144xf16>) -> tensor<16x6144xf16>
  return %o : tensor<16x6144xf16>
}
