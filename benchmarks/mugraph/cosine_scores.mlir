func.func @cosine_scores(%x0: tensor<16x4096xf16>, %x1: tensor<4096x4096xf16>) -> tensor<16x4096xf16> {
  %v = "kernel.square"(%x0) : (tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %v_1 = "kernel.reduce_sum"(%v) {dims = array<i64: 1>, keepdims = true} : (tensor<16x4096xf16>) -> tensor<16x1xf16>
  %v_2 = "kernel.rsqrt"(%v_1) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %v_3 = "kernel.mul"(%x0, %v_2) : (tensor<16x4096xf16>, tensor<16x1xf16>) -> tensor<16x4096xf16>
  %v_4 = "kernel.square"(%x1) : (tensor<4096x4096xf16>) -> tensor<4096x4096xf16>
  %v_5 = "kernel.reduce_sum"(%v_4) {dims = array<i64: 0>, keepdims = true} : (tensor<4096x4096xf16>) -> tensor<1x4096xf16>
  %v_6 = "kernel.rsqrt"(%v_5) : (tensor<1x4096xf16>) -> tensor<1x4096xf16>
  %v_7 = "kernel.mul"(%x1, %v_6) : (tensor<4096x4096xf16>, tensor<1x4096xf16>) -> tensor<4096x4096xf16>
  %v_8 = "kernel.matmul"(%v_3, %v_7) : (tensor<16x4096xf16>, tensor<4096x4096xf16>) -> tensor<16x4096xf16>
  return %v_8 : tensor<16x4096xf16>
}
