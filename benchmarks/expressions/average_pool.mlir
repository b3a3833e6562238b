func.func @average_pool(%x: tensor<1x288x35x35xf16>) -> tensor<1x288x35x35xf16> {
  %y0 = "kernel.pool_sum"(%x) {dilations = array<i64: 1, 1>, high = array<i64: 1, 1>, low = array<i64: 1, 1>, sizes = array<i64: 3, 3>, strides = array<i64: 1, 1>} : (tensor<1x288x35x35xf16>) -> tensor<1x288x35x35xf16>
  return %y0 : tensor<1x288x35x35xf16>
}
