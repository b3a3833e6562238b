func.func @mha_public_b8(%x0: tensor<256x16x64xf16>, %x1: tensor<256x64x4096xf16>, %x2: tensor<256x4096x64xf16>) -> tensor<256x16x64xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<256x16x64xf16>, tensor<256x64x4096xf16>) -> tensor<256x16x4096xf16>
  %v_1 = "kernel.exp"(%v) : (tensor<256x16x4096xf16>) -> tensor<256x16x4096xf16>
  %v_2 = "kernel.reduce_sum"(%v_1) {dims = array<i64: 2>, keepdims = true} : (tensor<256x16x4096xf16>) -> tensor<256x16x1xf16>
  %v_3 = "kernel.div"(%v_1, %v_2) : (tensor<256x16x4096xf16>, tensor<256x16x1xf16>) -> tensor<256x16x4096xf16>
  %v_4 = "kernel.matmul"(%v_3, %x2) : (tensor<256x16x4096xf16>, tensor<256x4096x64xf16>) -> tensor<256x16x64xf16>
  return %v_4 : tensor<256x16x64xf16>
}
