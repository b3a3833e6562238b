func.func @pooled_mlp(%x0: tensor<8x128x1024xf16>, %x1: tensor<1024x64xf16>, %x2: tensor<64x1024xf16>) -> tensor<8x1024xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<8x128x1024xf16>, tensor<1024x64xf16>) -> tensor<8x128x64xf16>
  %v_1 = "kernel.gelu"(%v) : (tensor<8x128x64xf16>) -> tensor<8x128x64xf16>
  %v_2 = "kernel.matmul"(%v_1, %x2) : (tensor<8x128x64xf16>, tensor<64x1024xf16>) -> tensor<8x128x1024xf16>
  %v_3 = "kernel.reduce_mean"(%v_2) {dims = array<i64: 1>} : (tensor<8x128x1024xf16>) -> tensor<8x1024xf16>
  return %v_3 : tensor<8x1024xf16>
}
