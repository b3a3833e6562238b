func.func @swiglu_ffn(%x: tensor<16x4096xf16>, %w_gate: tensor<4096x14336xf16>, %w_up: tensor<4096x14336xf16>, %w_down: tensor<14336x4096xf16>) -> tensor<16x4096xf16> {
  %v = "kernel.square"(%x) : (tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %ffn_in_mean = "kernel.reduce_mean"(%v) {dims = array<i64: 1>, keepdims = true} : (tensor<16x4096xf16>) -> tensor<16x1xf16>
  %v_1 = "kernel.constant"() {value = 1.0e-05 : f64} : () -> tensor<f16>
  %v_2 = "kernel.add"(%ffn_in_mean, %v_1) : (tensor<16x1xf16>, tensor<f16>) -> tensor<16x1xf16>
  %v_3 = "kernel.rsqrt"(%v_2) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %ffn_in = "kernel.mul"(%x, %v_3) : (tensor<16x4096xf16>, tensor<16x1xf16>) -> tensor<16x4096xf16>
  %gate = "kernel.matmul"(%ffn_in, %w_gate) : (tensor<16x4096xf16>, tensor<4096x14336xf16>) -> tensor<16x14336xf16>
  %up = "kernel.matmul"(%ffn_in, %w_up) : (tensor<16x4096xf16>, tensor<4096x14336xf16>) -> tensor<16x14336xf16>
  %v_4 = "kernel.silu"(%gate) : (tensor<16x14336xf16>) -> tensor<16x14336xf16>
  %h = "kernel.mul"(%v_4, %up) : (tensor<16x14336xf16>, tensor<16x14336xf16>) -> tensor<16x14336xf16>
  %down = "kernel.matmul"(%h, %w_down) : (tensor<16x14336xf16>, tensor<14336x4096xf16>) -> tensor<16x4096xf16>
  %y = "kernel.add"(%down, %x) : (tensor<16x4096xf16>, tensor<16x4096xf16>) -> tensor<16x4096xf16>
  return %y : tensor<16x4096xf16>
}
