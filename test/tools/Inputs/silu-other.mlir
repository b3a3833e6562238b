// x e^x / (e^x + 1)
func.func @silu(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %e = "kernel.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "kernel.constant"() {value = 1.0 : f64} : () -> tensor<f32>
  %d = "kernel.add"(%e, %1) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  %n = "kernel.mul"(%x, %e) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %0 = "kernel.div"(%n, %d) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
