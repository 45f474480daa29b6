"""Networks for `benchmarks.zoo_pool` that are in no installed library of models.

They are for super-resolution, recommendation and tables. Each class names the paper that its
network comes from. If a class is smaller than in the paper, its docstring says so.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .zoo_networks import mlp


def conv(before: int, after: int, window: int = 3) -> nn.Conv2d:
    return nn.Conv2d(before, after, window, padding=window // 2)


class Residual(nn.Module):
    """Adds a network's input to its output."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Edsr(nn.Sequential):
    """EDSR (Lim et al., CVPRW 2017): the baseline with 64 channels, and 8 blocks instead of 16."""

    def __init__(self, width: int = 64, blocks: int = 8) -> None:
        body = [Residual(conv(width, width), nn.ReLU(), conv(width, width)) for _ in range(blocks)]
        super().__init__(
            conv(3, width), Residual(*body, conv(width, width)),
            conv(width, 4 * width), nn.PixelShuffle(2), conv(width, 3),
        )  # fmt: skip


class Fsrcnn(nn.Sequential):
    """FSRCNN (Dong et al., ECCV 2016), with 56 and 12 channels. Images get three times larger."""

    def __init__(self, wide: int = 56, narrow: int = 12, layers: int = 4) -> None:
        between = [m for _ in range(layers) for m in (conv(narrow, narrow), nn.PReLU(narrow))]
        super().__init__(
            conv(1, wide, 5), nn.PReLU(wide), conv(wide, narrow, 1), nn.PReLU(narrow), *between,
            conv(narrow, wide, 1), nn.PReLU(wide),
            nn.ConvTranspose2d(wide, 1, 9, stride=3, padding=4, output_padding=2),
        )  # fmt: skip


class Espcn(nn.Sequential):
    """ESPCN (Shi et al., CVPR 2016), which makes images three times larger."""

    def __init__(self) -> None:
        super().__init__(
            conv(1, 64, 5), nn.Tanh(), conv(64, 32), nn.Tanh(), conv(32, 9), nn.PixelShuffle(3)
        )


class ChannelAttention(nn.Module):
    """Weighs channels by their means (RCAN, Zhang et al., ECCV 2018)."""

    def __init__(self, width: int, reduced: int) -> None:
        super().__init__()
        self.weights = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, reduced, 1), nn.ReLU(),
            nn.Conv2d(reduced, width, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)


