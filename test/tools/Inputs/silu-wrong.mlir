// x e^x
func.func @silu(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %e = "kernel.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %0 = "kernel.mul"(%x, %e) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
