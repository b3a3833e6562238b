func.func @rational_features(%x0: tensor<16x1024xf16>, %x1: tensor<1024x512xf16>, %x2: tensor<1024x512xf16>) -> tensor<16x512xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<16x1024xf16>, tensor<1024x512xf16>) -> tensor<16x512xf16>
  %v_1 = "kernel.matmul"(%x0, %x2) : (tensor<16x1024xf16>, tensor<1024x512xf16>) -> tensor<16x512xf16>
  %v_2 = "kernel.square"(%v_1) : (tensor<16x512xf16>) -> tensor<16x512xf16>
  %v_3 = "kernel.constant"() {value = 1.0 : f64} : () -> tensor<f16>
  %v_4 = "kernel.add"(%v_2, %v_3) : (tensor<16x512xf16>, tensor<f16>) -> tensor<16x512xf16>
  %v_5 = "kernel.div"(%v, %v_4) : (tensor<16x512xf16>, tensor<16x512xf16>) -> tensor<16x512xf16>
  %v_6 = "kernel.square"(%v_5) : (tensor<16x512xf16>) -> tensor<16x512xf16>
  %v_7 = "kernel.reduce_sum"(%v_6) {dims = array<i64: 1>, keepdims = true} : (tensor<16x512xf16>) -> tensor<16x1xf16>
  %v_8 = "kernel.constant"() {value = 1.0013580322265625e-05 : f64} : () -> tensor<f16>
  %v_9 = "kernel.add"(%v_7, %v_8) : (tensor<16x1xf16>, tensor<f16>) -> tensor<16x1xf16>
  %v_10 = "kernel.rsqrt"(%v_9) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %v_11 = "kernel.mul"(%v_5, %v_10) : (tensor<16x512xf16>, tensor<16x1xf16>) -> tensor<16x512xf16>
  return %v_11 : tensor<16x512xf16>
}