class Rcan(nn.Sequential):
    """RCAN (Zhang et al., ECCV 2018) with 2 groups of 4 blocks instead of 10 groups of 20."""

    def __init__(self, width: int = 64, groups: int = 2, blocks: int = 4) -> None:
        def block() -> nn.Module:
            first, second = conv(width, width), conv(width, width)
            return Residual(first, nn.ReLU(), second, ChannelAttention(width, width // 16))

        def group() -> nn.Module:
            return Residual(*[block() for _ in range(blocks)], conv(width, width))

        super().__init__(
            conv(3, width), Residual(*[group() for _ in range(groups)], conv(width, width)),
            conv(width, 4 * width), nn.PixelShuffle(2), conv(width, 3),
        )  # fmt: skip


class Distillation(nn.Module):
    """A block that keeps a quarter of the channels after each step (IMDN, ACM MM 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kept = width // 4
        rest = width - self.kept
        self.steps = nn.ModuleList([conv(width, width), conv(rest, width), conv(rest, width)])
        self.last = conv(rest, self.kept)
        self.attention = ChannelAttention(width, width // 16)
        self.join = conv(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept, rest = [], x
        for step in self.steps:
            made = functional.leaky_relu(step(rest), 0.05)
            kept.append(made[:, : self.kept])
            rest = made[:, self.kept :]
        joined = torch.cat([*kept, self.last(rest)], 1)
        return x + self.join(self.attention(joined))


class Imdn(nn.Module):
    """IMDN (Hui et al., ACM MM 2019) with 64 channels and 6 blocks."""

    def __init__(self, width: int = 64, blocks: int = 6) -> None:
        super().__init__()
        self.first = conv(3, width)
        self.blocks = nn.ModuleList(Distillation(width) for _ in range(blocks))
        self.join = nn.Sequential(conv(width * blocks, width, 1), nn.LeakyReLU(0.05))
        self.body = conv(width, width)
        self.last = nn.Sequential(conv(width, 48), nn.PixelShuffle(4))

    def forward(self, x: Tensor) -> Tensor:
        y = first = self.first(x)
        found = []
        for block in self.blocks:
            y = block(y)
            found.append(y)
        return self.last(first + self.body(self.join(torch.cat(found, 1))))


class DenseResidual(nn.Module):
    """Five convolutions, each of which reads all earlier results (ESRGAN, ECCVW 2018)."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        before = [width + k * growth for k in range(5)]
        self.convs = nn.ModuleList(conv(n, growth) for n in before[:-1])
        self.last = conv(before[-1], width)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.convs:
            found.append(functional.leaky_relu(layer(torch.cat(found, 1)), 0.2))
        return x + 0.2 * self.last(torch.cat(found, 1))


class Esrgan(nn.Module):
    """The generator of ESRGAN (Wang et al., ECCVW 2018) with 2 blocks instead of 23."""

    def __init__(self, width: int = 64, growth: int = 32, blocks: int = 2) -> None:
        super().__init__()
        dense = [DenseResidual(width, growth) for _ in range(3 * blocks)]
        self.body = nn.Sequential(conv(3, width), Residual(*dense, conv(width, width)))
        self.larger = nn.ModuleList(conv(width, width) for _ in range(2))
        self.last = nn.Sequential(conv(width, width), nn.LeakyReLU(0.2), conv(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        for layer in self.larger:
            larger = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = functional.leaky_relu(layer(larger), 0.2)
        return self.last(x)


class Fields(nn.Module):
    """An embedding for each field of an example; the output has shape (batch, fields, width)."""

    def __init__(self, fields: int, width: int, values: int = 1000) -> None:
        super().__init__()
        self.table = nn.Embedding(fields * values, width)
        self.register_buffer("first", torch.arange(fields) * values)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids + self.first)


class DeepFm(nn.Module):
    """DeepFM (Guo et al., IJCAI 2017): a factorisation machine beside an MLP."""

    def __init__(self, fields: int = 26, width: int = 16) -> None:
        super().__init__()
        self.wide, self.fields = Fields(fields, 1), Fields(fields, width)
        self.deep = nn.Sequential(mlp(fields * width, 400, 400, 400), nn.Linear(400, 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.fields(ids)
        pairs = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.wide(ids).sum(1) + pairs + self.deep(x.flatten(1)))


class DcnV2(nn.Module):
    """DCN V2 (Wang et al., WWW 2021): crosses of low rank beside an MLP."""

    def __init__(self, fields: int = 26, width: int = 16, rank: int = 64, layers: int = 3) -> None:
        super().__init__()
        size = fields * width + 13
        self.fields = Fields(fields, width)
        self.crosses = nn.ModuleList(
            nn.Sequential(nn.Linear(size, rank, bias=False), nn.Linear(rank, size))
            for _ in range(layers)
        )
        self.deep = mlp(size, 512, 256)
        self.last = nn.Linear(size + 256, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = first = torch.cat([dense, self.fields(ids).flatten(1)], 1)
        for cross in self.crosses:
            x = first * cross(x) + x
        return torch.sigmoid(self.last(torch.cat([x, self.deep(first)], 1)))


class XDeepFm(nn.Module):
    """xDeepFM (Lian et al., KDD 2018): compressed products of embeddings beside an MLP."""

    def __init__(self, fields: int = 26, width: int = 16, maps: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.fields = Fields(fields, width)
        before = [fields] + [maps] * (layers - 1)
        self.products = nn.ModuleList(nn.Conv1d(fields * n, maps, 1) for n in before)
        self.deep = mlp(fields * width, 400, 400)
        self.last = nn.Linear(maps * layers + 400, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = made = self.fields(ids)
        found = [self.deep(x.flatten(1))]
        for layer in self.products:
            pairs = x.unsqueeze(2) * made.unsqueeze(1)
            made = torch.relu(layer(pairs.flatten(1, 2)))
            found.append(made.sum(2))
        return torch.sigmoid(self.last(torch.cat(found, 1)))


class Din(nn.Module):
    """DIN (Zhou et al., KDD 2018): attention of a candidate to the items that a user chose
    before."""

    def __init__(self, width: int = 64, items: int = 2000) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.attention = nn.Sequential(mlp(4 * width, 80, 40), nn.Linear(40, 1))
        self.last = nn.Sequential(
            nn.Linear(2 * width, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1)
        )

    def forward(self, candidate: Tensor, history: Tensor, length: Tensor) -> Tensor:
        """Shapes: (batch,), (batch, items chosen before), and (batch,), all of integers."""
        one, many = self.items(candidate), self.items(history)
        wide = one.unsqueeze(1).expand_as(many)
        scores = self.attention(torch.cat([wide, many, wide - many, wide * many], 2)).squeeze(2)
        is_there = torch.arange(history.shape[1]).unsqueeze(0) < length.unsqueeze(1)
        weights = torch.softmax(scores.masked_fill(~is_there, -1e9), 1)
        taken = torch.einsum("bt,btw->bw", weights, many)
        return torch.sigmoid(self.last(torch.cat([one, taken], 1)))


class SasRec(nn.Module):
    """SASRec (Kang and McAuley, ICDM 2018): a causal transformer over a user's items."""

    def __init__(self, width: int = 64, items: int = 3000, length: int = 50) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.items(ids) + self.places(torch.arange(length))
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        for layer in self.layers:
            x = layer(x, src_mask=later)
        return x[:, -1] @ self.items.weight.T


class Ple(nn.Module):
    """PLE (Tang et al., RecSys 2020): experts that tasks share, and experts of each task."""

    def __init__(self, tasks: int = 3, own: int = 2, shared: int = 2, size: int = 256) -> None:
        super().__init__()
        self.shared = nn.ModuleList(mlp(size, 256, 128) for _ in range(shared))
        self.own = nn.ModuleList(
            nn.ModuleList(mlp(size, 256, 128) for _ in range(own)) for _ in range(tasks)
        )
        self.gates = nn.ModuleList(nn.Linear(size, own + shared) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(mlp(128, 64), nn.Linear(64, 1)) for _ in range(tasks)
        )

    def forward(self, x: Tensor) -> Tensor:
        shared = [expert(x) for expert in self.shared]
        scores = []
        for own, gate, tower in zip(self.own, self.gates, self.towers, strict=True):
            found = torch.stack([*shared, *[expert(x) for expert in own]], 1)
            weights = torch.softmax(gate(x), 1).unsqueeze(1)
            scores.append(tower(torch.bmm(weights, found).squeeze(1)))
        return torch.sigmoid(torch.cat(scores, 1))


class FtTransformer(nn.Module):
    """FT-Transformer (Gorishniy et al., NeurIPS 2021): each column of a table is a token."""

    def __init__(self, columns: int = 24, width: int = 96, layers: int = 3) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.randn(columns, width))
        self.shifts = nn.Parameter(torch.randn(columns, width))
        self.whole = nn.Parameter(torch.randn(1, 1, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 8, 2 * width, 0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.last = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        columns = x.unsqueeze(2) * self.factors + self.shifts
        tokens = torch.cat([self.whole.expand(x.shape[0], -1, -1), columns], 1)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.last(tokens[:, 0])


def sparsemax(x: Tensor) -> Tensor:
    """The nearest point of the simplex (Martins and Astudillo, ICML 2016) along the last axis."""
    ordered = torch.sort(x, -1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    places = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    count = (places * ordered > sums).sum(-1, keepdim=True)
    return torch.relu(x - sums.gather(-1, count - 1) / count.to(x.dtype))


class TabNet(nn.Module):
    """TabNet (Arik and Pfister, AAAI 2021): each step chooses columns by a sparse mask."""

    def __init__(self, columns: int = 54, width: int = 32, steps: int = 4) -> None:
        super().__init__()
        self.width = width
        self.norm = nn.BatchNorm1d(columns)
        self.shared = nn.Linear(columns, 4 * width)
        self.own = nn.ModuleList(nn.Linear(2 * width, 4 * width) for _ in range(steps))
        self.masks = nn.ModuleList(nn.Linear(width, columns) for _ in range(steps))
        self.last = nn.Linear(width, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        attended = functional.glu(self.shared(x))[:, self.width :]
        free = torch.ones_like(x)
        total = torch.zeros(x.shape[0], self.width)
        for own, mask in zip(self.own, self.masks, strict=True):
            chosen = sparsemax(mask(attended) * free)
            free = free * (1.3 - chosen)
            first = functional.glu(self.shared(chosen * x))
            both = (first + functional.glu(own(first))) * 0.5**0.5
            total = total + torch.relu(both[:, : self.width])
            attended = both[:, self.width :]
        return self.last(total)


class TableResNet(nn.Sequential):
    """The ResNet for tables of Gorishniy et al. (NeurIPS 2021)."""

    def __init__(self, columns: int = 54, width: int = 256, blocks: int = 6) -> None:
        super().__init__(
            nn.Linear(columns, width),
            *[
                Residual(nn.BatchNorm1d(width), mlp(width, 2 * width), nn.Linear(2 * width, width))
                for _ in range(blocks)
            ],
            nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 7),
        )  # fmt: skip


class Saint(nn.Module):
    """SAINT (Somepalli et al., 2021): attention between columns, then between rows of a batch."""

    def __init__(self, columns: int = 20, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.randn(columns, width))
        self.shifts = nn.Parameter(torch.randn(columns, width))
        wide = columns * width

        def layer(size: int, heads: int) -> nn.Module:
            return nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, batch_first=True)

        self.columns = nn.ModuleList(layer(width, 4) for _ in range(layers))
        self.rows = nn.ModuleList(layer(wide, 8) for _ in range(layers))
        self.last = nn.Linear(wide, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unsqueeze(2) * self.factors + self.shifts
        for of_columns, of_rows in zip(self.columns, self.rows, strict=True):
            tokens = of_columns(tokens)
            tokens = of_rows(tokens.flatten(1).unsqueeze(0)).view_as(tokens)
        return self.last(tokens.flatten(1))
