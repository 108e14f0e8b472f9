"""Storages and the tensors over them: which can be moved, and how a tensor is made again over another copy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


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
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
        )

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor again, over a storage of as many bytes."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)  # type: ignore[call-overload, no-any-return]
