"""The program of rmsnorm_linear.mlir as a PyTorch module, for `superopt-import rmsnorm_linear.py:factory`."""

import torch


class RMSNormLinear(torch.nn.Module):
    """RMSNorm without a weight, then a linear layer without a bias."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(features, outputs, dtype=torch.float16) / features**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take tokens of shape (batch, features) to (batch, outputs)."""
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)) @ self.weight


def factory() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The module and its example inputs."""
    return RMSNormLinear(4096, 6144), (torch.randn(16, 4096, dtype=torch.float16),)
