"""The networks of two papers on derived expressions as PyTorch modules.

    superopt-import benchmarks/expressions/modules.py:resnet18 -o resnet18.mlir

They are those of PET (OSDI 2021, Table 2) and OLLIE (OSDI 2023, Table 1), with random weights, in f16, for
inference: batch norms take the statistics that they hold. `inception_v3` is one block of each kind, `bert` and
`longformer` are one layer, whose others are like it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor
Example = tuple[nn.Module, tuple[Tensor, ...]]


def _example(module: nn.Module, *shape: int) -> Example:
    """The module for inference in f16, its norms with statistics of their own, and an input of `shape`."""
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_(0, 0.1, generator=generator)
            part.running_var.uniform_(0.5, 1.5, generator=generator)
    return module.eval().half(), (torch.randn(shape, generator=generator).half(),)


class Residual(nn.Module):
    """Two convolutions with batch norms, and what they are added to (He et al., 2016, Figure 2)."""

    def __init__(self, channels: int, columns: int, stride: int, rank: int) -> None:
        super().__init__()
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if rank == 2 else (nn.Conv3d, nn.BatchNorm3d)
        self.first = nn.Sequential(
            conv(channels, columns, 3, stride, 1, bias=False), norm(columns), nn.ReLU(),
            conv(columns, columns, 3, 1, 1, bias=False), norm(columns),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != columns:
            self.shortcut = nn.Sequential(conv(channels, columns, 1, stride, bias=False), norm(columns))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x) + self.shortcut(x))


def _stages(rank: int) -> list[nn.Module]:
    blocks: list[nn.Module] = []
    for channels, columns, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [Residual(channels, columns, stride, rank), Residual(columns, columns, 1, rank)]
    return blocks


def resnet18() -> Example:
    """ResNet-18 (He et al., 2016, Table 1) for one image."""
    module = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        *_stages(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )  # fmt: skip
    return _example(module, 1, 3, 224, 224)


def resnet3d18() -> Example:
    """3D ResNet-18 (Tran et al., 2018, R3D) for 16 frames."""
    module = nn.Sequential(
        nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU(),
        *_stages(3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400),
    )  # fmt: skip
    return _example(module, 1, 3, 16, 112, 112)


def csrnet() -> Example:
    """CSRNet (Li et al., 2018, Table 3, B): the front of VGG-16, then dilated convolutions; 256 x 192."""
    layers: list[nn.Module] = []
    channels = 3
    for columns in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512):
        if columns:
            layers += [nn.Conv2d(channels, columns, 3, padding=1), nn.ReLU()]
            channels = columns
        else:
            layers.append(nn.MaxPool2d(2))
    for columns in (512, 512, 512, 256, 128, 64):
        layers += [nn.Conv2d(channels, columns, 3, padding=2, dilation=2), nn.ReLU()]
        channels = columns
    return _example(nn.Sequential(*layers, nn.Conv2d(64, 1, 1)), 1, 3, 192, 256)


class Branches(nn.Module):
    """What each branch makes of the same input, side by side as channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _unit(
    channels: int, columns: int, size: int | tuple[int, int], stride: int = 1, *, pad: bool = True
) -> nn.Module:
    sizes = (size, size) if isinstance(size, int) else size
    padding = (sizes[0] // 2, sizes[1] // 2) if pad else (0, 0)
    conv = nn.Conv2d(channels, columns, sizes, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(columns, eps=1e-3), nn.ReLU())


def inception_v3() -> Example:
    """Inception-v3 (Szegedy et al., 2016, Figures 5, 10, 6, 7): a block of each kind, from 35 x 35 to 8 x 8."""
    first = Branches(
        _unit(288, 64, 1),
        nn.Sequential(_unit(288, 48, 1), _unit(48, 64, 5)),
        nn.Sequential(_unit(288, 64, 1), _unit(64, 96, 3), _unit(96, 96, 3)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(288, 64, 1)),
    )
    smaller = Branches(
        _unit(288, 384, 3, 2, pad=False),
        nn.Sequential(_unit(288, 64, 1), _unit(64, 96, 3), _unit(96, 96, 3, 2, pad=False)),
        nn.MaxPool2d(3, 2),
    )
    long = Branches(
        _unit(768, 192, 1),
        nn.Sequential(_unit(768, 128, 1), _unit(128, 128, (1, 7)), _unit(128, 192, (7, 1))),
        nn.Sequential(
            _unit(768, 128, 1), _unit(128, 128, (7, 1)), _unit(128, 128, (1, 7)), _unit(128, 128, (7, 1)),
            _unit(128, 192, (1, 7)),
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(768, 192, 1)),
    )  # fmt: skip
    wide = Branches(
        _unit(768, 320, 1),
        nn.Sequential(_unit(768, 384, 1), Branches(_unit(384, 384, (1, 3)), _unit(384, 384, (3, 1)))),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(768, 192, 1)),
    )
    return _example(nn.Sequential(first, smaller, long, nn.MaxPool2d(3, 2), wide), 1, 288, 35, 35)


