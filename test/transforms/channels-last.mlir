// With channels last throughout, nothing is moved: two convolutions and the bias between them are two kernels, whose
// loads are of 4 bytes or more.
// RUN: superopt-opt %s --ingest-linalg --quiet --emit=ptx | filecheck %s

func.func @f(%x: tensor<1x8x8x32xf16>, %w: tensor<3x3x32x64xf16>, %v: tensor<3x3x64x64xf16>, %b: tensor<64xf16>)
    -> tensor<1x4x4x64xf16> {
  %zero = arith.constant 0.0 : f16
  %e0 = tensor.empty() : tensor<1x6x6x64xf16>
  %f0 = linalg.fill ins(%zero : f16) outs(%e0 : tensor<1x6x6x64xf16>) -> tensor<1x6x6x64xf16>
  %y = linalg.conv_2d_nhwc_hwcf
      ins(%x, %w : tensor<1x8x8x32xf16>, tensor<3x3x32x64xf16>)
      outs(%f0 : tensor<1x6x6x64xf16>) -> tensor<1x6x6x64xf16>
  %spread = linalg.broadcast ins(%b : tensor<64xf16>) outs(%e0 : tensor<1x6x6x64xf16>) dimensions = [0, 1, 2]
  %shifted = linalg.add ins(%y, %spread : tensor<1x6x6x64xf16>, tensor<1x6x6x64xf16>)
      outs(%e0 : tensor<1x6x6x64xf16>) -> tensor<1x6x6x64xf16>
  %e1 = tensor.empty() : tensor<1x4x4x64xf16>
  %f1 = linalg.fill ins(%zero : f16) outs(%e1 : tensor<1x4x4x64xf16>) -> tensor<1x4x4x64xf16>
  %z = linalg.conv_2d_nhwc_hwcf
      ins(%shifted, %v : tensor<1x6x6x64xf16>, tensor<3x3x64x64xf16>)
      outs(%f1 : tensor<1x4x4x64xf16>) -> tensor<1x4x4x64xf16>
  return %z : tensor<1x4x4x64xf16>
}

// CHECK-NOT: ld.global.b16
// CHECK: .entry f_0(
// CHECK-NOT: ld.global.b16
// CHECK: ld.global.v2.b32
// CHECK-NOT: ld.global.b16
// CHECK: .entry f_1(
// CHECK-NOT: ld.global.b16
// CHECK: ld.global.v4.b32
// CHECK-NOT: ld.global.b16
// CHECK-NOT: .entry
