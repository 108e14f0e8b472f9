"""Every call of a forward pass is shown once, under its own name; and showing it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from loaderbench.workloads.calls import CallTracer, Keywords, Site, plain_name


class Block(nn.Module):
    """Calls one module twice, and functions of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> Any:
        out = self.relu(self.conv1(x))
        out = self.conv2(out)
        out += x
        assert out.shape[0] == out.size(0) == len(out)  # no operations
        return self.relu(out)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.block = Block()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.block(self.stem(x))
        x = torch.cat([x, functional.relu(x)], 1)
        return self.fc(functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1).float())


EXPECTED = [
    ("stem.0", "Conv2d"), ("stem.1", "BatchNorm2d"), ("block.conv1", "Conv2d"), ("block.relu", "ReLU"),
    ("block.conv2", "Conv2d"), ("block.add", "add"), ("block.relu", "ReLU"), ("relu", "ReLU"), ("cat", "cat"),
    ("adaptive_avg_pool2d", "AdaptiveAvgPool2d"), ("flatten", "Flatten"), ("float", "float"), ("fc", "Linear"),
    ("loss.log_softmax", "LogSoftmax"), ("loss.nll_loss", "NLLLoss"),
]  # fmt: skip


class Seen:
    def __init__(self) -> None:
        self.sites: list[Site] = []

    def visit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        self.sites.append(site)
        return call(*args, **kwargs)


def gradients(model: nn.Module, images: torch.Tensor, tracer: CallTracer | None = None) -> list[torch.Tensor]:
    model.zero_grad()
    targets = torch.arange(len(images)) % 5
    if tracer is None:
        loss = functional.cross_entropy(model(images), targets)
    else:
        with tracer:
            loss = functional.cross_entropy(model(images), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_each_call_is_shown_once_in_its_order(net: Net) -> None:
    seen, tracer = Seen(), CallTracer(net)
    with tracer.installed(seen):
        gradients(net, torch.randn(6, 3, 8, 8), tracer)
    assert [(site.name, site.type) for site in seen.sites] == EXPECTED


def test_showing_changes_no_bit(net: Net) -> None:
    images = torch.randn(6, 3, 8, 8)
    before = gradients(net, images)
    tracer = CallTracer(net)
    with tracer.installed(Seen()):
        shown = gradients(net, images, tracer)
    assert len(before) == len(shown) > 5
    assert all(torch.equal(one, other) for one, other in zip(before, shown, strict=True))


def test_nothing_is_shown_outside_and_nothing_is_left(net: Net) -> None:
    seen, tracer = Seen(), CallTracer(net)
    with tracer.installed(seen):
        net(torch.randn(2, 3, 8, 8))  # not within the tracer's own context: the model is warmed up, say
    with tracer:
        net(torch.randn(2, 3, 8, 8))
    assert seen.sites == []
    assert not any("forward" in vars(module) for module in net.modules())


def test_a_loss_with_settings_of_its_own_stays_one_call(net: Net) -> None:
    seen, tracer = Seen(), CallTracer(net)
    logits, targets = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    with tracer.installed(seen), tracer:
        functional.cross_entropy(logits, targets, label_smoothing=0.1)
        functional.cross_entropy(logits, torch.softmax(logits, 1))
    assert [site.name for site in seen.sites] == ["loss.cross_entropy", "loss.softmax", "loss.cross_entropy"]


def test_an_error_in_the_model_leaves_the_tracer_whole(net: Net) -> None:
    seen, tracer = Seen(), CallTracer(net)
    with tracer.installed(seen), pytest.raises(RuntimeError), tracer:
        net(torch.randn(2, 7, 8, 8))
    with tracer.installed(seen):
        seen.sites.clear()
        gradients(net, torch.randn(6, 3, 8, 8), tracer)
    assert [site.name for site in seen.sites] == [name for name, _ in EXPECTED]


@pytest.mark.parametrize(
    ("name", "plain"),
    [("__iadd__", "add"), ("__radd__", "add"), ("add_", "add"), ("__truediv__", "div"), ("relu_", "relu"),
     ("index_add", "index_add"), ("round", "round"), ("__rsub__", "sub")],
)  # fmt: skip
def test_names_of_functions(name: str, plain: str) -> None:
    assert plain_name(name) == plain
