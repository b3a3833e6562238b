func.func @attention_block(%x0: tensor<512x4096xf16>, %x1: tensor<4096x4096xf16>, %x2: tensor<4096x1024xf16>, %x3: tensor<4096x1024xf16>, %x4: tensor<4096x4096xf16>) -> tensor<512x4096xf16> {
  %v = "kernel.matmul"(%x0, %x1) : (tensor<512x4096xf16>, tensor<4096x4096xf16>) -> tensor<512x4096xf16>
  %v_1 = "kernel.reshape"(%v) : (tensor<512x4096xf16>) -> tensor<512x32x128xf16>
  %v_2 = "kernel.transpose"(%v_1) {perm = array<i64: 1, 0, 2>} : (tensor<512x32x128xf16>) -> tensor<32x512x128xf16>
  %v_3 = "kernel.reshape"(%v_2) : (tensor<32x512x128xf16>) -> tensor<1x32x512x128xf16>
  %v_4 = "kernel.matmul"(%x0, %x2) : (tensor<512x4096xf16>, tensor<4096x1024xf16>) -> tensor<512x1024xf16>
  %v_5 = "kernel.reshape"(%v_4) : (tensor<512x1024xf16>) -> tensor<512x8x128xf16>
  %v_6 = "kernel.transpose"(%v_5) {perm = array<i64: 1, 0, 2>} : (tensor<512x8x128xf16>) -> tensor<8x512x128xf16>
  %v_7 = "kernel.matmul"(%x0, %x3) : (tensor<512x4096xf16>, tensor<4096x1024xf16>) -> tensor<512x1024xf16>
  %v_8 = "kernel.reshape"(%v_7) : (tensor<512x1024xf16>) -> tensor<512x8x128xf16>
  %v_9 = "kernel.transpose"(%v_8) {perm = array<i64: 1, 0, 2>} : (tensor<512x8x128xf16>) -> tensor<8x512x128xf16>
  %v_10 = "kernel.reshape"(%v_6) : (tensor<8x512x128xf16>) -> tensor<1x8x1x512x128xf16>
  %v_11 = "kernel.broadcast"(%v_10) : (tensor<1x8x1x512x128xf16>) -> tensor<1x8x4x512x128xf16>
  %v_12 = "kernel.reshape"(%v_11) : (tensor<1x8x4x512x128xf16>) -> tensor<1x32x512x128xf16>
  %v_13 = "kernel.matmul"(%v_3, %v_12) {transpose_b = true} : (tensor<1x32x512x128xf16>, tensor<1x32x512x128xf16>) -> tensor<1x32x512x512xf16>
  %v_14 = "kernel.constant"() {value = 11.3125 : f64} : () -> tensor<f16>
  %v_15 = "kernel.div"(%v_13, %v_14) : (tensor<1x32x512x512xf16>, tensor<f16>) -> tensor<1x32x512x512xf16>
  %v_16 = "kernel.cast"(%v_15) : (tensor<1x32x512x512xf16>) -> tensor<1x32x512x512xf32>
  %v_17 = "kernel.reduce_max"(%v_16) {dims = array<i64: 3>, keepdims = true} : (tensor<1x32x512x512xf32>) -> tensor<1x32x512x1xf32>
  %v_18 = "kernel.sub"(%v_16, %v_17) : (tensor<1x32x512x512xf32>, tensor<1x32x512x1xf32>) -> tensor<1x32x512x512xf32>
  %v_19 = "kernel.exp"(%v_18) : (tensor<1x32x512x512xf32>) -> tensor<1x32x512x512xf32>
  %v_20 = "kernel.reduce_sum"(%v_19) {dims = array<i64: 3>, keepdims = true} : (tensor<1x32x512x512xf32>) -> tensor<1x32x512x1xf32>
  %v_21 = "kernel.div"(%v_19, %v_20) : (tensor<1x32x512x512xf32>, tensor<1x32x512x1xf32>) -> tensor<1x32x512x512xf32>
  %v_22 = "kernel.cast"(%v_21) : (tensor<1x32x512x512xf32>) -> tensor<1x32x512x512xf16>
  %v_23 = "kernel.reshape"(%v_9) : (tensor<8x512x128xf16>) -> tensor<1x8x1x512x128xf16>
  %v_24 = "kernel.broadcast"(%v_23) : (tensor<1x8x1x512x128xf16>) -> tensor<1x8x4x512x128xf16>
  %v_25 = "kernel.reshape"(%v_24) : (tensor<1x8x4x512x128xf16>) -> tensor<1x32x512x128xf16>
  %v_26 = "kernel.matmul"(%v_22, %v_25) : (tensor<1x32x512x512xf16>, tensor<1x32x512x128xf16>) -> tensor<1x32x512x128xf16>
  %v_27 = "kernel.transpose"(%v_26) {perm = array<i64: 0, 2, 1, 3>} : (tensor<1x32x512x128xf16>) -> tensor<1x512x32x128xf16>
  %v_28 = "kernel.reshape"(%v_27) : (tensor<1x512x32x128xf16>) -> tensor<512x4096xf16>
  %v_29 = "kernel.matmul"(%v_28, %x4) : (tensor<512x4096xf16>, tensor<4096x4096xf16>) -> tensor<512x4096xf16>
  return %v_29 : tensor<512x4096xf16>
}
