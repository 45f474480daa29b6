"""Networks for `benchmarks.zoo_export` that are in no installed library of models.

Each class names the paper that its network comes from, and has the sizes of this paper. If a class
is smaller than in the paper, its docstring says so.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of the given widths, each with a ReLU after it."""
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """DLRM (Naumov et al., 2019): dot products of all pairs of embeddings and a dense part."""

    def __init__(self, tables: int = 26, width: int = 32) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(1000, width) for _ in range(tables))
        self.bottom = mlp(13, 512, 256, width)
        pairs = (tables + 1) ** 2
        self.top = nn.Sequential(mlp(pairs + width, 512, 256), nn.Linear(256, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = [table(ids[:, i]) for i, table in enumerate(self.embeddings)]
        stacked = torch.stack([bottom, *rows], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, products], 1))


class Mmoe(nn.Module):
    """Multi-gate mixture of experts (Ma et al., KDD 2018)."""

    def __init__(self, experts: int = 8, tasks: int = 4) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(512, 256, 128) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(512, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(mlp(128, 64), nn.Linear(64, 1)) for _ in range(tasks)
        )

    def forward(self, x: Tensor) -> Tensor:
        found = torch.stack([expert(x) for expert in self.experts], 1)
        mixed = [(torch.softmax(gate(x), -1).unsqueeze(-1) * found).sum(1) for gate in self.gates]
        return torch.cat([tower(y) for tower, y in zip(self.towers, mixed, strict=True)], 1)


