"""The engine of inference: a dispatch mode that brings an operator's arguments before it runs, by a plan.

Nothing is saved for a backward pass, so what lives on the host are parameters and buffers (of which the host keeps a
copy: leaving the device costs no copy), inputs, and activations that are still to be used. A tensor lives on while its
storage is on the host: the storage is resized to nothing, as FSDP frees its parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loaderbench.offloading.copies import Copier, HostCopy, copier_for, device_of
from loaderbench.offloading.moves import Moves, OffloadStatistics, act
from loaderbench.offloading.plan import Plan
from loaderbench.offloading.sources import PlanSource
from loaderbench.offloading.storages import does_no_work, is_plain, storage_key, written_by
from loaderbench.printable import memory_size


class _Stored:
    """One storage in one state of its values."""

    def __init__(self, index: int, storage: torch.UntypedStorage) -> None:
        self.index, self.num_bytes = index, storage.nbytes()
        self.key = storage._cdata
        self.storage: Any = weakref.ref(storage)
        self.copy: HostCopy | None = None
        self.is_clean = False
        """The copy stays equal from step to step: a parameter's."""
        self.is_used = False
        """By the operator that runs."""
        self.leaves_later = False
        """It is to leave the device behind the operator that runs."""


class InferenceOffload(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotations there
    """Within its context, the forward passes of a model keep to a plan of an inference trace. Before each call
    `begin_step(inputs, …)`, after it `end_step(output)`.

    On leaving it, all that the model has is on the device again. `unhooked` tells what the plan would have moved and
    PyTorch cannot.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        copier: Copier | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model, self._plan, self._source = model, plan, PlanSource(plan)
        self._device = device_of(model, device)
        self._moves = Moves(copier_for(self._device) if copier is None else copier)
        self._stored: dict[int, _Stored] = {}
        """Key of a storage → its state."""
        self._by_index: dict[int, _Stored] = {}
        self._next_index = 0
        self._inputs: list[torch.Tensor] = []
        self._in_step = self._is_moving = False
        self._fixed: dict[int, int] = {}
        """Saved storages of the plan that cannot be resized → bytes."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for stored in [*self._stored.values()]:
            self._bring_for_use(stored)
            self._forget(stored)
        self._inputs = []

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Operators within this context are the engine's own."""
        self._is_moving = True
        try:
            yield
        finally:
            self._is_moving = False

    @property
    def unhooked(self) -> tuple[str, ...]:
        """A sentence where storages stay on the device that should have left it."""
        if not self._fixed:
            return ()
        number, size = len(self._fixed), memory_size(sum(self._fixed.values()))
        what = "storage stays" if number == 1 else "storages stay"
        return (
            f"{number} {what} on the device, {size}: PyTorch cannot resize memory that it does not own, such "
            "as NumPy arrays or memory-mapped files; clone() those tensors",
        )

    def begin_step(self, *inputs: torch.Tensor) -> None:
        """A forward pass on these inputs begins.

        Raises:
            PlanMismatch: the model or the inputs are not those of the plan.
        """
        with self._moving():
            self._begin(inputs)
        self._in_step = True

    def _begin(self, inputs: tuple[torch.Tensor, ...]) -> None:
        self._moves.begin_step()
        self._source.begin_step()
        self._next_index, self._inputs, self._by_index = 0, list(inputs), {}
        own = [*self._model.parameters(), *self._model.buffers()]
        standing = {storage_key(tensor) for tensor in (*own, *inputs)}
        for stored in [*self._stored.values()]:
            if stored.key not in standing:  # the last step's output
                self._forget(stored)
        for tensor in own:
            self._stand(tensor, is_own=True)
        for tensor in inputs:
            self._stand(tensor, is_own=False)
        self._moves.begin_peak()

    def end_step(self, output: Any) -> OffloadStatistics:
        """The forward pass has ended: its output and inputs are on the device. Waits for it.

        Raises:
            PlanMismatch: it was shorter than its plan's.
        """
        with self._moving():
            return self._end(output)

    def _end(self, output: Any) -> OffloadStatistics:
        self._in_step = False
        for stored in self._known([*self._inputs[:1], *tree_leaves(output)]):
            try:
                self._use(stored)
            finally:
                stored.is_used = False
        self._source.end_step()
        found = self._moves.end_step()
        for stored in self._known(self._inputs):  # they are the caller's
            self._bring(stored)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_moving or does_no_work(func):
            return func(*args, **kwargs)
        read = self._known(tree_leaves((args, kwargs)))
        if not self._in_step:
            return self._run_between(func, args, kwargs, read)
        try:
            for stored in read:
                self._use(stored)
            out = func(*args, **kwargs)
        except BaseException:
            self._in_step = False  # the next one begins anew
            raise
        finally:
            for stored in read:
                stored.is_used = False
                if stored.leaves_later:
                    self._leave(stored)
        for stored in self._known(written_by(func, args, kwargs)):
            storage = stored.storage()
            self._forget(stored)
            self._pack(storage)
        for tensor in tree_leaves(out):
            if self._can_go(tensor) and storage_key(tensor) not in self._stored:
                self._pack(tensor.untyped_storage())
        return out

    def _run_between(self, func: Any, args: Any, kwargs: Any, read: list[_Stored]) -> Any:
        """An operator between two steps, of which the plan knows nothing."""
        for stored in read:
            self._bring_for_use(stored)
        out = func(*args, **kwargs)
        for stored in self._known(written_by(func, args, kwargs)):
            self._drop_copy(stored)
        return out

    # -- storages

    def _can_go(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and is_plain(value) and value.device == self._device

    def _known(self, values: Iterable[Any]) -> list[_Stored]:
        """The storages of the tensors among values, each once, in their order."""
        tensors = [value for value in values if isinstance(value, torch.Tensor) and value.layout == torch.strided]
        found = [self._stored.get(storage_key(tensor)) for tensor in tensors]
        return list(dict.fromkeys(one for one in found if one is not None))

    def _stand(self, tensor: torch.Tensor, *, is_own: bool) -> None:
        """A tensor that is there before the first operator."""
        stored = self._stored.get(storage_key(tensor))
        if stored is None:
            if not self._can_go(tensor):
                return
            stored = self._add(tensor.untyped_storage())
        elif self._by_index.get(stored.index) is stored:
            return  # two tensors over one storage
        else:
            self._number(stored)
            if not stored.is_clean:  # it may have been written since
                self._bring(stored)
                self._drop_copy(stored)
        self._source.check(stored.index, stored.num_bytes)
        if stored.index in self._plan.start_on_host and is_own:
            if stored.copy is None and self._can_leave(stored, stored.storage()):
                stored.copy, stored.is_clean = self._moves.keep(stored.storage()), True
            self._leave(stored)
        self._act(stored)

    def _add(self, storage: torch.UntypedStorage) -> _Stored:
        stored = _Stored(self._next_index, storage)

        def gone(_: object) -> None:
            self._forget(stored)

        stored.storage = weakref.ref(storage, gone)
        self._stored[stored.key] = stored
        self._number(stored)
        return stored

    def _number(self, stored: _Stored) -> None:
        stored.index = self._next_index
        self._next_index += 1
        self._by_index[stored.index] = stored
        self._moves.saved(stored.num_bytes)

    def _pack(self, storage: torch.UntypedStorage) -> None:
        """A storage with new values: it may go from now on."""
        stored = self._add(storage)
        self._source.check(stored.index, stored.num_bytes)
        self._act(stored)

    def _use(self, stored: _Stored) -> None:
        """It must be on the device now."""
        self._source.check(stored.index, stored.num_bytes)
        stored.is_used, stored.leaves_later = True, False
        self._bring_for_use(stored)
        self._act(stored)

    def _act(self, stored: _Stored) -> None:
        actions = self._source.after(stored.index, stored.num_bytes, is_pack=False)
        act(actions, self._by_index, self._evict, self._leave, self._bring)

    # -- moves

    def _evict(self, stored: _Stored) -> None:
        storage = stored.storage()
        if stored.copy is None and storage is not None and self._can_leave(stored, storage):
            stored.copy = self._moves.out(storage)

    def _leave(self, stored: _Stored) -> None:
        storage = stored.storage()
        if stored.is_used:
            stored.leaves_later = True
        elif stored.copy is not None and storage is not None and storage.nbytes():
            self._moves.copier.let_go(stored.copy)
            storage.resize_(0)
            stored.leaves_later = False

    def _can_leave(self, stored: _Stored, storage: torch.UntypedStorage) -> bool:
        if not storage.resizable():
            self._fixed[stored.index] = stored.num_bytes
        return storage.resizable()

    def _bring(self, stored: _Stored) -> None:
        storage = stored.storage()
        stored.leaves_later = False
        if storage is None or storage.nbytes() or stored.copy is None:
            return
        storage.resize_(stored.num_bytes)
        self._moves.back(stored.copy, storage)

    def _bring_for_use(self, stored: _Stored) -> None:
        self._bring(stored)
        storage = stored.storage()
        if stored.copy is not None and storage is not None:
            self._moves.copier.use(stored.copy, storage)

    def _forget(self, stored: _Stored) -> None:
        """Its values are not needed any more."""
        if self._stored.get(stored.key) is stored:
            del self._stored[stored.key]
        self._by_index.pop(stored.index, None)
        self._drop_copy(stored)
        stored.storage = lambda: None  # no circle of references is left, which would keep the model

    def _drop_copy(self, stored: _Stored) -> None:
        if stored.copy is not None:
            self._moves.give_back(stored.copy)
            stored.copy, stored.is_clean = None, False
