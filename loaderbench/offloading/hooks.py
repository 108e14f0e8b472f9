"""The engine of training: hooks on what autograd saves, which move storages to the host and back.

In a forward pass a storage is saved once, however many tensors over it autograd saves, as long as their values are
provably the same (SameValues); parameters and buffers are left alone. Tensors are made again over the copy that came
back, with their own offsets, shapes, strides and types, so gradients are bit-equal.
"""

from __future__ import annotations

import operator
import warnings
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from loaderbench.errors import ConfigError
from loaderbench.offloading.copies import Copier, HostCopy, copier_for, device_of
from loaderbench.offloading.moves import Moves, OffloadStatistics, act
from loaderbench.offloading.plan import Plan
from loaderbench.offloading.sources import Actions, PlanSource, SizeSource, Source
from loaderbench.offloading.storages import SameValues, SavedView, is_plain, storage_key
from loaderbench.offloading.unhooked import unhooked_in
from loaderbench.recording.model_offload import NOT_SAVED


class _Ticket:
    """What autograd holds of a saved storage: when the last one is gone, nobody can ask for it."""

    def __init__(self, storage: _Storage) -> None:
        self.storage = storage


@dataclass(frozen=True)
class _Whole:
    """A saved tensor that is kept as it is."""

    tensor: torch.Tensor
    version: int
    named: str


class _Storage:
    """One saved storage."""

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index, self.num_bytes = index, tensor.untyped_storage().nbytes()
        self.device, self.version, self.named = tensor.device, tensor._version, name_of(tensor)
        self.alias: torch.Tensor | None = tensor.detach()
        """Holds the storage that was saved, and tells its version."""
        self.memory: torch.UntypedStorage | None = None
        """Holds a copy that came back."""
        self._source = weakref.ref(tensor.untyped_storage())
        self._original: Any = TensorWeakRef(tensor)
        self.came_back: Any = lambda: None
        self.stale_version: int | None = None
        """Its version when it was to be copied, where it was changed in place before."""
        self.copy: HostCopy | None = None

    def on_device(self) -> torch.UntypedStorage | None:
        """Its values on the device, held from now on; None where they are not there."""
        if self.alias is None and self.memory is None:
            tensor = self._original()
            self.memory = self.came_back()
            if self.memory is None and tensor is not None and self._is_of(tensor):
                self.alias = tensor.detach()
        return self.memory if self.alias is None else self.alias.untyped_storage()

    def _is_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor still has what was saved of it; `.data = …` and a storage's resize_ change no version."""
        storage = tensor.untyped_storage()
        return tensor._version == self.version and storage is self._source() and storage.nbytes() == self.num_bytes

    def is_changed(self) -> bool:
        """Whether the values were changed in place before they were copied whole."""
        if self.alias is not None and self.alias._version != self.version:
            self.stale_version = self.alias._version
        return self.stale_version is not None

    def release(self) -> None:
        self.alias = self.memory = None


