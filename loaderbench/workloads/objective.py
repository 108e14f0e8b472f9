"""The loss of a training step, from what the model returns, and the targets that the loss takes.

| the model returns | loss |
| --- | --- |
| `loss` (an attribute or key), or only scalars, as detection models do in training | their sum |
| logits (`logits` or `out` of a dict, else its first output): [N, C], [N, C, …], [N, T, C] of tokens | cross-entropy |
| the same with C = 1, as for two classes | binary cross-entropy of the logits |
| further outputs of the logits' shape (auxiliary classifiers) | the same again |
| any other floating-point output, such as boxes | the mean of its squares, which stands in for a loss |

A dict with `logits` has its loss of them alone, as transformers' models do. `--loss package.module:function` takes its
place: it is called with the outputs and the targets, or with the outputs alone if it takes one argument.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch.nn import functional

from loaderbench.errors import ConfigError

Kind = Literal["returned", "classes", "binary", "squares"]
OwnLoss = Callable[..., Any]


def tensors_of(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors in a model's outputs, in order: of tuples, lists, dicts, dataclasses."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
        return
    for value in outputs if isinstance(outputs, list | tuple) else _named(outputs).values():
        yield from tensors_of(value)


def floats_of(outputs: Any) -> list[torch.Tensor]:
    """The floating-point tensors in a model's outputs."""
    return [one for one in tensors_of(outputs) if one.is_floating_point()]


class Objective:
    """The loss of one model, chosen by outputs for a few samples."""

    def __init__(
        self, outputs: Any, *, integer_inputs: bool, auxiliary_weight: float | None = 1.0, own: OwnLoss | None = None
    ) -> None:
        """
        Args:
            outputs: what the model returns for a few samples.
            integer_inputs: the model takes tokens, so that logits [N, T, C] have their classes last.
            auxiliary_weight: of further outputs of the logits' shape; None: they are left out.
            own: the user's own loss.
        """
        self._auxiliary_weight, self._own = auxiliary_weight, own
        self._takes_targets = own is not None and _num_required(own) > 1
        main, _ = _main_and_rest(outputs)
        self._classes_last = integer_inputs and main is not None and main.ndim == 3
        self._shape = () if main is None else tuple(main.shape[1:])
        self.num_classes = 0 if main is None or main.ndim < 2 else int(main.shape[self._class_dim])
        """Values of the logits a sample, or a position; 0: the outputs are no logits."""
        self.kind: Kind = (
            "returned" if _returned(outputs) is not None
            else "squares" if not self.num_classes
            else "binary" if self.num_classes == 1
            else "classes"
        )  # fmt: skip

    @property
    def _class_dim(self) -> int:
        return -1 if self._classes_last else 1

    @property
    def one_class_each(self) -> bool:
        """Whether its targets are one class number a sample."""
        return self.kind == "classes" and len(self._shape) == 1

    @property
    def words(self) -> str:
        """Which loss it is, for the record."""
        if self._own is not None:
            return "own"
        return {"returned": "returned by the model", "classes": "cross-entropy", "binary": "binary cross-entropy",
                "squares": "mean of squares"}[self.kind]  # fmt: skip

    def targets(self, num_samples: int, generator: torch.Generator) -> torch.Tensor:
        """Random targets on the host: class numbers int64 for classes; else float32 of the first output's shape for a
        loss that takes targets; else none (0 values)."""
        if self.kind == "classes":
            shape = self._shape[:-1] if self._classes_last else self._shape[1:]
            return torch.randint(0, self.num_classes, (num_samples, *shape), generator=generator)
        if self.kind == "binary":
            return torch.randint(0, 2, (num_samples, *self._shape), generator=generator).float()
        if self._takes_targets:
            return torch.randn((num_samples, *self._shape), generator=generator)
        return torch.empty((num_samples, 0))

    def scores(self, outputs: Any) -> torch.Tensor:
        """Logits [M, classes] of each sample or position; all values [N, …] of a model without logits."""
        main, _ = _main_and_rest(outputs)
        if main is not None and self.num_classes > 1:
            by_position: torch.Tensor = main.movedim(self._class_dim, -1).reshape(-1, self.num_classes)
            return by_position
        return flat(outputs)

    def loss(self, outputs: Any, targets: Any, *, in_float32: bool) -> Any:
        """The scalar to differentiate. `in_float32`: of logits in that type."""
        if self._own is not None:
            found = self._own(outputs, targets) if self._takes_targets else self._own(outputs)
            if not isinstance(found, torch.Tensor) or found.numel() != 1:
                raise ConfigError("--loss must return one value as a tensor: mean() or sum() over its samples")
            return found
        if (returned := _returned(outputs)) is not None:
            return returned[0] if len(returned) == 1 else torch.stack([one.float() for one in returned]).sum()
        main, rest = _main_and_rest(outputs)
        if self.kind == "squares":
            rest = floats_of(outputs)
            return _total([one.float().square().mean() for one in rest])
        loss = self._of_logits(main, targets, in_float32=in_float32)
        for one in rest:
            if not one.requires_grad:
                continue
            if one.shape != main.shape:
                loss = loss + one.float().square().mean()
            elif self._auxiliary_weight:
                loss = loss + self._auxiliary_weight * self._of_logits(one, targets, in_float32=in_float32)
        return loss

    def _of_logits(self, logits: Any, targets: Any, *, in_float32: bool) -> Any:
        logits = logits.float() if in_float32 else logits
        if self.kind == "binary":
            return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
        if self._classes_last:
            return functional.cross_entropy(logits.reshape(-1, self.num_classes), targets.reshape(-1))
        return functional.cross_entropy(logits, targets)


def flat(outputs: Any) -> torch.Tensor:
    """All floating-point outputs that have a row for each sample, side by side: float32 [N, values]."""
    found = floats_of(outputs)
    rows = next((len(one) for one in found if one.ndim), 0)
    return torch.cat([one.reshape(rows, -1).float() for one in found if one.ndim and len(one) == rows], dim=1)


def _returned(outputs: Any) -> list[torch.Tensor] | None:
    """The losses that a model returns itself: `loss`, or its outputs, if all of them are scalars."""
    given = _named(outputs).get("loss")
    if isinstance(given, torch.Tensor) and given.ndim == 0:
        return [given]
    found = floats_of(outputs)
    return found if found and all(one.ndim == 0 for one in found) else None


def _main_and_rest(outputs: Any) -> tuple[Any, list[torch.Tensor]]:
    """The logits, if there are any, and the other floating-point outputs that a loss would take."""
    named, found = _named(outputs), floats_of(outputs)
    if isinstance(logits := named.get("logits"), torch.Tensor):
        return logits, []
    if isinstance(out := named.get("out"), torch.Tensor):
        return out, [one for one in found if one is not out]
    return (found[0], found[1:]) if found else (None, [])


def _named(outputs: Any) -> Mapping[str, Any]:
    """Outputs by name: of a dict or a dataclass."""
    if isinstance(outputs, Mapping):
        return outputs
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return {one.name: getattr(outputs, one.name, None) for one in dataclasses.fields(outputs)}
    return {}


def _total(parts: list[Any]) -> Any:
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total


def _num_required(function: OwnLoss) -> int:
    """Positional arguments that it takes, at most 2; 2 where its signature cannot be read."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return 1
    except ValueError:
        return 2
    return 2
