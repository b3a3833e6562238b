func.func @products(%x: tensor<512x768xf16>, %w0: tensor<768x768xf16>, %w1: tensor<768x768xf16>, %w2: tensor<768x768xf16>) -> (tensor<512x768xf16>, tensor<512x768xf16>, tensor<512x768xf16>) {
  %y0 = "kernel.matmul"(%x, %w0) : (tensor<512x768xf16>, tensor<768x768xf16>) -> tensor<512x768xf16>
  %y1 = "kernel.matmul"(%x, %w1) : (tensor<512x768xf16>, tensor<768x768xf16>) -> tensor<512x768xf16>
  %y2 = "kernel.matmul"(%x, %w2) : (tensor<512x768xf16>, tensor<768x768xf16>) -> tensor<512x768xf16>
  return %y0, %y1, %y2 : tensor<512x768xf16>, tensor<512x768xf16>, tensor<512x768xf16>
}