class Offload:
    """Keep saved tensors on the host within this context, by a plan or by their size.

    After the first forward pass `unhooked` lists the tensors that custom autograd functions keep out of the hooks.
    """

    def __init__(
        self, model: nn.Module, source: Source, copier: Copier, device: torch.device | str | None = None
    ) -> None:
        self._model, self._source, self._moves = model, source, Moves(copier)
        self._device = device_of(model, device)
        self._own: set[int] = set()
        """Keys of the storages of parameters and buffers."""
        self._saved: dict[int, _Storage] = {}
        """Those that autograd holds, by their number."""
        self._tickets = SameValues[_Ticket]()
        self._next_index = 0
        self._stack = ExitStack()
        self._has_looked = False
        self.unhooked: tuple[str, ...] = ()

    def __enter__(self) -> Offload:
        self._stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
        self._stack.callback(self._model.register_forward_hook(self._look).remove)
        self._stack.callback(self._model.register_forward_pre_hook(self._pass_begins).remove)
        self.begin_step()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin_step(self) -> None:
        """Begin a step. A plan needs this call before each step; without a plan it resets the statistics."""
        self._own = {storage_key(one) for one in (*self._model.parameters(), *self._model.buffers())}
        self._source.begin_step()
        self._tickets.clear()  # a graph of an earlier step that somebody still has
        if isinstance(self._source, PlanSource):
            self._next_index = 0
        self._moves.begin_step()

    def end_step(self) -> OffloadStatistics:
        """A step has ended: what it moved. Waits for the device.

        Raises:
            PlanMismatch: it was shorter than its plan's.
        """
        self._source.end_step()
        return self._moves.end_step()

    def live_bytes(self) -> int:
        """What the device's allocator has given out; on the CPU, whose does not tell, what the hooks hold."""
        if torch.empty(0, device=self._device).is_cuda:
            return torch.cuda.memory_allocated(self._device)
        saved = list(self._saved.values())  # the collector may take some meanwhile
        return sum(one.num_bytes for one in saved if one.alias is not None or one.memory is not None)

    # -- hooks

    def _pack(self, tensor: torch.Tensor) -> Any:
        if self._source.keeps_next() or not self._can_go(tensor):
            self._source.check(NOT_SAVED, 0)
            self._act(self._source.after(NOT_SAVED, 0, is_pack=True))
            # Autograd keeps a leaf itself, so that `.data = …` after it was saved changes what the backward pass uses.
            kept = tensor if tensor.is_leaf else tensor.detach()
            return _Whole(kept, tensor._version, name_of(tensor))
        ticket = self._ticket_of(tensor)
        saved = ticket.storage
        self._source.check(saved.index, saved.num_bytes)
        self._act(self._source.after(saved.index, saved.num_bytes, is_pack=True))
        return ticket, SavedView.of(tensor)

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, _Whole):
            if packed.tensor._version != packed.version:
                raise changed_in_place(packed.named, packed.tensor._version, packed.version)
            self._source.check(NOT_SAVED, 0)
            self._act(self._source.after(NOT_SAVED, 0, is_pack=False))
            return packed.tensor
        ticket, view = packed
        saved: _Storage = ticket.storage
        self._source.check(saved.index, saved.num_bytes)
        self._bring(saved)
        if saved.is_changed():
            raise changed_in_place(saved.named, saved.stale_version, saved.version)
        storage = saved.on_device()
        assert storage is not None
        if saved.copy is not None:
            self._moves.copier.use(saved.copy, storage)
        tensor: torch.Tensor = view.over(storage)
        self._act(self._source.after(saved.index, saved.num_bytes, is_pack=False))
        return tensor

    def _can_go(self, tensor: torch.Tensor) -> bool:
        return is_plain(tensor) and tensor.device == self._device and storage_key(tensor) not in self._own

    def _ticket_of(self, tensor: torch.Tensor) -> _Ticket:
        """Return the ticket that autograd has for these values, or a new one."""
        ticket = self._tickets.find(tensor)
        if ticket is None:
            saved = _Storage(self._next_index, tensor)
            self._next_index += 1
            self._saved[saved.index] = saved
            self._moves.saved(saved.num_bytes)
            ticket = _Ticket(saved)
            weakref.finalize(ticket, self._forget, saved).atexit = False
            self._tickets.keep(tensor, ticket)
        return ticket

    # -- moves

    def _act(self, actions: Actions) -> None:
        act(actions, self._saved, self._evict, self._release, self._bring)

    def _evict(self, saved: _Storage) -> None:
        """Begin its copy to the host, unless the host has one."""
        storage = saved.on_device()
        if saved.copy is None and storage is not None and not saved.is_changed():
            saved.copy = self._moves.out(storage)

    def _release(self, saved: _Storage) -> None:
        saved.is_changed()  # while it was copied: the copy may be of both
        if saved.copy is not None:
            self._moves.copier.let_go(saved.copy)
        if saved.copy is not None or saved.stale_version is not None:
            saved.release()

    def _bring(self, saved: _Storage) -> None:
        """Begin its copy to the device, unless it is there."""
        if saved.on_device() is not None or saved.copy is None:
            return
        storage = torch.empty(saved.num_bytes, dtype=torch.uint8, device=saved.device).untyped_storage()
        self._moves.back(saved.copy, storage)
        saved.memory, saved.came_back = storage, weakref.ref(storage)

    def _forget(self, saved: _Storage) -> None:
        """Autograd has dropped all tickets."""
        self._source.forget(saved.index)
        if self._saved.get(saved.index) is saved:
            del self._saved[saved.index]
        if saved.copy is not None:
            self._moves.give_back(saved.copy)
            saved.copy = None
        saved.release()

    def _pass_begins(self, module: nn.Module, inputs: Any) -> None:
        """Storages that an earlier forward pass saved may have new values that no version tells (through NumPy or
        `.data`, as where a loader fills its buffers again): they are saved anew. A plan has its steps for this."""
        if not isinstance(self._source, PlanSource):
            self._tickets.clear()

    # -- what hooks do not see

    def _look(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._has_looked:
            return
        self._has_looked = True
        self.unhooked = unhooked_in(output)
        for sentence in self.unhooked:
            warnings.warn(sentence, UserWarning, stacklevel=2)


def offload(
    model: nn.Module,
    *,
    above_bytes: int | None = None,
    after_bytes: int = 0,
    plan: Plan | None = None,
    device: torch.device | str | None = None,
) -> Offload:
    """Keep what autograd saves for the backward pass in host memory: a context for forward and backward passes.

        with loaderbench.offload(model, above_bytes=8 << 20):
            loss(model(images), labels).backward()

    Args:
        above_bytes: offload saved storages of at least this many bytes; None: all.
        after_bytes: offload only storages saved while at least this many bytes are live on the device (on CUDA those
            that the allocator has given out, on the CPU those that the hooks hold).
        plan: a plan of offloading/plan.py, in place of the two sizes; call `begin_step` of the returned object before
            each step.
        device: device of the tensors to offload; None: that of the model's parameters, or else of its buffers.

    Gradients are bit-equal with and without offloading, unless the model changes a saved tensor in a way that PyTorch
    does not count, e.g. through `.data`: the host keeps the saved values. On the CPU the copies are a second arena in
    the same memory: offloading takes time and saves none of the machine's memory.

    Raises:
        ConfigError: a size is not a whole number of at least 0, the device is neither CUDA nor the CPU, or the model
            has no device and none is given.
    """
    above = _checked("above_bytes", 0 if above_bytes is None else above_bytes)
    after = _checked("after_bytes", after_bytes)
    found = device_of(model, device)
    copier = copier_for(found)
    if plan is not None:
        return Offload(model, PlanSource(plan), copier, found)
    source = SizeSource(above, after)
    engine = Offload(model, source, copier, found)
    source.live_bytes = weakref.WeakMethod(engine.live_bytes)
    return engine


def _checked(name: str, value: Any) -> int:
    """A number of bytes that was asked for. Raises ConfigError where it is none."""
    try:
        size = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = -1
    if size >= 0:
        return size
    raise ConfigError(f"{name} is {value!r}: give a whole number of bytes, 0 or more, as 8 << 20")


def name_of(tensor: torch.Tensor) -> str:
    """A tensor as autograd's errors name it."""
    return f"[{tensor.type()} {list(tensor.shape)}]"


def changed_in_place(named: str, version: int | None, expected: int) -> RuntimeError:
    """Autograd's own error, without the name of the function that made the tensor
    (torch/csrc/autograd/saved_variable.cpp, SavedVariable::unpack)."""
    return RuntimeError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: {named} is "
        f"at version {version}; expected version {expected} instead. Hint: enable anomaly detection to find the "
        "operation that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
    )
