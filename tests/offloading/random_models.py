"""Models of blocks drawn at random: `tests.offloading.random_models:Random7` is the one of seed 7.

Each block takes maps [N, WIDTH, S, S] and gives as many. None changes what autograd has saved, so plain autograd takes
all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.offloading.models import WIDTH, Base, Cube

NUM_BLOCKS = 6
Block = Callable[["Blocks", torch.Tensor], torch.Tensor]
BLOCKS: dict[str, Block] = {}


def block(function: Block) -> Block:
    BLOCKS[function.__name__] = function
    return function


class Blocks(Base):
    """Blocks one after the other, each on the result of an earlier one."""

    def __init__(self, blocks: list[Block], sources: list[int]) -> None:
        super().__init__()
        self.blocks, self.sources = blocks, sources
        self.conv, self.norm = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        self.linear, self.layer_norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.gru_cell, self.lstm_cell = nn.GRUCell(WIDTH, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.gru, self.lstm = nn.GRU(WIDTH, WIDTH, 2), nn.LSTM(WIDTH, WIDTH)
        self.bilinear = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        made = [maps]
        for function, source in zip(self.blocks, self.sources, strict=True):
            made.append((function(self, made[source]) + 0.1 * made[-1]).tanh())
        return made[-1]


def drawn(seed: int) -> Blocks:
    """A model of `NUM_BLOCKS` random blocks."""
    numbers = random.Random(seed)
    sources = [numbers.randrange(number + 1) for number in range(NUM_BLOCKS)]
    return Blocks([numbers.choice([*BLOCKS.values()]) for _ in sources], sources)


def __getattr__(name: str) -> Any:
    if name.startswith("Random"):
        return partial(drawn, int(name.removeprefix("Random")))
    raise AttributeError(name)


def rows(maps: torch.Tensor) -> torch.Tensor:
    """[N, C, S, S] → [N·S·S, C]"""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def unrows(values: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    n, c, s, t = maps.shape
    return values.view(n, s, t, c).permute(0, 3, 1, 2)


# -- element by element ----------------------------------------------------------------------------------


@block
def exponential(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return maps.exp()


@block
def waves(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return maps.sin() * maps.cos() + maps.atan()


@block
def squares(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return maps * maps + maps.pow(3) + maps.square()


@block
def roots(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return (maps.abs() + 1).sqrt() / (maps.abs() + 1).log1p()


@block
def activations(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return functional.gelu(maps) + functional.silu(maps) + functional.softplus(maps) + functional.elu(maps)


@block
def masks(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return torch.where(maps > 0, maps.exp(), maps.sin()).masked_fill(maps > 0.5, 0.3).clamp(-1, 1)


@block
def dropout(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return functional.dropout(maps, 0.3, training=True)


@block
def foreach(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    one, two = torch._foreach_exp([maps, maps.sin()])
    return one * two


# -- views -----------------------------------------------------------------------------------------------


@block
def chunks(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    one, two = maps.exp().chunk(2, 1)
    return torch.cat([one * two, two.sin()], 1)


@block
def unbound(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return torch.stack([one.tanh() * number for number, one in enumerate(maps.exp().unbind(1))], 1)


@block
def expanded(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return maps * maps[:, :1].expand_as(maps) * maps.mean((2, 3), keepdim=True)


@block
def strided(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    even = maps.contiguous().view(-1).as_strided((maps.numel() // 2,), (2,)).exp()
    return torch.stack([even, even.flip(0)], 1).view_as(maps).roll(1, 2)


@block
def unfolded(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return functional.pad(maps, (1, 1)).unfold(3, 3, 1).exp().logsumexp(-1)


@block
def complex_numbers(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    numbers = torch.view_as_complex(maps.reshape(*maps.shape[:3], -1, 2).contiguous())
    return torch.view_as_real(numbers * numbers.conj() + numbers.exp()).flatten(3)


@block
def aliases(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    """Over one storage, with version counters that nothing tells to be the same."""
    hidden = maps.exp()
    other = torch.empty(0).set_(hidden.detach())  # type: ignore[call-overload]
    return hidden * hidden.detach() + hidden.data * hidden.sin() + other * hidden


# -- in place --------------------------------------------------------------------------------------------


@block
def activated_in_place(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return functional.relu_(maps + 0.1) + (maps * 2).sigmoid_() + functional.elu_(maps - 0.1)


@block
def parts_in_place(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    other = torch.zeros_like(maps)
    other[:, : WIDTH // 2] = maps[:, : WIDTH // 2].exp()
    other[:, -1].add_(maps[:, 0]).mul_(0.5)
    other.select(1, 1).copy_(maps[:, 2])
    return other * other


@block
def changed_after_it_was_used(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    """Saved in two versions: the first is not needed any more when the second is made."""
    hidden = maps + 1
    with torch.no_grad():
        factor = hidden.exp()
        hidden.detach().mul_(0.5)
    return hidden.sin() * factor + hidden.cos()


@block
def gates(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    first, second, third, fourth = (maps * 2).unsafe_chunk(4, -1)
    mixed = first.sigmoid_() * second.tanh_() + third.exp_() * fourth
    return torch.cat([mixed, first * third, mixed.sin(), fourth], -1)


@block
def gates_across(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    first, second = (maps + 1).unsafe_split(WIDTH // 2, 1)
    second, first = second.sigmoid_(), first.tanh_()
    return torch.cat([first * second, (first + 1) * second.exp()], 1)


@block
def gates_by_sizes(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    first, second = (maps + 1).unsafe_split_with_sizes([WIDTH - 3, 3], 1)
    hidden = torch.cat([first.exp_(), second.tanh_()], 1)
    return hidden * first.mean() * second.sum()


class Doubled(torch.autograd.Function):
    """Changes its input, and saves it in its new state."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        values.mul_(2)
        context.mark_dirty(values)
        context.save_for_backward(values)
        return values

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return 2 * gradients[0] + 0 * context.saved_tensors[0]


