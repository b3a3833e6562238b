func.func @bilinear_form(%x0: tensor<64x4096xf16>, %x1: tensor<4096x4096xf16>, %x2: tensor<64x4096xf16>) -> tensor<64x1xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<64x4096xf16>, tensor<4096x4096xf16>) -> tensor<64x4096xf16>
  %v_1 = "kernel.mul"(%v, %x2) : (tensor<64x4096xf16>, tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_2 = "kernel.reduce_sum"(%v_1) {dims = array<i64: 1>, keepdims = true} : (tensor<64x4096xf16>) -> tensor<64x1xf16>
  %v_3 = "kernel.square"(%x0) : (tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_4 = "kernel.reduce_sum"(%v_3) {dims = array<i64: 1>, keepdims = true} : (tensor<64x4096xf16>) -> tensor<64x1xf16>
  %v_5 = "kernel.square"(%x2) : (tensor<64x4096xf16>) -> tensor<64x4096xf16>
  %v_6 = "kernel.reduce_sum"(%v_5) {dims = array<i64: 1>, keepdims = true} : (tensor<64x4096xf16>) -> tensor<64x1xf16>
  %v_7 = "kernel.mul"(%v_4, %v_6) : (tensor<64x1xf16>, tensor<64x1xf16>) -> tensor<64x1xf16>
  %v_8 = "kernel.sqrt"(%v_7) : (tensor<64x1xf16>) -> tensor<64x1xf16>
  %v_9 = "kernel.div"(%v_2, %v_8) : (tensor<64x1xf16>, tensor<64x1xf16>) -> tensor<64x1xf16>
  return %v_9 : tensor<64x1xf16>
}
