func.func @moe_b8(%x0: tensor<8x8x4096xf16>, %x1: tensor<8x4096x4096xf16>, %x2: tensor<8x4096x4096xf16>) -> tensor<8x8x4096xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<8x8x4096xf16>, tensor<8x4096x4096xf16>) -> tensor<8x8x4096xf16>
  %v_1 = "kernel.silu"(%v) : (tensor<8x8x4096xf16>) -> tensor<8x8x4096xf16>
  %v_2 = "kernel.matmul"(%v_1, %x2) : (tensor<8x8x4096xf16>, tensor<8x4096x4096xf16>) -> tensor<8x8x4096xf16>
  return %v_2 : tensor<8x8x4096xf16>
}
