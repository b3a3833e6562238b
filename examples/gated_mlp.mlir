// The first half of a gated MLP: H = silu(X W1) * (X W2).

#id = affine_map<(d0, d1) -> (d0, d1)>

func.func @gated_mlp(%x: tensor<8x4096xf16>, %w1: tensor<4096x4096xf16>, %w2: tensor<4096x4096xf16>)
    -> tensor<8x4096xf16> {
  %zero = arith.constant 0.0 : f16
  %one = arith.constant 1.0 : f16
  %like = tensor.empty() : tensor<8x4096xf16>
  %init = linalg.fill ins(%zero : f16) outs(%like : tensor<8x4096xf16>) -> tensor<8x4096xf16>
  %gate = linalg.matmul ins(%x, %w1 : tensor<8x4096xf16>, tensor<4096x4096xf16>)
      outs(%init : tensor<8x4096xf16>) -> tensor<8x4096xf16>
  %up = linalg.matmul ins(%x, %w2 : tensor<8x4096xf16>, tensor<4096x4096xf16>)
      outs(%init : tensor<8x4096xf16>) -> tensor<8x4096xf16>
  %h = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%gate, %up : tensor<8x4096xf16>, tensor<8x4096xf16>) outs(%like : tensor<8x4096xf16>) {
    ^bb0(%g: f16, %u: f16, %out: f16):
      %minus = arith.negf %g : f16
      %e = math.exp %minus : f16
      %d = arith.addf %e, %one : f16
      %silu = arith.divf %g, %d : f16
      %y = arith.mulf %silu, %u : f16
      linalg.yield %y : f16
  } -> tensor<8x4096xf16>
  return %h : tensor<8x4096xf16>
}