class WideAndDeep(nn.Module):
    """Wide & Deep (Cheng et al., 2016): a linear model beside an MLP over embeddings."""

    def __init__(self, fields: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(500, width) for _ in range(fields))
        self.wide = nn.Linear(64, 1)
        self.deep = nn.Sequential(mlp(fields * width + 64, 1024, 512, 256), nn.Linear(256, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        rows = [table(ids[:, i]) for i, table in enumerate(self.embeddings)]
        return torch.sigmoid(self.wide(dense) + self.deep(torch.cat([*rows, dense], 1)))


class BiLstm(nn.Module):
    """Two layers of LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, 2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015) with three levels and group normalisation."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
                nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
            )  # fmt: skip

        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.middle = block(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths))
        self.after = nn.ModuleList(block(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, block in zip(self.up, self.after, strict=True):
            x = block(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


def keep_variance(network: nn.Module) -> nn.Module:
    """Draw the weights of all convolutions anew, so that the variance of activations is kept.

    PyTorch's own initial weights make activations smaller in each layer. In a deep network, the
    output then hardly depends on the input, and a comparison of outputs would miss wrong operators.
    The weights are those of He et al. (ICCV 2015). Returns `network`, which is changed in place.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return network


class GraphAttention(nn.Module):
    """One layer of graph attention: each node sums up its neighbours, weighted by attention.

    Attributes
    ----------
    heads: number of attention heads. Their outputs are concatenated.
    """

    def __init__(self, before: int, after: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(before, heads * after, bias=False)
        self.source = nn.Parameter(torch.randn(heads, after) / after**0.5)
        self.target = nn.Parameter(torch.randn(heads, after) / after**0.5)
        self.bias = nn.Parameter(torch.zeros(heads * after))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Compute the layer.

        Parameters
        ----------
        x: features of the nodes, of shape (nodes, features).
        edges: int64 of shape (2, edges). Row 0 has the source of each edge, and row 1 its target.
            Each node must be the target of an edge. A self loop, an edge from a node to
            itself, is enough.
        """
        projected = self.project(x).unflatten(1, (self.heads, -1))
        source, target = edges
        from_source = (projected * self.source).sum(-1)[source]
        to_target = (projected * self.target).sum(-1)[target]
        scores = functional.leaky_relu(from_source + to_target, 0.2)
        places = target.unsqueeze(1).expand_as(scores)
        # For each target, a softmax goes over all edges that lead to it.
        least = scores.new_full((x.shape[0], self.heads), -torch.inf)
        powers = torch.exp(scores - least.scatter_reduce(0, places, scores, "amax")[target])
        sums = powers.new_zeros(x.shape[0], self.heads).scatter_add(0, places, powers)
        shares = powers / sums[target]
        sent = projected[source] * shares.unsqueeze(-1)
        return torch.zeros_like(projected).index_add(0, target, sent).flatten(1) + self.bias


class Gat(nn.Module):
    """GAT (Veličković et al., ICLR 2018) with three layers, of 8, 8 and 1 heads."""

    def __init__(self, features: int = 256, classes: int = 7) -> None:
        super().__init__()
        self.first = GraphAttention(features, 16, 8)
        self.second = GraphAttention(128, 16, 8)
        self.last = GraphAttention(128, classes, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = functional.elu(self.first(x, edges))
        x = functional.elu(self.second(x, edges))
        return functional.log_softmax(self.last(x, edges), -1)


def random_graph(nodes: int, edges: int, features: int = 256) -> tuple[Tensor, Tensor]:
    """Random inputs of `Gat`: features of the nodes, and edges with a self loop at each node."""
    loops = torch.arange(nodes).expand(2, -1)
    return torch.randn(nodes, features), torch.cat([torch.randint(nodes, (2, edges)), loops], 1)


class FieldAttention(nn.Module):
    """One layer of AutoInt: attention between fields, with a projection beside it."""

    def __init__(self, before: int, after: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.beside = (
            nn.Linear(before, after, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        shares = torch.softmax(query @ key.transpose(-1, -2), -1)
        return torch.relu((shares @ value).transpose(1, 2).flatten(-2) + self.beside(x))


class AutoInt(nn.Module):
    """AutoInt (Song et al., CIKM 2019): attention between the fields of a click, beside an MLP."""

    def __init__(self, fields: int = 39, width: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(1000, width) for _ in range(fields))
        self.attention = nn.Sequential(
            FieldAttention(width, 64, 2), FieldAttention(64, 64, 2), FieldAttention(64, 64, 2)
        )
        self.head = nn.Linear(64 * fields, 1)
        self.deep = nn.Sequential(mlp(fields * width, 400, 400), nn.Linear(400, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = [table(ids[:, i]) for i, table in enumerate(self.embeddings)]
        attended = self.head(self.attention(torch.stack(rows, 1)).flatten(1))
        return torch.sigmoid(attended + self.deep(torch.cat(rows, 1)))


def conv_relu(before: int, after: int, dilation: int = 1) -> nn.Sequential:
    """A 3x3 convolution that keeps the size of images, batch normalisation, and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


class Crnn(nn.Module):
    """CRNN (Shi et al., 2015), which reads a line of text: convolutions, and two biLSTMs.

    The input has shape (batch, 1, 32, width). The output, of shape (width / 4 + 1, batch,
    characters), has logarithms of probabilities.
    """

    def __init__(self, characters: int = 97) -> None:
        super().__init__()

        def halve_height() -> nn.MaxPool2d:
            return nn.MaxPool2d((2, 2), (2, 1), (0, 1))

        self.columns = nn.Sequential(
            conv_relu(1, 64), nn.MaxPool2d(2), conv_relu(64, 128), nn.MaxPool2d(2),
            conv_relu(128, 256), conv_relu(256, 256), halve_height(),
            conv_relu(256, 512), conv_relu(512, 512), halve_height(),
            nn.Conv2d(512, 512, 2), nn.ReLU(),
        )  # fmt: skip
        self.lstm = nn.LSTM(512, 256, 2, bidirectional=True)
        self.head = nn.Linear(512, characters)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.columns(x).squeeze(2).permute(2, 0, 1)
        return functional.log_softmax(self.head(self.lstm(columns)[0]), -1)


class HifiGan(nn.Module):
    """The generator of HiFi-GAN (Kong et al., NeurIPS 2020), version V2.

    The input is a mel spectrogram of shape (batch, 80, frames). The output is sound of shape
    (batch, 1, 256 * frames).
    """

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.grow, self.mixes = nn.ModuleList(), nn.ModuleList()
        for factor in (8, 8, 2, 2):
            self.grow.append(nn.ConvTranspose1d(width, width // 2, 2 * factor, factor, factor // 2))
            width //= 2
            self.mixes.append(nn.ModuleList(_DilatedStack(width, size) for size in (3, 7, 11)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for grow, stacks in zip(self.grow, self.mixes, strict=True):
            x = grow(functional.leaky_relu(x, 0.1))
            x = sum(stack(x) for stack in stacks) / len(stacks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


class _DilatedStack(nn.Module):
    """Three pairs of convolutions over time, the first of each pair dilated by 1, 3 and 5."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.Sequential(
                nn.LeakyReLU(0.1),
                nn.Conv1d(width, width, size, padding="same", dilation=dilation),
                nn.LeakyReLU(0.1),
                nn.Conv1d(width, width, size, padding="same"),
            )
            for dilation in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        for pair in self.pairs:
            x = x + pair(x)
        return x
