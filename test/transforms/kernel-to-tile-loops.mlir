// Operators become naive loops over tiles: accumulators start from zero, statements of one form are bundled.
// RUN: superopt-opt %s --kernel-to-tile-loops="print-loops=true" 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=LOOPS --input-file %t

// LOOPS: start (t3,t4)[:, [[N:.*]]] = 0
// LOOPS-NEXT: for [[K:.*]] in 0..256 by tile_[[K]]:
// LOOPS-NEXT: (t3,t4)[:, [[N]]] = ((t3,t4)[:, [[N]]] + matmul(
// LOOPS: [:, [[N]]] = (silu(t3[:, [[N]]]) * t4[:, [[N]]])

// CHECK-LABEL: func.func @gated
// CHECK: [[AB:%.*]]:2 = "superopt.tiled"
// CHECK: "superopt.tiled"([[AB]]#0, [[AB]]#1)
// CHECK: "tile.silu"
func.func @gated(%x: tensor<16x256xf16>, %v: tensor<256x512xf16>, %w: tensor<256x512xf16>) -> tensor<16x512xf16> {
  %a = "kernel.matmul"(%x, %v) : (tensor<16x256xf16>, tensor<256x512xf16>) -> tensor<16x512xf16>
  %b = "kernel.matmul"(%x, %w) : (tensor<16x256xf16>, tensor<256x512xf16>) -> tensor<16x512xf16>
  %s = "kernel.silu"(%a) : (tensor<16x512xf16>) -> tensor<16x512xf16>
  %y = "kernel.mul"(%s, %b) : (tensor<16x512xf16>, tensor<16x512xf16>) -> tensor<16x512xf16>
  return %y : tensor<16x512xf16>
}
