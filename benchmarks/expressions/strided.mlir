func.func @strided(%x: tensor<1x64x56x56xf16>, %w0: tensor<128x64x3x3xf16>) -> tensor<1x128x28x28xf16> {
  %y0 = "kernel.conv"(%x, %w0) {dilations = array<i64: 1, 1>, high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 2, 2>} : (tensor<1x64x56x56xf16>, tensor<128x64x3x3xf16>) -> tensor<1x128x28x28xf16>
  return %y0 : tensor<1x128x28x28xf16>
}
