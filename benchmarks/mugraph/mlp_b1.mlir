func.func @mlp_b1(%x0: tensor<1x4096xf16>, %x1: tensor<4096x16xf16>, %x2: tensor<16x4096xf16>) -> tensor<1x4096xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<1x4096xf16>, tensor<4096x16xf16>) -> tensor<1x16xf16>
  %v_1 = "kernel.relu"(%v) : (tensor<1x16xf16>) -> tensor<1x16xf16>
  %v_2 = "kernel.matmul"(%v_1, %x2) : (tensor<1x16xf16>, tensor<16x4096xf16>) -> tensor<1x4096xf16>
  %v_3 = "kernel.add"(%v_2, %x0) : (tensor<1x4096xf16>, tensor<1x4096xf16>) -> tensor<1x4096xf16>
  return %v_3 : tensor<1x4096xf16>
}
