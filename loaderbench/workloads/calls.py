"""Every call of a leaf operation of a model's forward pass, handed to a visitor: modules and functions alike.

A leaf module's `forward` is replaced on the instance, which costs less than hooks and leaves the module's own hooks
alone. Calls of functions, tensor methods and operators outside leaf modules (a residual `+`, `torch.cat`, `F.relu`) are
seen by a TorchFunctionMode, on the level on which the model's author wrote them. A function that runs within a visited
call belongs to that call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Keywords = Mapping[str, Any]
"""The keyword arguments of whatever a model calls."""
LOSS_PATH = "loss"
"""The path of calls that belong to no module: those of the loss."""
RESHAPES = {
    "flatten", "unflatten", "view", "view_as", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "expand",
    "t", "chunk", "split", "unbind", "narrow", "select", "getitem", "detach", "expand_as", "swapaxes", "movedim",
}  # fmt: skip
"""Functions that only arrange values anew."""
_MODULES = {name.lower(): name for name in dir(nn) if name[0].isupper()}


@dataclass(frozen=True)
class Site:
    """Locates a call in the model."""

    path: str
    """Name of the leaf module, or of the module whose `forward` calls the function; "" is the model itself."""
    module: nn.Module | None
    """The leaf module; None for a function."""
    function: str = ""
    """The function's plain name: `add` for `+`, `+=`, `add_`."""

    @property
    def name(self) -> str:
        """`layer1.0.conv1`, `layer1.0.add`."""
        if self.module is not None:
            return self.path or self.type  # a model that is one leaf
        return f"{self.path}.{self.function}".strip(".")

    @property
    def type(self) -> str:
        """The module's class; for a function the module of the same name where PyTorch has one, else its own name."""
        if self.module is not None:
            return type(self.module).__name__
        return _MODULES.get(self.function.replace("_", ""), self.function)


class Visitor(Protocol):
    """Makes a call and returns its result."""

    def visit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any: ...

    # A visitor may have a method `revisit` with the same arguments: it makes the calls of a module that the backward
    # pass runs again, as checkpointing does.


class CallTracer(TorchFunctionMode):
    """Shows a model's calls to a visitor, within `installed` and within this context."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._visitor: Visitor | None = None
        self._inside = self._entered = False
        self._paths = [LOSS_PATH]
        self._sites: dict[tuple[str, str], Site] = {}

    @contextlib.contextmanager
    def installed(self, visitor: Visitor) -> Iterator[None]:
        """The model's modules show their calls to `visitor`, inside of this object's own context."""
        changed = []
        self._visitor = visitor
        for path, module in self._model.named_modules():
            is_leaf = next(module.children(), None) is None
            wrap = self._leaf(Site(path, module), module.forward) if is_leaf else self._container(path, module.forward)
            if "forward" not in module.__dict__:
                module.__dict__["forward"] = wrap
                changed.append(module)
        try:
            yield
        finally:
            for module in changed:
                del module.__dict__["forward"]
            self._visitor = None

    def __enter__(self) -> CallTracer:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._entered = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered = False
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _leaf(self, site: Site, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self._visitor is None:
                return forward(*args, **kwargs)  # a call within a call
            if not self._entered:  # the backward pass runs the forward again
                revisit = getattr(self._visitor, "revisit", None)
                return forward(*args, **kwargs) if revisit is None else revisit(site, forward, args, kwargs)
            self._inside = True
            mode = _pop()  # its functions need not be shown
            try:
                return self._visitor.visit(site, forward, args, kwargs)
            finally:
                _push(mode)
                self._inside = False

        return call

    def _container(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        paths = self._paths

        def call(*args: Any, **kwargs: Any) -> Any:
            paths.append(path)
            try:
                return forward(*args, **kwargs)
            finally:
                paths.pop()

        return call

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Keywords | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function.__name__
        if self._inside or self._visitor is None or name == "__get__" or name in _NO_TENSOR:
            return function(*args, **kwargs)
        if function is functional.cross_entropy and _is_plain(args, kwargs):
            logits, targets = args
            scores = self._visit("log_softmax", functional.log_softmax, (logits,), {"dim": 1})
            return self._visit("nll_loss", functional.nll_loss, (scores, targets), {})
        return self._visit(name, function, args, kwargs)

    def _visit(self, name: str, function: Any, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        assert self._visitor is not None
        key = (self._paths[-1], name)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = Site(key[0], None, plain_name(name))
        self._inside = True
        try:
            return self._visitor.visit(site, function, args, kwargs)
        finally:
            self._inside = False


_NO_TENSOR = {"size", "dim", "stride", "numel", "is_floating_point", "__len__", "__bool__", "is_contiguous", "item"}
"""Methods that give no tensor."""
_torch_c: Any = torch._C
_pop: Callable[[], Any] = _torch_c._pop_torch_function_stack
_push: Callable[[Any], None] = _torch_c._push_on_torch_function_stack


def plain_name(name: str) -> str:
    """`add` for `add_`, `__add__`, `__iadd__`, `__radd__`."""
    bare = name.strip("_")
    if name.startswith("__") and bare[:1] in "ir" and bare[1:] in {"add", "sub", "mul", "truediv", "matmul", "pow"}:
        bare = bare[1:]
    return {"truediv": "div"}.get(bare, bare)


PLAIN_LOSS = {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean",
              "label_smoothing": 0.0}  # fmt: skip


def _is_plain(args: tuple[Any, ...], kwargs: Keywords) -> bool:
    """Check if a cross-entropy is the mean over class numbers: then it is exactly log_softmax and nll_loss (ATen's
    LossNLL.cpp), which are two operations with times of their own."""
    usual = all(name in PLAIN_LOSS and PLAIN_LOSS[name] == value for name, value in kwargs.items())
    return usual and len(args) == 2 and args[0].ndim == 2 and not args[1].is_floating_point()
