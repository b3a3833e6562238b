func.func @mqa_decode_b1_safe(%x0: tensor<1x71x1x64xf16>, %x1: tensor<1x1x4096x64xf16>, %x2: tensor<1x1x4096x64xf16>) -> tensor<1x71x1x64xf16> {
  %v = "kernel.reshape"(%x1) : (tensor<1x1x4096x64xf16>) -> tensor<1x1x1x4096x64xf16>
  %v_1 = "kernel.broadcast"(%v) : (tensor<1x1x1x4096x64xf16>) -> tensor<1x1x71x4096x64xf16>
  %v_2 = "kernel.reshape"(%v_1) : (tensor<1x1x71x4096x64xf16>) -> tensor<1x71x4096x64xf16>
  %v_3 = "kernel.matmul"(%x0, %v_2) {transpose_b = true} : (tensor<1x71x1x64xf16>, tensor<1x71x4096x64xf16>) -> tensor<1x71x1x4096xf16>
  %v_4 = "kernel.constant"() {value = 8.0 : f64} : () -> tensor<f16>
  %v_5 = "kernel.div"(%v_3, %v_4) : (tensor<1x71x1x4096xf16>, tensor<f16>) -> tensor<1x71x1x4096xf16>
  %v_6 = "kernel.cast"(%v_5) : (tensor<1x71x1x4096xf16>) -> tensor<1x71x1x4096xf32>
  %v_7 = "kernel.reduce_max"(%v_6) {dims = array<i64: 3>, keepdims = true} : (tensor<1x71x1x4096xf32>) -> tensor<1x71x1x1xf32>
  %v_8 = "kernel.sub"(%v_6, %v_7) : (tensor<1x71x1x4096xf32>, tensor<1x71x1x1xf32>) -> tensor<1x71x1x4096xf32>
  %v_9 = "kernel.exp"(%v_8) : (tensor<1x71x1x4096xf32>) -> tensor<1x71x1x4096xf32>
  %v_10 = "kernel.reduce_sum"(%v_9) {dims = array<i64: 3>, keepdims = true} : (tensor<1x71x1x4096xf32>) -> tensor<1x71x1x1xf32>
  %v_11 = "kernel.div"(%v_9, %v_10) : (tensor<1x71x1x4096xf32>, tensor<1x71x1x1xf32>) -> tensor<1x71x1x4096xf32>
  %v_12 = "kernel.cast"(%v_11) : (tensor<1x71x1x4096xf32>) -> tensor<1x71x1x4096xf16>
  %v_13 = "kernel.reshape"(%x2) : (tensor<1x1x4096x64xf16>) -> tensor<1x1x1x4096x64xf16>
  %v_14 = "kernel.broadcast"(%v_13) : (tensor<1x1x1x4096x64xf16>) -> tensor<1x1x71x4096x64xf16>
  %v_15 = "kernel.reshape"(%v_14) : (tensor<1x1x71x4096x64xf16>) -> tensor<1x71x4096x64xf16>
  %v_16 = "kernel.matmul"(%v_12, %v_15) : (tensor<1x71x1x4096xf16>, tensor<1x71x4096x64xf16>) -> tensor<1x71x1x64xf16>
  return %v_16 : tensor<1x71x1x64xf16>
}
