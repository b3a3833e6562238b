// The view for people: kernel graph first, then what each kernel does, with its maps.
// RUN: superopt-opt %s --emit=text | filecheck %s
// RUN: superopt-opt %s --emit=text -o %t && diff %t %S/Inputs/emit-text.expected

// CHECK: attention(q: f16[64, 64], k: f16[64, 128], v: f16[128, 64])
// CHECK-NEXT: t0 = custom0(q, k, v) f16[64, 64]
// CHECK: custom0: grid {x: 2}, loops {i: 4}, {{[0-9]+}} bytes of shared memory
// CHECK-NEXT: t0 = iterator(in0) f16[32, 64] imap {x ↔ 0}, fmap {i ↔ φ}
// CHECK-NEXT: for i in 0..4:
// CHECK: running_max(t4) f16[32, 1] over i
// CHECK: accumulate(t8, t5) f16[32, 64] rescaled over i
// CHECK-NEXT: accumulate
// CHECK-NEXT: div
// CHECK-NEXT: save(t12) omap {x ↔ 0}
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
