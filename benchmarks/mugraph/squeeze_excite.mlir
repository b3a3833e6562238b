func.func @squeeze_excite(%x0: tensor<8x1024x512xf16>, %x1: tensor<512x32xf16>, %x2: tensor<32x512xf16>) -> tensor<8x1024x512xf16> {
  %v = "kernel.reduce_mean"(%x0) {dims = array<i64: 1>} : (tensor<8x1024x512xf16>) -> tensor<8x512xf16>
  %v_1 = "kernel.matmul"(%v, %x1) : (tensor<8x512xf16>, tensor<512x32xf16>) -> tensor<8x32xf16>
  %v_2 = "kernel.relu"(%v_1) : (tensor<8x32xf16>) -> tensor<8x32xf16>
  %v_3 = "kernel.matmul"(%v_2, %x2) : (tensor<8x32xf16>, tensor<32x512xf16>) -> tensor<8x512xf16>
  %v_4 = "kernel.sigmoid"(%v_3) : (tensor<8x512xf16>) -> tensor<8x512xf16>
  %v_5 = "kernel.reshape"(%v_4) : (tensor<8x512xf16>) -> tensor<8x1x512xf16>
  %v_6 = "kernel.mul"(%x0, %v_5) : (tensor<8x1024x512xf16>, tensor<8x1x512xf16>) -> tensor<8x1024x512xf16>
  return %v_6 : tensor<8x1024x512xf16>
}
