// LoRA: O = X W + (X A) B, a projection with a low-rank correction of rank 16.

func.func @lora(%x: tensor<16x256xf16>, %w: tensor<256x4096xf16>, %a: tensor<256x16xf16>,
                %b: tensor<16x4096xf16>) -> tensor<16x4096xf16> {
  %zero = arith.constant 0.0 : f16
  %like_o = tensor.empty() : tensor<16x4096xf16>
  %like_xa = tensor.empty() : tensor<16x16xf16>
  %init_o = linalg.fill ins(%zero : f16) outs(%like_o : tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %init_xa = linalg.fill ins(%zero : f16) outs(%like_xa : tensor<16x16xf16>) -> tensor<16x16xf16>
  %xw = linalg.matmul ins(%x, %w : tensor<16x256xf16>, tensor<256x4096xf16>)
      outs(%init_o : tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %xa = linalg.matmul ins(%x, %a : tensor<16x256xf16>, tensor<256x16xf16>)
      outs(%init_xa : tensor<16x16xf16>) -> tensor<16x16xf16>
  %xab = linalg.matmul ins(%xa, %b : tensor<16x16xf16>, tensor<16x4096xf16>)
      outs(%init_o : tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %o = linalg.add ins(%xw, %xab : tensor<16x4096xf16>, tensor<16x4096xf16>)
      outs(%like_o : tensor<16x4096xf16>) -> tensor<16x4096xf16>
  return %o : tensor<16x4096xf16>
}
