"""Models that are not torchvision's classifiers, for benchmarks/model.py: factories without arguments.

Tokens, two inputs, several outputs, segmentation and detection heads, recurrent layers, checkpointing; and, where
`transformers` is installed, small configurations of its models (no download).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def block(channels: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())


class LanguageModel(nn.Module):
    """Tokens [N, T] → logits [N, T, vocabulary]."""

    def __init__(self, vocabulary: int = 5000, width: int = 128) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        layer = nn.TransformerEncoderLayer(width, 4, 256, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> Any:
        at = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.body(self.tokens(tokens) + self.positions(at)))


class Recurrent(nn.Module):
    """Sequences [N, T, 40], or tokens [N, T] → logits [N, 5]."""

    def __init__(self, kind: str, *, both_ways: bool, layers: int = 1, vocabulary: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 40) if vocabulary else nn.Identity()
        self.layer = getattr(nn, kind)(40, 56, layers, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(56 * (1 + both_ways), 5)

    def forward(self, sequences: torch.Tensor) -> Any:
        _, state = self.layer(self.tokens(sequences))
        hidden = state[0] if isinstance(state, tuple) else state
        ways = 1 + self.layer.bidirectional
        return self.head(torch.cat([*hidden[-ways:]], -1))


class ImageAndText(nn.Module):
    """image [N, 3, H, W], tokens [N, T] → {logits, features}."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(block(3, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.tokens, self.head = nn.Embedding(100, 16), nn.Linear(32, 7)

    def forward(self, image: torch.Tensor, tokens: torch.Tensor) -> Any:
        features = torch.cat([self.image(image), self.tokens(tokens).mean(1)], 1)
        return {"logits": self.head(features), "features": features}


class UNet(nn.Module):
    """Images → logits of each pixel."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.one, self.two, self.three = block(3, 16), block(16, 32), block(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.back2, self.back1, self.head = block(64, 32), block(32, 16), nn.Conv2d(16, classes, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, images: torch.Tensor) -> Any:
        one = self.one(images)
        two = self.two(self.pool(one))
        back = self.back2(torch.cat([self.up2(self.three(self.pool(two))), two], 1))
        return self.head(self.back1(torch.cat([self.up1(back), one], 1)))


class Detector(nn.Module):
    """Images → {classes: maps of two scales, boxes: maps of two scales}."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2))
        self.next = block(32, 32)
        self.classes, self.boxes = nn.Conv2d(32, 180, 3, padding=1), nn.Conv2d(32, 36, 3, padding=1)

    def forward(self, images: torch.Tensor) -> Any:
        maps = [self.stem(images)]
        maps.append(self.next(functional.max_pool2d(maps[0], 2)))
        return {"classes": [self.classes(one) for one in maps], "boxes": [self.boxes(one) for one in maps]}


class TwoHeads(nn.Module):
    """Images → (logits, boxes)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.boxes = block(3, 16), nn.Linear(16, 10), nn.Linear(16, 4)

    def forward(self, images: torch.Tensor) -> Any:
        features = self.body(images).mean((2, 3))
        return self.classes(features), self.boxes(features)


class Siamese(nn.Module):
    """Two images → their likeness [N]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 16), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 32))

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> Any:
        return functional.cosine_similarity(self.body(one), self.body(other))


class Checkpointed(nn.Module):
    """Images → logits, its blocks computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = block(3, 16), nn.Linear(16, 10)
        self.blocks = nn.ModuleList([block(16, 16) for _ in range(3)])

    def forward(self, images: torch.Tensor) -> Any:
        maps = self.stem(images)
        for one in self.blocks:
            maps = checkpoint(one, maps, use_reentrant=False)
        return self.head(maps.mean((2, 3)))


def language_model() -> nn.Module:
    return LanguageModel()


def lstm() -> nn.Module:
    return Recurrent("LSTM", both_ways=False)


def lstm_of_tokens() -> nn.Module:
    return Recurrent("LSTM", both_ways=True, layers=2, vocabulary=1000)


def gru() -> nn.Module:
    return Recurrent("GRU", both_ways=False)


def image_and_text() -> nn.Module:
    return ImageAndText()


def unet() -> nn.Module:
    return UNet(21)


def mask() -> nn.Module:
    return UNet(1)


def detector() -> nn.Module:
    return Detector()


def two_heads() -> nn.Module:
    return TwoHeads()


def siamese() -> nn.Module:
    return Siamese()


def checkpointed() -> nn.Module:
    return Checkpointed()


def audio() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 32, 9, 4), nn.ReLU(), nn.Conv1d(32, 64, 9, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip


def video() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(16, 32, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def table() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


# -- transformers ----------------------------------------------------------------------------------------

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def bert() -> Any:
    import transformers as hf

    return hf.BertForSequenceClassification(hf.BertConfig(**SMALL, vocab_size=1000, num_labels=3))


def gpt2() -> Any:
    import transformers as hf

    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=1000, n_positions=256))


def llama() -> Any:
    import transformers as hf

    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, vocab_size=1000, num_key_value_heads=2))


def t5() -> Any:
    import transformers as hf

    config = hf.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=1000)
    return hf.T5ForConditionalGeneration(config)


def vit() -> Any:
    import transformers as hf

    return hf.ViTForImageClassification(hf.ViTConfig(**SMALL, image_size=64, patch_size=8))
