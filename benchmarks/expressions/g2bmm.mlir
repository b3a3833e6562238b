func.func @g2bmm(%x: tensor<8x10000x64xf16>, %w0: tensor<8x10000x64xf16>) -> tensor<8x10000x1001xf16> {
  %y0 = "kernel.g2bmm"(%x, %w0) {dilation = 4 : i64, low = 2000 : i64, width = 1001 : i64} : (tensor<8x10000x64xf16>, tensor<8x10000x64xf16>) -> tensor<8x10000x1001xf16>
  return %y0 : tensor<8x10000x1001xf16>
}
