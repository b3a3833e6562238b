func.func @rbf_regression(%x0: tensor<64x64xf16>, %x1: tensor<4096x64xf16>, %x2: tensor<4096x64xf16>) -> tensor<64x64xf16> {
  %v = "kernel.square"(%x0) : (tensor<64x64xf16>) -> tensor<64x64xf16>
  %v_1 = "kernel.reduce_sum"(%v) {dims = array<i64: 1>, keepdims = true} : (tensor<64x64xf16>) -> tensor<64x1xf16>
  %v_2 = "kernel.square"(%x1) : (tensor<4096x64xf16>) -> tensor<4096x64xf16>
  %v_3 = "kernel.reduce_sum"(%v_2) {dims = array<i64: 1>} : (tensor<4096x64xf16>) -> tensor<4096xf16>
  %v_4 = "kernel.add"(%v_1, %v_3) : (tensor<64x1xf16>, tensor<4096xf16>) -> tensor<64x4096xf16>
  %v_5 = "kernel.matmul"(%x0, %x1) {transpose_b = true} : (tensor<64x64xf16>, tensor<4096x64xf16>) -> tensor<64x4096xf16>
  %v_6 = "kernel.constant"() {value = 2.0 : f64} : () -> tensor<f16>
  %v_7 = "kernel.mul"(%v_5, %v_6) : (tensor<64x4096xf16>, tensor<f16>) -> tensor<64x4096xf16>
  %v_8 = "kernel.sub"(%v_4, %v_7) : (tensor<64x4096xf16>, tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_9 = "kernel.constant"() {value = -0.00390625 : f64} : () -> tensor<f16>
  %v_10 = "kernel.mul"(%v_8, %v_9) : (tensor<64x4096xf16>, tensor<f16>) -> tensor<64x4096xf16>
  %v_11 = "kernel.exp"(%v_10) : (tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_12 = "kernel.matmul"(%v_11, %x2) : (tensor<64x4096xf16>, tensor<4096x64xf16>) -> tensor<64x64xf16>
  %v_13 = "kernel.reduce_sum"(%v_11) {dims = array<i64: 1>, keepdims = true} : (tensor<64x4096xf16>) -> tensor<64x1xf16>
  %v_14 = "kernel.div"(%v_12, %v_13) : (tensor<64x64xf16>, tensor<64x1xf16>) -> tensor<64x64xf16>
  return %v_14 : tensor<64x64xf16>
}
