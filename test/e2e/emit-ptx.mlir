// A library product for three targets, with matrix units and no GPU in sight; and the IRs on the way.
// RUN: superopt-opt %s --emit=ptx --target=sm_80 | filecheck %s --check-prefix=SM80
// RUN: superopt-opt %s --emit=ptx --target=sm_90 | filecheck %s --check-prefix=SM90
// RUN: superopt-opt %s --emit=ptx --target=sm_100 | filecheck %s --check-prefix=SM100
// RUN: superopt-opt %s --emit=ptx --ptx-counts | filecheck %s --check-prefix=COUNTS
// RUN: superopt-opt %s --emit=ttir | filecheck %s --check-prefix=TTIR
// RUN: superopt-opt %s --emit=llir | filecheck %s --check-prefix=LLIR

// SM80: .target sm_80
// SM80: .visible .entry product_0
// SM80: mma.sync
// SM90: .target sm_90a
// SM90: .visible .entry product_0
// SM100: .target sm_100a
// COUNTS: // counts of product_0, the first of {{[0-9]+}} blocks
// COUNTS-NEXT: // shared wavefronts: {{[0-9]+}} where {{[0-9]+}} suffice
// COUNTS: // instructions by warps: {{.*}}tensor
// COUNTS: // waits for copies at line {{[0-9]+}} of its PTX: {{[0-9]+}}, with {{[0-9]+}} bytes under way
// COUNTS: .visible .entry product_0
// TTIR: tt.func public @product_0
// TTIR: tt.dot
// LLIR: define ptx_kernel void @product_0
func.func @product(%x: tensor<64x256xf16>, %w: tensor<256x128xf16>) -> tensor<64x128xf16> {
  %y = "kernel.matmul"(%x, %w) : (tensor<64x256xf16>, tensor<256x128xf16>) -> tensor<64x128xf16>
  return %y : tensor<64x128xf16>
}
