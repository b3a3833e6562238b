func.func @mha_spec_b8_safe(%x0: tensor<8x32x32x128xf16>, %x1: tensor<8x32x4096x128xf16>, %x2: tensor<8x32x4096x128xf16>) -> tensor<8x32x32x128xf16> {
  %v = "kernel.matmul"(%x0, %x1) {transpose_b = true} : (tensor<8x32x32x128xf16>, tensor<8x32x4096x128xf16>) -> tensor<8x32x32x4096xf16>
  %v_1 = "kernel.constant"() {value = 11.3125 : f64} : () -> tensor<f16>
  %v_2 = "kernel.div"(%v, %v_1) : (tensor<8x32x32x4096xf16>, tensor<f16>) -> tensor<8x32x32x4096xf16>
  %v_3 = "kernel.cast"(%v_2) : (tensor<8x32x32x4096xf16>) -> tensor<8x32x32x4096xf32>
  %v_4 = "kernel.reduce_max"(%v_3) {dims = array<i64: 3>, keepdims = true} : (tensor<8x32x32x4096xf32>) -> tensor<8x32x32x1xf32>
  %v_5 = "kernel.sub"(%v_3, %v_4) : (tensor<8x32x32x4096xf32>, tensor<8x32x32x1xf32>) -> tensor<8x32x32x4096xf32>
  %v_6 = "kernel.exp"(%v_5) : (tensor<8x32x32x4096xf32>) -> tensor<8x32x32x4096xf32>
  %v_7 = "kernel.reduce_sum"(%v_6) {dims = array<i64: 3>, keepdims = true} : (tensor<8x32x32x4096xf32>) -> tensor<8x32x32x1xf32>
  %v_8 = "kernel.div"(%v_6, %v_7) : (tensor<8x32x32x4096xf32>, tensor<8x32x32x1xf32>) -> tensor<8x32x32x4096xf32>
  %v_9 = "kernel.cast"(%v_8) : (tensor<8x32x32x4096xf32>) -> tensor<8x32x32x4096xf16>
  %v_10 = "kernel.matmul"(%v_9, %x2) : (tensor<8x32x32x4096xf16>, tensor<8x32x4096x128xf16>) -> tensor<8x32x32x128xf16>
  return %v_10 : tensor<8x32x32x128xf16>
}
