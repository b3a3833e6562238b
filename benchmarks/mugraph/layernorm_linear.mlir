func.func @layernorm_linear(%x0: tensor<16x4096xf16>, %x1: tensor<4096x4096xf16>) -> tensor<16x4096xf16> {
  %v = "kernel.reduce_mean"(%x0) {dims = array<i64: 1>, keepdims = true} : (tensor<16x4096xf16>) -> tensor<16x1xf16>
  %v_1 = "kernel.sub"(%x0, %v) : (tensor<16x4096xf16>, tensor<16x1xf16>) -> tensor<16x4096xf16>
  %v_2 = "kernel.square"(%v_1) : (tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %v_3 = "kernel.reduce_mean"(%v_2) {dims = array<i64: 1>, keepdims = true} : (tensor<16x4096xf16>) -> tensor<16x1xf16>
  %v_4 = "kernel.constant"() {value = 1.0013580322265625e-05 : f64} : () -> tensor<f16>
  %v_5 = "kernel.add"(%v_3, %v_4) : (tensor<16x1xf16>, tensor<f16>) -> tensor<16x1xf16>
  %v_6 = "kernel.rsqrt"(%v_5) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %v_7 = "kernel.mul"(%v_1, %v_6) : (tensor<16x4096xf16>, tensor<16x1xf16>) -> tensor<16x4096xf16>
  %v_8 = "kernel.matmul"(%v_7, %x1) : (tensor<16x4096xf16>, tensor<4096x4096xf16>) -> tensor<16x4096xf16>
  return %v_8 : tensor<16x4096xf16>
}
