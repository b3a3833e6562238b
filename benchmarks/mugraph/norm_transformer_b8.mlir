func.func @norm_transformer_b8(%x0: tensor<64x4096xf16>, %x1: tensor<64x4096xf16>, %x2: tensor<64x4096xf16>) -> tensor<64x4096xf16> {
  %v = "kernel.square"(%x1) : (tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_1 = "kernel.reduce_mean"(%v) {dims = array<i64: 1>, keepdims = true} : (tensor<64x4096xf16>) -> tensor<64x1xf16>
  %v_2 = "kernel.constant"() {value = 1.0013580322265625e-05 : f64} : () -> tensor<f16>
  %v_3 = "kernel.add"(%v_1, %v_2) : (tensor<64x1xf16>, tensor<f16>) -> tensor<64x1xf16>
  %v_4 = "kernel.rsqrt"(%v_3) : (tensor<64x1xf16>) -> tensor<64x1xf16>
  %v_5 = "kernel.mul"(%x1, %v_4) : (tensor<64x4096xf16>, tensor<64x1xf16>) -> tensor<64x4096xf16>
  %v_6 = "kernel.sub"(%v_5, %x0) : (tensor<64x4096xf16>, tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_7 = "kernel.mul"(%x2, %v_6) : (tensor<64x4096xf16>, tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_8 = "kernel.add"(%x0, %v_7) : (tensor<64x4096xf16>, tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_9 = "kernel.square"(%v_8) : (tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_10 = "kernel.reduce_mean"(%v_9) {dims = array<i64: 1>, keepdims = true} : (tensor<64x4096xf16>) -> tensor<64x1xf16>
  %v_11 = "kernel.add"(%v_10, %v_2) : (tensor<64x1xf16>, tensor<f16>) -> tensor<64x1xf16>
  %v_12 = "kernel.rsqrt"(%v_11) : (tensor<64x1xf16>) -> tensor<64x1xf16>
  %v_13 = "kernel.mul"(%v_8, %v_12) : (tensor<64x4096xf16>, tensor<64x1xf16>) -> tensor<64x4096xf16>
  return %v_13 : tensor<64x4096xf16>
}
