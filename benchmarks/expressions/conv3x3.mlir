func.func @conv3x3(%x: tensor<1x512x7x7xf16>, %w0: tensor<512x512x3x3xf16>) -> tensor<1x512x7x7xf16> {
  %y0 = "kernel.conv"(%x, %w0) {dilations = array<i64: 1, 1>, high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x512x7x7xf16>, tensor<512x512x3x3xf16>) -> tensor<1x512x7x7xf16>
  return %y0 : tensor<1x512x7x7xf16>
}
