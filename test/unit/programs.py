"""Small programs that several tests share, built in memory or as text."""

from __future__ import annotations

RMSNORM_LINEAR_CUSTOM = """
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
"""

ATTENTION_ONLINE = """
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
  }) {grid = array<i64: 2>, loops = array<i64: 4>}
      : (tensor<64x64xf16>, tensor<64x128xf16>, tensor<128x64xf16>) -> tensor<64x64xf16>
  return %o : tensor<64x64xf16>
}
"""

TILED_SCALE = """
func.func @f(%x: tensor<30x64xf16>) -> tensor<30x64xf16> {
  %y = "superopt.tiled"(%x) ({
  ^bb0(%a: memref<30x64xf16>, %o: memref<30x64xf16>):
    %buf = "tile.alloc"() {placement = "chip"} : () -> memref<16x64xf16>
    "tile.parallel"() ({
    ^bb0(%i: index):
      %t = "tile.load"(%a, %i) {sizes = array<i64: 16, 64>, base = array<i64: 0, 0>, dims = array<i64: 0>,
          scale = array<i64: 1>} : (memref<30x64xf16>, index) -> tensor<16x64xf16>
      %u = "tile.square"(%t) : (tensor<16x64xf16>) -> tensor<16x64xf16>
      "tile.store"(%u, %o, %i) {sizes = array<i64: 16, 64>, base = array<i64: 0, 0>, dims = array<i64: 0>,
          scale = array<i64: 1>} : (tensor<16x64xf16>, memref<30x64xf16>, index) -> ()
    }) {start = 0, stop = 30, step = 16} : () -> ()
  }) {name = "scale"} : (tensor<30x64xf16>) -> tensor<30x64xf16>
  return %y : tensor<30x64xf16>
}
"""

FUSED_AND_CONCAT = """
func.func @f(%x: tensor<8x16xf32>, %y: tensor<8x32xf32>) -> tensor<8x48xf32> {
  %c = "superopt.concat"(%x, %y) {dim = 1} : (tensor<8x16xf32>, tensor<8x32xf32>) -> tensor<8x48xf32>
  %e = "superopt.extern"(%c) {target = "aten.cumsum.default", reason = "not in the operator table"}
      : (tensor<8x48xf32>) -> tensor<8x48xf32>
  %o = "superopt.custom"(%e) ({
  ^bb0(%a: tensor<8x48xf32>):
    %t = "block.iterator"(%a) {imap = array<i64: 1>, fmap = array<i64>} : (tensor<8x48xf32>) -> tensor<8x12xf32>
    %f = "superopt.fused"(%t) ({
    ^bb0(%r: tensor<8x12xf32>):
      %n = "thread.neg"(%r) : (tensor<8x12xf32>) -> tensor<8x12xf32>
      %m = "thread.clamp"(%n) {low = -1.0, high = 1.0} : (tensor<8x12xf32>) -> tensor<8x12xf32>
      "superopt.yield"(%m) : (tensor<8x12xf32>) -> ()
    }) : (tensor<8x12xf32>) -> tensor<8x12xf32>
    "block.save"(%f) {omap = array<i64: 1>} : (tensor<8x12xf32>) -> ()
  }) {grid = array<i64: 4>, loops = array<i64>} : (tensor<8x48xf32>) -> tensor<8x48xf32>
  return %o : tensor<8x48xf32>
}
"""

ALL_TEXTS = {
    "rmsnorm_linear": RMSNORM_LINEAR_CUSTOM,
    "attention_online": ATTENTION_ONLINE,
    "tiled_scale": TILED_SCALE,
    "fused_and_concat": FUSED_AND_CONCAT,
}
