func.func @two_1x1(%x: tensor<1x768x18x18xf16>, %w0: tensor<192x768x1x1xf16>, %w1: tensor<160x768x1x1xf16>) -> (tensor<1x192x18x18xf16>, tensor<1x160x18x18xf16>) {
  %y0 = "kernel.conv"(%x, %w0) {dilations = array<i64: 1, 1>, high = array<i64: 0, 0>, low = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x768x18x18xf16>, tensor<192x768x1x1xf16>) -> tensor<1x192x18x18xf16>
  %y1 = "kernel.conv"(%x, %w1) {dilations = array<i64: 1, 1>, high = array<i64: 0, 0>, low = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x768x18x18xf16>, tensor<160x768x1x1xf16>) -> tensor<1x160x18x18xf16>
  return %y0, %y1 : tensor<1x192x18x18xf16>, tensor<1x160x18x18xf16>
}
