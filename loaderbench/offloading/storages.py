"""Storages and the tensors over them: which can be moved, and how a tensor is made again over another copy."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")


def is_plain(tensor: torch.Tensor, *more: type) -> bool:
    """Whether the tensor is no more than a view over one storage with bytes in it: not a subclass (other than `more`),
    sparse, quantized or lazily conjugated or negated."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter, *more)
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.untyped_storage().nbytes() > 0
    )


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of the tensor's storage: it is another one's only after this one is gone."""
    return int(tensor.untyped_storage()._cdata)


class SameValues(Generic[T]):
    """Finds what was saved of a tensor if PyTorch's own bookkeeping proves that the values are still the same: the same
    storage, the same version counter and the same version. Holds neither the tensors nor what was saved.

    Views share the counter of their base. Tensors that `unsafe_chunk`, `unsafe_split`, `detach` or `.data` make over
    the same storage may count for themselves, so their versions prove nothing about each other.
    """

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()
        """Base → version → (weak reference to the storage, its bytes, weak reference to what was saved)."""

    def find(self, tensor: torch.Tensor) -> T | None:
        """Return what was saved of these values; None if nothing is left of it."""
        storage = tensor.untyped_storage()
        source, num_bytes, saved = self._versions(tensor).get(tensor._version, (lambda: None, 0, lambda: None))
        # `.data = …` and a storage's own resize_ change what the counter is for, and do not count.
        return saved() if source() is storage and num_bytes == storage.nbytes() else None

    def keep(self, tensor: torch.Tensor, saved: T) -> None:
        """Remember what was saved of the tensor's values."""
        storage = tensor.untyped_storage()
        self._versions(tensor)[tensor._version] = weakref.ref(storage), storage.nbytes(), weakref.ref(saved)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def _versions(self, tensor: torch.Tensor) -> dict[int, Any]:
        base = tensor if tensor._base is None else tensor._base
        return self._known.setdefault(base, {})  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SavedView:
    """A tensor without its storage."""

    dtype: torch.dtype
    device: torch.device
    storage_bytes: int
    offset: int
    """In elements, as the strides."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(tensor: torch.Tensor) -> SavedView:
        return SavedView(
            tensor.dtype,
            tensor.device,
            tensor.untyped_storage().nbytes(),
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tensor.stride(),
        )

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor again, over a storage of as many bytes."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)


NO_WORK = ("prim", "profiler")
"""Namespaces of operators that compute nothing: questions to a tensor, marks for a profiler."""


def does_no_work(operator: Any) -> bool:
    """Whether the operator touches no memory."""
    return operator.namespace in NO_WORK


def written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that the operator writes, by its schema."""
    written: list[Any] = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            written += tree_leaves(value)
    return written
