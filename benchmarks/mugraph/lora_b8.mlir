func.func @lora_b8(%x0: tensor<16x256xf16>, %x1: tensor<256x4096xf16>, %x2: tensor<256x16xf16>, %x3: tensor<16x4096xf16>) -> tensor<16x4096xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<16x256xf16>, tensor<256x4096xf16>) -> tensor<16x4096xf16>
  %v_1 = "kernel.matmul"(%x0, %x2) : (tensor<16x256xf16>, tensor<256x16xf16>) -> tensor<16x16xf16>
  %v_2 = "kernel.matmul"(%v_1, %x3) : (tensor<16x16xf16>, tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %v_3 = "kernel.add"(%v, %v_2) : (tensor<16x4096xf16>, tensor<16x4096xf16>) -> tensor<16x4096xf16>
  return %v_3 : tensor<16x4096xf16>
}
