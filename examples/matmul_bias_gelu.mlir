// A linear layer with bias and exact (erf) gelu: O = gelu(X W + bias).

#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d1)>

func.func @matmul_bias_gelu(%x: tensor<16x1024xf16>, %w: tensor<1024x4096xf16>, %bias: tensor<4096xf16>)
    -> tensor<16x4096xf16> {
  %zero = arith.constant 0.0 : f16
  %half = arith.constant 5.0e-01 : f16
  %one = arith.constant 1.0 : f16
  %rsqrt2 = arith.constant 0.70710678118654752 : f16
  %like_o = tensor.empty() : tensor<16x4096xf16>
  %init = linalg.fill ins(%zero : f16) outs(%like_o : tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %xw = linalg.matmul ins(%x, %w : tensor<16x1024xf16>, tensor<1024x4096xf16>)
      outs(%init : tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %o = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel"]}
      ins(%xw, %bias : tensor<16x4096xf16>, tensor<4096xf16>) outs(%like_o : tensor<16x4096xf16>) {
    ^bb0(%p: f16, %c: f16, %out: f16):
      %s = arith.addf %p, %c : f16
      %scaled = arith.mulf %s, %rsqrt2 : f16
      %erf = math.erf %scaled : f16
      %shifted = arith.addf %erf, %one : f16
      %halved = arith.mulf %s, %half : f16
      %g = arith.mulf %halved, %shifted : f16
      linalg.yield %g : f16
  } -> tensor<16x4096xf16>
  return %o : tensor<16x4096xf16>
}
