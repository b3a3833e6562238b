func.func @roco_inplace(%x: tensor<16x4544xf16>, %wq: tensor<4544x4544xf16>, %wk: tensor<4544x4544xf16>, %wv: tensor<4544x4544xf16>, %k_cache: tensor<71x1024x64xf16> {superopt.aliasing_output = 1 : i64}, %v_cache: tensor<71x1024x64xf16> {superopt.aliasing_output = 2 : i64}) -> (tensor<16x4544xf16>, tensor<71x1024x64xf16>, tensor<71x1024x64xf16>, tensor<71x1024xf16>, tensor<71x1024xf16>) {
  %q1 = "kernel.matmul"(%x, %wq) : (tensor<16x4544xf16>, tensor<4544x4544xf16>) -> tensor<16x4544xf16>
  %k1 = "kernel.matmul"(%x, %wk) : (tensor<16x4544xf16>, tensor<4544x4544xf16>) -> tensor<16x4544xf16>
  %v1 = "kernel.matmul"(%x, %wv) : (tensor<16x4544xf16>, tensor<4544x4544xf16>) -> tensor<16x4544xf16>
  %v = "kernel.reshape"(%q1) : (tensor<16x4544xf16>) -> tensor<16x71x64xf16>
  %q = "kernel.transpose"(%v) {perm = array<i64: 1, 0, 2>} : (tensor<16x71x64xf16>) -> tensor<71x16x64xf16>
  %v_1 = "kernel.reshape"(%k1) : (tensor<16x4544xf16>) -> tensor<16x71x64xf16>
  %k = "kernel.transpose"(%v_1) {perm = array<i64: 1, 0, 2>} : (tensor<16x71x64xf16>) -> tensor<71x16x64xf16>
  %v_2 = "kernel.reshape"(%v1) : (tensor<16x4544xf16>) -> tensor<16x71x64xf16>
  %v_3 = "kernel.transpose"(%v_2) {perm = array<i64: 1, 0, 2>} : (tensor<16x71x64xf16>) -> tensor<71x16x64xf16>
  %keys = "kernel.update_slice"(%k_cache, %k) {dim = 1 : i64, offset = 1008 : i64} : (tensor<71x1024x64xf16>, tensor<71x16x64xf16>) -> tensor<71x1024x64xf16>
  %values = "kernel.update_slice"(%v_cache, %v_3) {dim = 1 : i64, offset = 1008 : i64} : (tensor<71x1024x64xf16>, tensor<71x16x64xf16>) -> tensor<71x1024x64xf16>
  %c = "kernel.matmul"(%q, %keys) {transpose_b = true} : (tensor<71x16x64xf16>, tensor<71x1024x64xf16>) -> tensor<71x16x1024xf16>
  %c_exp = "kernel.exp"(%c) : (tensor<71x16x1024xf16>) -> tensor<71x16x1024xf16>
  %c_sum = "kernel.reduce_sum"(%c_exp) {dims = array<i64: 2>, keepdims = true} : (tensor<71x16x1024xf16>) -> tensor<71x16x1xf16>
  %c_p = "kernel.div"(%c_exp, %c_sum) : (tensor<71x16x1024xf16>, tensor<71x16x1xf16>) -> tensor<71x16x1024xf16>
  %c_out1 = "kernel.reduce_sum"(%c_p) {dims = array<i64: 1>} : (tensor<71x16x1024xf16>) -> tensor<71x1024xf16>
  %v_4 = "kernel.square"(%c_p) : (tensor<71x16x1024xf16>) -> tensor<71x16x1024xf16>
  %c_out2 = "kernel.reduce_sum"(%v_4) {dims = array<i64: 1>} : (tensor<71x16x1024xf16>) -> tensor<71x1024xf16>
  %o = "kernel.matmul"(%c_p, %values) : (tensor<71x16x1024xf16>, tensor<71x1024x64xf16>) -> tensor<71x16x64xf16>
  %v_5 = "kernel.transpose"(%o) {perm = array<i64: 1, 0, 2>} : (tensor<71x16x64xf16>) -> tensor<16x71x64xf16>
  %o2 = "kernel.reshape"(%v_5) : (tensor<16x71x64xf16>) -> tensor<16x4544xf16>
  return %o2, %keys, %values, %c_out1, %c_out2 : tensor<16x4544xf16>, tensor<71x1024x64xf16>, tensor<71x1024x64xf16>, tensor<71x1024xf16>, tensor<71x1024xf16>
}
