func.func @rmsnorm_linear_b1(%x0: tensor<2x4096xf16>, %x1: tensor<4096x6144xf16>) -> tensor<2x6144xf16> {
  %v = "kernel.square"(%x0) : (tensor<2x4096xf16>) -> tensor<2x4096xf16>
  %v_1 = "kernel.reduce_mean"(%v) {dims = array<i64: 1>, keepdims = true} : (tensor<2x4096xf16>) -> tensor<2x1xf16>
  %v_2 = "kernel.constant"() {value = 1.0013580322265625e-05 : f64} : () -> tensor<f16>
  %v_3 = "kernel.add"(%v_1, %v_2) : (tensor<2x1xf16>, tensor<f16>) -> tensor<2x1xf16>
  %v_4 = "kernel.rsqrt"(%v_3) : (tensor<2x1xf16>) -> tensor<2x1xf16>
  %v_5 = "kernel.mul"(%x0, %v_4) : (tensor<2x4096xf16>, tensor<2x1xf16>) -> tensor<2x4096xf16>
  %v_6 = "kernel.matmul"(%v_5, %x1) : (tensor<2x4096xf16>, tensor<4096x6144xf16>) -> tensor<2x6144xf16>
  return %v_6 : tensor<2x6144xf16>
}
