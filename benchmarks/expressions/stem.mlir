func.func @stem(%x: tensor<1x3x224x224xf16>, %w0: tensor<64x3x7x7xf16>) -> tensor<1x64x112x112xf16> {
  %y0 = "kernel.conv"(%x, %w0) {dilations = array<i64: 1, 1>, high = array<i64: 3, 3>, low = array<i64: 3, 3>, strides = array<i64: 2, 2>} : (tensor<1x3x224x224xf16>, tensor<64x3x7x7xf16>) -> tensor<1x64x112x112xf16>
  return %y0 : tensor<1x64x112x112xf16>
}
