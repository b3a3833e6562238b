func.func @linear_attention(%x0: tensor<32x1024x64xf16>, %x1: tensor<32x1024x64xf16>, %x2: tensor<32x1024x64xf16>) -> tensor<32x1024x64xf16> {
  %v = "kernel.relu"(%x0) : (tensor<32x1024x64xf16>) -> tensor<32x1024x64xf16>
  %v_1 = "kernel.relu"(%x1) : (tensor<32x1024x64xf16>) -> tensor<32x1024x64xf16>
  %v_2 = "kernel.reduce_sum"(%v_1) {dims = array<i64: 1>, keepdims = true} : (tensor<32x1024x64xf16>) -> tensor<32x1x64xf16>
  %v_3 = "kernel.reshape"(%v_2) : (tensor<32x1x64xf16>) -> tensor<32x64x1xf16>
  %v_4 = "kernel.matmul"(%v, %v_3) : (tensor<32x1024x64xf16>, tensor<32x64x1xf16>) -> tensor<32x1024x1xf16>
  %v_5 = "kernel.matmul"(%v_1, %x2) {transpose_a = true} : (tensor<32x1024x64xf16>, tensor<32x1024x64xf16>) -> tensor<32x64x64xf16>
  %v_6 = "kernel.matmul"(%v, %v_5) : (tensor<32x1024x64xf16>, tensor<32x64x64xf16>) -> tensor<32x1024x64xf16>
  %v_7 = "kernel.constant"() {value = 0.0010004043579101562 : f64} : () -> tensor<f16>
  %v_8 = "kernel.add"(%v_4, %v_7) : (tensor<32x1024x1xf16>, tensor<f16>) -> tensor<32x1024x1xf16>
  %v_9 = "kernel.div"(%v_6, %v_8) : (tensor<32x1024x64xf16>, tensor<32x1024x1xf16>) -> tensor<32x1024x64xf16>
  return %v_9 : tensor<32x1024x64xf16>
}
