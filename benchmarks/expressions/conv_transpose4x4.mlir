func.func @conv_transpose4x4(%x: tensor<16x256x2x2xf16>, %w0: tensor<256x128x4x4xf16>) -> tensor<16x128x4x4xf16> {
  %y0 = "kernel.conv_transpose"(%x, %w0) {dilations = array<i64: 1, 1>, extra = array<i64: 0, 0>, high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 2, 2>} : (tensor<16x256x2x2xf16>, tensor<256x128x4x4xf16>) -> tensor<16x128x4x4xf16>
  return %y0 : tensor<16x128x4x4xf16>
}
