// Programs that ingest refuses, each with the place and the reason.
// RUN: superopt-opt %s --ingest-linalg --split-input-file --verify-diagnostics

// expected-error @+1 {{expected static extents for an argument, got ?x8xf32}}
func.func @dynamic(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
  return %x : tensor<?x8xf32>
}

// -----

// expected-error @+1 {{expected an argument of tensor type, got f32}}
func.func @scalar(%x: f32) -> f32 {
  return %x : f32
}

// -----

func.func @uninitialized(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  // expected-error @+1 {{expected an initial value in the output operand, got memory that nothing has written}}
  %r = linalg.reduce { arith.addf } ins(%x : tensor<4x8xf32>) outs(%e : tensor<4xf32>) dimensions = [1]
  return %r : tensor<4xf32>
}

// -----

func.func @unwritten() -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  // expected-error @+1 {{expected a computed result, got uninitialized memory}}
  return %e : tensor<4xf32>
}

// -----

func.func @control(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %t = arith.constant true
  // expected-error @+1 {{expected tensor operations without control flow or calls, got 'scf.if'}}
  %r = scf.if %t -> tensor<4xf32> {
    scf.yield %x : tensor<4xf32>
  } else {
    scf.yield %y : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}

// -----

func.func @first(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// expected-error @+1 {{expected one function with a body, got 2}}
func.func @second(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
