// RMSNorm followed by a linear layer: O = (X / sqrt(mean(X * X) + eps)) W, as a front end would write it.
// X is 16 tokens of 4096 features, W projects to 6144.

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>

func.func @rmsnorm_linear(%x: tensor<16x4096xf16>, %w: tensor<4096x6144xf16>) -> tensor<16x6144xf16> {
  %zero = arith.constant 0.0 : f16
  %n = arith.constant 4096.0 : f16
  %eps = arith.constant 1.0e-05 : f16
  %rows = tensor.empty() : tensor<16xf16>
  %start = linalg.fill ins(%zero : f16) outs(%rows : tensor<16xf16>) -> tensor<16xf16>
  %squares = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<16x4096xf16>) outs(%start : tensor<16xf16>) {
    ^bb0(%a: f16, %sum: f16):
      %square = arith.mulf %a, %a : f16
      %next = arith.addf %sum, %square : f16
      linalg.yield %next : f16
  } -> tensor<16xf16>
  %like_x = tensor.empty() : tensor<16x4096xf16>
  %normed = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %squares : tensor<16x4096xf16>, tensor<16xf16>) outs(%like_x : tensor<16x4096xf16>) {
    ^bb0(%a: f16, %s: f16, %out: f16):
      %mean = arith.divf %s, %n : f16
      %shifted = arith.addf %mean, %eps : f16
      %scale = math.rsqrt %shifted : f16
      %y = arith.mulf %a, %scale : f16
      linalg.yield %y : f16
  } -> tensor<16x4096xf16>
  %like_o = tensor.empty() : tensor<16x6144xf16>
  %init = linalg.fill ins(%zero : f16) outs(%like_o : tensor<16x6144xf16>) -> tensor<16x6144xf16>
  %o = linalg.matmul ins(%normed, %w : tensor<16x4096xf16>, tensor<4096x6144xf16>)
      outs(%init : tensor<16x6144xf16>) -> tensor<16x6144xf16>
  return %o : tensor<16x6144xf16>
}