def _pixels(*layers: tuple[int, int, int, int, int]) -> list[nn.Module]:
    """Transposed convolutions (channels, columns, size, stride, pad), each but the last with a norm and relu."""
    made: list[nn.Module] = []
    for i, (channels, columns, size, stride, pad) in enumerate(layers):
        last = i == len(layers) - 1
        made.append(nn.ConvTranspose2d(channels, columns, size, stride, pad, bias=False))
        made += [nn.Tanh()] if last else [nn.BatchNorm2d(columns), nn.ReLU()]
    return made


def dcgan() -> Example:
    """The generator of DCGAN (Radford et al., 2016, Figure 1), for 16 images of 64 x 64."""
    layers = (
        (100, 512, 4, 1, 0),
        (512, 256, 4, 2, 1),
        (256, 128, 4, 2, 1),
        (128, 64, 4, 2, 1),
        (64, 3, 4, 2, 1),
    )
    return _example(nn.Sequential(*_pixels(*layers)), 16, 100, 1, 1)


def infogan() -> Example:
    """The generator of InfoGAN (Chen et al., 2016, Table 4), for 16 faces of 32 x 32."""
    dense = nn.Sequential(nn.Linear(228, 2 * 2 * 448), nn.BatchNorm1d(2 * 2 * 448), nn.ReLU())
    layers = ((448, 256, 4, 2, 1), (256, 128, 4, 2, 1), (128, 64, 4, 2, 1), (64, 3, 4, 2, 1))
    return _example(nn.Sequential(dense, nn.Unflatten(1, (448, 2, 2)), *_pixels(*layers)), 16, 228)


def srcnn() -> Example:
    """SRCNN (Dong et al., 2014, section 3: 9-1-5, 64 and 32 filters) on 224 x 224."""
    module = nn.Sequential(
        nn.Conv2d(1, 64, 9, padding=4), nn.ReLU(), nn.Conv2d(64, 32, 1), nn.ReLU(),
        nn.Conv2d(32, 1, 5, padding=2),
    )  # fmt: skip
    return _example(module, 1, 1, 224, 224)


class Sum(nn.Module):
    """The sum of what each branch makes of the same input."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        first, *others = (branch(x) for branch in self.branches)
        return sum(others, first)


def gcn() -> Example:
    """The last scale of GCN (Peng et al., 2017, Figure 2): a large kernel as rows and columns, borders, x2."""

    def line(channels: int, columns: int, sizes: Sequence[tuple[int, int]]) -> nn.Module:
        widths = [channels, *(columns for _ in sizes)]
        return nn.Sequential(
            *(
                nn.Conv2d(a, columns, s, padding=(s[0] // 2, s[1] // 2))
                for a, s in zip(widths, sizes, strict=False)
            )
        )

    large = Sum(line(2048, 21, [(7, 1), (1, 7)]), line(2048, 21, [(1, 7), (7, 1)]))
    border = Sum(
        nn.Identity(),
        nn.Sequential(nn.Conv2d(21, 21, 3, padding=1), nn.ReLU(), nn.Conv2d(21, 21, 3, padding=1)),
    )
    return _example(nn.Sequential(large, border, nn.ConvTranspose2d(21, 21, 4, 2, 1)), 1, 2048, 16, 16)


class Attention(nn.Module):
    """Self-attention of 64 numbers a head; with `reach`, of places no farther apart (Beltagy et al., 2020).

    Chunks of `reach` queries see three chunks of keys, as in Longformer's implementation, under a mask.
    """

    def __init__(self, width: int, reach: int = 0) -> None:
        super().__init__()
        self.reach = reach
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, width // 64, 64).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        if not self.reach:
            made = functional.scaled_dot_product_attention(q, k, v)
        else:
            mask, (q, k, v) = self.seen(length), (self.chunks(q, 1), self.chunks(k, 3), self.chunks(v, 3))
            scores = (q @ k.transpose(-1, -2)) * 0.125
            made = (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v).flatten(2, 3)
        return self.out(made.transpose(1, 2).reshape(batch, length, width))

    def chunks(self, x: Tensor, together: int) -> Tensor:
        """(batch, heads, chunks, together * reach, 64): each chunk between its neighbours, zeros at the ends."""
        batch, heads, length, width = x.shape
        count = length // self.reach
        x = x.reshape(batch, heads, count, self.reach, width)
        if together == 1:
            return x
        x = functional.pad(x, (0, 0, 0, 0, 1, 1))
        return torch.cat([x[:, :, i : i + count] for i in range(3)], 3)

    def seen(self, length: int) -> Tensor:
        """(chunks, reach, 3 * reach): which keys a query sees."""
        query = torch.arange(length).view(-1, self.reach, 1)
        key = query[:, :1] + torch.arange(-self.reach, 2 * self.reach)
        return ((query - key).abs() <= self.reach) & (key >= 0) & (key < length)


class Layer(nn.Module):
    """A layer of BERT (Devlin et al., 2019), with norms after what they norm."""

    def __init__(self, width: int, reach: int = 0) -> None:
        super().__init__()
        self.attention = Attention(width, reach)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.dense(x))


def bert() -> Example:
    """A layer of BERT-base, for 512 tokens."""
    return _example(Layer(768), 1, 512, 768)


def longformer() -> Example:
    """A layer of Longformer-base, which sees 256 tokens to each side, for 2048 tokens."""
    return _example(Layer(768, 256), 1, 2048, 768)
