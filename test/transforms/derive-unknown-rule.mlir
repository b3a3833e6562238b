// RUN: not superopt-opt %s --derive="rules=product,ofset-add" 2>&1 | filecheck %s

// CHECK: error: expected a rule of product, offset-add, {{.*}}, got 'ofset-add' (did you mean 'offset-add'?)
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
