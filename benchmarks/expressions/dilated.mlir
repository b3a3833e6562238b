func.func @dilated(%x: tensor<1x512x14x14xf16>, %w0: tensor<256x512x3x3xf16>) -> tensor<1x256x14x14xf16> {
  %y0 = "kernel.conv"(%x, %w0) {dilations = array<i64: 2, 2>, high = array<i64: 2, 2>, low = array<i64: 2, 2>, strides = array<i64: 1, 1>} : (tensor<1x512x14x14xf16>, tensor<256x512x3x3xf16>) -> tensor<1x256x14x14xf16>
  return %y0 : tensor<1x256x14x14xf16>
}
