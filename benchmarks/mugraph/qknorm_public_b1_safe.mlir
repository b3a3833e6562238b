func.func @qknorm_public_b1_safe(%x0: tensor<2x256x64xf16>, %x1: tensor<2x64x4096xf16>, %x2: tensor<2x4096x64xf16>) -> tensor<2x256x64xf16> {
  %v = "kernel.square"(%x0) : (tensor<2x256x64xf16>) -> tensor<2x256x64xf16>
  %v_1 = "kernel.reduce_mean"(%v) {dims = array<i64: 2>, keepdims = true} : (tensor<2x256x64xf16>) -> tensor<2x256x1xf16>
  %v_2 = "kernel.constant"() {value = 1.0013580322265625e-05 : f64} : () -> tensor<f16>
  %v_3 = "kernel.add"(%v_1, %v_2) : (tensor<2x256x1xf16>, tensor<f16>) -> tensor<2x256x1xf16>
  %v_4 = "kernel.rsqrt"(%v_3) : (tensor<2x256x1xf16>) -> tensor<2x256x1xf16>
  %v_5 = "kernel.mul"(%x0, %v_4) : (tensor<2x256x64xf16>, tensor<2x256x1xf16>) -> tensor<2x256x64xf16>
  %v_6 = "kernel.transpose"(%x1) {perm = array<i64: 0, 2, 1>} : (tensor<2x64x4096xf16>) -> tensor<2x4096x64xf16>
  %v_7 = "kernel.square"(%v_6) : (tensor<2x4096x64xf16>) -> tensor<2x4096x64xf16>
  %v_8 = "kernel.reduce_mean"(%v_7) {dims = array<i64: 2>, keepdims = true} : (tensor<2x4096x64xf16>) -> tensor<2x4096x1xf16>
  %v_9 = "kernel.add"(%v_8, %v_2) : (tensor<2x4096x1xf16>, tensor<f16>) -> tensor<2x4096x1xf16>
  %v_10 = "kernel.rsqrt"(%v_9) : (tensor<2x4096x1xf16>) -> tensor<2x4096x1xf16>
  %v_11 = "kernel.mul"(%v_6, %v_10) : (tensor<2x4096x64xf16>, tensor<2x4096x1xf16>) -> tensor<2x4096x64xf16>
  %v_12 = "kernel.matmul"(%v_5, %v_11) {transpose_b = true} : (tensor<2x256x64xf16>, tensor<2x4096x64xf16>) -> tensor<2x256x4096xf16>
  %v_13 = "kernel.cast"(%v_12) : (tensor<2x256x4096xf16>) -> tensor<2x256x4096xf32>
  %v_14 = "kernel.reduce_max"(%v_13) {dims = array<i64: 2>, keepdims = true} : (tensor<2x256x4096xf32>) -> tensor<2x256x1xf32>
  %v_15 = "kernel.sub"(%v_13, %v_14) : (tensor<2x256x4096xf32>, tensor<2x256x1xf32>) -> tensor<2x256x4096xf32>
  %v_16 = "kernel.exp"(%v_15) : (tensor<2x256x4096xf32>) -> tensor<2x256x4096xf32>
  %v_17 = "kernel.reduce_sum"(%v_16) {dims = array<i64: 2>, keepdims = true} : (tensor<2x256x4096xf32>) -> tensor<2x256x1xf32>
  %v_18 = "kernel.div"(%v_16, %v_17) : (tensor<2x256x4096xf32>, tensor<2x256x1xf32>) -> tensor<2x256x4096xf32>
  %v_19 = "kernel.cast"(%v_18) : (tensor<2x256x4096xf32>) -> tensor<2x256x4096xf16>
  %v_20 = "kernel.matmul"(%v_19, %x2) : (tensor<2x256x4096xf16>, tensor<2x4096x64xf16>) -> tensor<2x256x64xf16>
  return %v_20 : tensor<2x256x64xf16>
}