class Exponential(torch.autograd.Function):
    """Saves its output, and a view of its input."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        result = values.exp()
        context.save_for_backward(result, values.view(-1))
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        result, values = context.saved_tensors
        return gradients[0] * result + 0 * values.view_as(result)


@block
def functions(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    own: list[Any] = [Cube, Exponential, Doubled]
    return own[0].apply(maps) + own[1].apply(maps.contiguous()) * own[2].apply(maps + 1)  # type: ignore[no-any-return]


# -- layers ----------------------------------------------------------------------------------------------


@block
def convolution(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return model.conv(model.conv(maps).relu())  # type: ignore[no-any-return]


@block
def norms(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return model.norm(maps) + unrows(model.layer_norm(rows(maps)), maps)  # type: ignore[no-any-return]


@block
def linear(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return unrows(model.linear(model.linear(rows(maps)).tanh()), maps)


@block
def pairs(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return unrows(model.bilinear(rows(maps), rows(maps)), maps)


@block
def pools(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(functional.max_pool2d(maps, 2), scale_factor=2.0) + functional.avg_pool2d(maps, 1)


@block
def attention(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    values = maps.flatten(2).transpose(1, 2)
    return functional.scaled_dot_product_attention(values, values, values).transpose(1, 2).reshape(maps.shape)


@block
def gru_cell(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(rows(maps))
    for _ in range(2):
        state = model.gru_cell(rows(maps), state)
    return unrows(state, maps)


@block
def lstm_cell(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    state, memory = model.lstm_cell(rows(maps))
    return unrows(model.lstm_cell(rows(maps), (state, memory))[0] + memory, maps)


@block
def recurrent(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    steps = maps.mean(3).permute(2, 0, 1)
    return maps * (model.gru(steps)[0] + model.lstm(steps)[0]).permute(1, 2, 0)[..., None]  # type: ignore[no-any-return]


# -- over several ----------------------------------------------------------------------------------------


@block
def products(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return maps @ maps.transpose(2, 3) + torch.einsum("nchw,ndhw->nchw", maps, maps)


@block
def sums(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return maps.cumsum(1) + (maps * 0.1 + 1).cumprod(2) + maps.softmax(1) * maps.log_softmax(3)


@block
def statistics(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return (maps - maps.mean(1, keepdim=True)) / (maps.std(1, keepdim=True) + 1) + maps.norm(dim=1, keepdim=True)


@block
def picks(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    order = torch.arange(WIDTH).flip(0)
    return maps.exp()[:, order] * maps.index_select(1, order) + maps.sort(1).values + maps.max(1, keepdim=True).values


# -- the graph itself ------------------------------------------------------------------------------------


@block
def checkpointed(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return checkpoint(_inner, model, maps, use_reentrant=False)  # type: ignore[no-any-return]


@block
def checkpointed_in_the_old_way(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    if not maps.requires_grad:  # a probe of the model's output
        return maps
    # Without the state of the generator, which it keeps where no hook sees it.
    return checkpoint(_inner, model, maps, use_reentrant=True, preserve_rng_state=False)  # type: ignore[no-any-return]


def _inner(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    return model.conv(maps.exp()).tanh() * maps


@block
def gradient(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    """Backward within the forward pass, and a second time through it."""
    if not maps.requires_grad:
        return maps
    (slope,) = torch.autograd.grad((maps.exp() * maps.sin()).sum(), maps, create_graph=True)
    return slope * maps


@block
def used_twice(model: Blocks, maps: torch.Tensor) -> torch.Tensor:
    if not maps.requires_grad:
        return maps
    hidden = maps.exp()
    (slope,) = torch.autograd.grad(hidden.sin().sum(), hidden, retain_graph=True)
    return slope * hidden + hidden.sin()
