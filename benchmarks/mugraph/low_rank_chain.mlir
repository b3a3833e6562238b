func.func @low_rank_chain(%x0: tensor<64x4096xf16>, %x1: tensor<4096x16xf16>, %x2: tensor<16x16xf16>, %x3: tensor<16x4096xf16>) -> tensor<64x4096xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<64x4096xf16>, tensor<4096x16xf16>) -> tensor<64x16xf16>
  %v_1 = "kernel.matmul"(%v, %x2) : (tensor<64x16xf16>, tensor<16x16xf16>) -> tensor<64x16xf16>
  %v_2 = "kernel.matmul"(%v_1, %x3) : (tensor<64x16xf16>, tensor<16x4096xf16>) -> tensor<64x4096xf16>
  %v_3 = "kernel.add"(%v_2, %x0) : (tensor<64x4096xf16>, tensor<64x4096xf16>) -> tensor<64x4096xf16>
  return %v_3 : tensor<64x4096xf16>
}
