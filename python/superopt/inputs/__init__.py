"""What users hand in, read with care: unvetted MLIR, Python files, factories of PyTorch modules."""
