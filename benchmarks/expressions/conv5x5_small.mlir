func.func @conv5x5_small(%x: tensor<1x48x38x38xf16>, %w0: tensor<64x48x5x5xf16>) -> tensor<1x64x38x38xf16> {
  %y0 = "kernel.conv"(%x, %w0) {dilations = array<i64: 1, 1>, high = array<i64: 2, 2>, low = array<i64: 2, 2>, strides = array<i64: 1, 1>} : (tensor<1x48x38x38xf16>, tensor<64x48x5x5xf16>) -> tensor<1x64x38x38xf16>
  return %y0 : tensor<1x64x38x38xf16>
}
