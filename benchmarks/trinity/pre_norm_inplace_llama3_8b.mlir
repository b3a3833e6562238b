func.func @pre_norm_inplace(%x: tensor<16x4096xf16>, %wq: tensor<4096x4096xf16>, %wk: tensor<4096x4096xf16>, %wv: tensor<4096x4096xf16>, %k_cache: tensor<32x1024x128xf16> {superopt.aliasing_output = 1 : i64}, %v_cache: tensor<32x1024x128xf16> {superopt.aliasing_output = 2 : i64}) -> (tensor<16x4096xf16>, tensor<32x1024x128xf16>, tensor<32x1024x128xf16>) {
  %v = "kernel.square"(%x) : (tensor<16x4096xf16>) -> tensor<16x4096xf16>
  %xn_mean = "kernel.reduce_mean"(%v) {dims = array<i64: 1>, keepdims = true} : (tensor<16x4096xf16>) -> tensor<16x1xf16>
  %v_1 = "kernel.constant"() {value = 1.0e-05 : f64} : () -> tensor<f16>
  %v_2 = "kernel.add"(%xn_mean, %v_1) : (tensor<16x1xf16>, tensor<f16>) -> tensor<16x1xf16>
  %v_3 = "kernel.rsqrt"(%v_2) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %xn = "kernel.mul"(%x, %v_3) : (tensor<16x4096xf16>, tensor<16x1xf16>) -> tensor<16x4096xf16>
  %q1 = "kernel.matmul"(%xn, %wq) : (tensor<16x4096xf16>, tensor<4096x4096xf16>) -> tensor<16x4096xf16>
  %k1 = "kernel.matmul"(%xn, %wk) : (tensor<16x4096xf16>, tensor<4096x4096xf16>) -> tensor<16x4096xf16>
  %v1 = "kernel.matmul"(%xn, %wv) : (tensor<16x4096xf16>, tensor<4096x4096xf16>) -> tensor<16x4096xf16>
  %v_4 = "kernel.reshape"(%q1) : (tensor<16x4096xf16>) -> tensor<16x32x128xf16>
  %q = "kernel.transpose"(%v_4) {perm = array<i64: 1, 0, 2>} : (tensor<16x32x128xf16>) -> tensor<32x16x128xf16>
  %v_5 = "kernel.reshape"(%k1) : (tensor<16x4096xf16>) -> tensor<16x32x128xf16>
  %k = "kernel.transpose"(%v_5) {perm = array<i64: 1, 0, 2>} : (tensor<16x32x128xf16>) -> tensor<32x16x128xf16>
  %v_6 = "kernel.reshape"(%v1) : (tensor<16x4096xf16>) -> tensor<16x32x128xf16>
  %v_7 = "kernel.transpose"(%v_6) {perm = array<i64: 1, 0, 2>} : (tensor<16x32x128xf16>) -> tensor<32x16x128xf16>
  %keys = "kernel.update_slice"(%k_cache, %k) {dim = 1 : i64, offset = 1008 : i64} : (tensor<32x1024x128xf16>, tensor<32x16x128xf16>) -> tensor<32x1024x128xf16>
  %values = "kernel.update_slice"(%v_cache, %v_7) {dim = 1 : i64, offset = 1008 : i64} : (tensor<32x1024x128xf16>, tensor<32x16x128xf16>) -> tensor<32x1024x128xf16>
  %c = "kernel.matmul"(%q, %keys) {transpose_b = true} : (tensor<32x16x128xf16>, tensor<32x1024x128xf16>) -> tensor<32x16x1024xf16>
  %c_exp = "kernel.exp"(%c) : (tensor<32x16x1024xf16>) -> tensor<32x16x1024xf16>
  %c_sum = "kernel.reduce_sum"(%c_exp) {dims = array<i64: 2>, keepdims = true} : (tensor<32x16x1024xf16>) -> tensor<32x16x1xf16>
  %c_p = "kernel.div"(%c_exp, %c_sum) : (tensor<32x16x1024xf16>, tensor<32x16x1xf16>) -> tensor<32x16x1024xf16>
  %o = "kernel.matmul"(%c_p, %values) : (tensor<32x16x1024xf16>, tensor<32x1024x128xf16>) -> tensor<32x16x128xf16>
  %v_8 = "kernel.transpose"(%o) {perm = array<i64: 1, 0, 2>} : (tensor<32x16x128xf16>) -> tensor<16x32x128xf16>
  %o2 = "kernel.reshape"(%v_8) : (tensor<16x32x128xf16>) -> tensor<16x4096xf16>
  return %o2, %keys, %values : tensor<16x4096xf16>, tensor<32x1024x128xf16>, tensor<32x1024x128xf16>
}
