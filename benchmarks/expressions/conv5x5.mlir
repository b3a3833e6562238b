func.func @conv5x5(%x: tensor<16x32x224x224xf16>, %w0: tensor<32x32x5x5xf16>) -> tensor<16x32x224x224xf16> {
  %y0 = "kernel.conv"(%x, %w0) {dilations = array<i64: 1, 1>, high = array<i64: 2, 2>, low = array<i64: 2, 2>, strides = array<i64: 1, 1>} : (tensor<16x32x224x224xf16>, tensor<32x32x5x5xf16>) -> tensor<16x32x224x224xf16>
  return %y0 : tensor<16x32x224x224xf16>
}
