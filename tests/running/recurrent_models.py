"""Models that no rule of a convolution's memory covers: images [N, 1, 64, 64] as 64 positions → logits [N, 10]."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn


class Rows(nn.Module):
    """A recurrent layer over the rows of the image."""

    def __init__(self, kind: Any, width: int, layers: int = 2, *, both: bool = False) -> None:
        super().__init__()
        self.rnn = kind(64, width, layers, batch_first=True, bidirectional=both)
        self.head = nn.Linear(width * (1 + both), 10)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.rnn(images.flatten(1).view(len(images), 64, 64))[0][:, -1])


class Encoder(nn.Module):
    """Layers that run in one fused operator in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.layers(images.flatten(1).view(len(images), 64, 64)).mean(1))


class Products(nn.Module):
    """Products that copy their factors, and arrive whole in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(4, 64, 32)), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> Any:
        tokens = torch.einsum("btc,hcd->bhtd", images.flatten(1).view(len(images), 64, 64), self.weight)
        mixed = torch.softmax(tokens @ tokens.transpose(-1, -2), -1) @ tokens
        return self.head(mixed.mean(2).flatten(1))


lstm = partial(Rows, nn.LSTM, 128)
lstm_both = partial(Rows, nn.LSTM, 96, both=True)
gru = partial(Rows, nn.GRU, 64)
encoder, products = Encoder, Products
