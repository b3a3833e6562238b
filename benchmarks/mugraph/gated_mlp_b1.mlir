func.func @gated_mlp_b1(%x0: tensor<1x4096xf16>, %x1: tensor<4096x4096xf16>, %x2: tensor<4096x4096xf16>) -> tensor<1x4096xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<1x4096xf16>, tensor<4096x4096xf16>) -> tensor<1x4096xf16>
  %v_1 = "kernel.silu"(%v) : (tensor<1x4096xf16>) -> tensor<1x4096xf16>
  %v_2 = "kernel.matmul"(%x0, %x2) : (tensor<1x4096xf16>, tensor<4096x4096xf16>) -> tensor<1x4096xf16>
  %v_3 = "kernel.mul"(%v_1, %v_2) : (tensor<1x4096xf16>, tensor<1x4096xf16>) -> tensor<1x4096xf16>
  return %v_3 : tensor<1x4096xf16>
}
