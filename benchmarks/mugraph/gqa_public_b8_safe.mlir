func.func @gqa_public_b8_safe(%x0: tensor<16x256x64xf16>, %x1: tensor<16x64x4096xf16>, %x2: tensor<16x4096x64xf16>) -> tensor<16x256x64xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<16x256x64xf16>, tensor<16x64x4096xf16>) -> tensor<16x256x4096xf16>
  %v_1 = "kernel.cast"(%v) : (tensor<16x256x4096xf16>) -> tensor<16x256x4096xf32>
  %v_2 = "kernel.reduce_max"(%v_1) {dims = array<i64: 2>, keepdims = true} : (tensor<16x256x4096xf32>) -> tensor<16x256x1xf32>
  %v_3 = "kernel.sub"(%v_1, %v_2) : (tensor<16x256x4096xf32>, tensor<16x256x1xf32>) -> tensor<16x256x4096xf32>
  %v_4 = "kernel.exp"(%v_3) : (tensor<16x256x4096xf32>) -> tensor<16x256x4096xf32>
  %v_5 = "kernel.reduce_sum"(%v_4) {dims = array<i64: 2>, keepdims = true} : (tensor<16x256x4096xf32>) -> tensor<16x256x1xf32>
  %v_6 = "kernel.div"(%v_4, %v_5) : (tensor<16x256x4096xf32>, tensor<16x256x1xf32>) -> tensor<16x256x4096xf32>
  %v_7 = "kernel.cast"(%v_6) : (tensor<16x256x4096xf32>) -> tensor<16x256x4096xf16>
  %v_8 = "kernel.matmul"(%v_7, %x2) : (tensor<16x256x4096xf16>, tensor<16x4096x64xf16>) -> tensor<16x256x64xf16>
  return %v_8 : tensor<16x256x64xf16>
}
