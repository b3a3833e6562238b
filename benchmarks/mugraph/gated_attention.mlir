func.func @gated_attention(%x0: tensor<64x64xf16>, %x1: tensor<4096x64xf16>, %x2: tensor<4096x64xf16>, %x3: tensor<64x1024xf16>, %x4: tensor<1024x64xf16>) -> tensor<64x64xf16> {
  %v = "kernel.matmul"(%x0, %x1) {transpose_b = true} : (tensor<64x64xf16>, tensor<4096x64xf16>) -> tensor<64x4096xf16>
  %v_1 = "kernel.exp"(%v) : (tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_2 = "kernel.reduce_sum"(%v_1) {dims = array<i64: 1>, keepdims = true} : (tensor<64x4096xf16>) -> tensor<64x1xf16>
  %v_3 = "kernel.div"(%v_1, %v_2) : (tensor<64x4096xf16>, tensor<64x1xf16>) -> tensor<64x4096xf16>
  %v_4 = "kernel.matmul"(%v_3, %x2) : (tensor<64x4096xf16>, tensor<4096x64xf16>) -> tensor<64x64xf16>
  %v_5 = "kernel.matmul"(%x3, %x4) : (tensor<64x1024xf16>, tensor<1024x64xf16>) -> tensor<64x64xf16>
  %v_6 = "kernel.sigmoid"(%v_5) : (tensor<64x64xf16>) -> tensor<64x64xf16>
  %v_7 = "kernel.mul"(%v_4, %v_6) : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  return %v_7 : tensor<64x64xf16>
}
