"""What users hand in, read with care: MLIR that nobody has vetted, Python files, factories of PyTorch modules."""
