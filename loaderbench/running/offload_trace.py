"""What a step saves and uses again, traced without its device: SavedTrace of recording/model_offload.py.

The step is traced as running/memory_trace.py does, with hooks that hold nothing: every saved storage is dropped when it
is packed and made anew when it is unpacked, so that the trace tells when all others have let go of it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from loaderbench.cases.case import Mode, Step
from loaderbench.offloading.storages import SameValues, SavedView, does_no_work, is_plain, storage_key, written_by
from loaderbench.recording.model_offload import (
    NOT_SAVED,
    ROW_FIELDS,
    SAVED_EVENTS,
    SAVED_FIELDS,
    SavedEvent,
    SavedTrace,
)
from loaderbench.running.flops import flops_of
from loaderbench.running.memory_trace import (
    ACTIVATIONS,
    FORWARD,
    PARAMETERS,
    StepTracer,
    follow_step,
    rounding_of,
)
from loaderbench.running.workspaces import unchecked_processor
from loaderbench.workloads.objective import tensors_of
from loaderbench.workloads.training import ModelWorkload

WHAT = {name: number for number, name in enumerate(SAVED_EVENTS)}
WIDEST = 16
"""Bytes of a complex128."""


def saved_trace(step: Step, seed: int, *, on_accelerator: bool, device: str = "cpu") -> SavedTrace:
    """Trace what one step in its steady state saves and when it uses it.

    Args:
        on_accelerator: as of memory_trace.trace_step.
        device: of the fake tensors. Autograd saves other tensors on CUDA than on the CPU (batch norm, dropout), so a
            plan that is to be run on a GPU needs a trace of fake CUDA tensors, which needs a GPU.

    Raises:
        ConfigError, UnavailableError: as memory_trace.trace_step.
    """
    begun = time.perf_counter()
    kind = TrainTracer if step.mode == "train" else InferTracer
    tracer = kind(rounding=rounding_of(on_accelerator=on_accelerator), inside=not on_accelerator)
    follow_step(tracer, step, seed, on_accelerator=on_accelerator, device=device)
    if not on_accelerator:
        tracer.probe()
    unchecked_on = None if on_accelerator else unchecked_processor()
    return tracer.saved_trace(step.batch_size, time.perf_counter() - begun, unchecked_on)


class _Saved:
    """One saved storage; it lives as long as somebody can ask for it."""

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index, self._version = index, tensor._version
        self._tensor: Any = weakref.ref(tensor)
        self.num_copies = 0
        """Made anew, and held by others: their values do not change."""

    def held(self) -> bool:
        """Whether others hold its values on the device."""
        tensor = self._tensor()
        return self.num_copies > 0 or (tensor is not None and tensor._version == self._version)


class RowTracer(StepTracer):  # type: ignore[no-untyped-call]  # torch has no annotations there
    """A tracer that keeps the rows of a SavedTrace."""

    mode: Mode

    def __init__(self, *, rounding: int, inside: bool) -> None:
        super().__init__(rounding=rounding, inside=inside)
        self._rows: list[list[int]] = []
        self._saved: list[tuple[int, int, int]] = []
        self._owner: dict[int, int] = {}
        """Allocation → the saved storage that it is now."""
        self._born: dict[int, int] = {}
        """Allocation → the row that tells it."""
        self._num_rows = 0
        """What comes behind the step is not of it."""
        self._device: torch.device | None = None
        """The model's, once it is known: on CUDA a step has some small tensors on the CPU."""

    @contextmanager
    def following(self, workload: ModelWorkload) -> Iterator[None]:
        self._device = next((one.device for one in workload.model.parameters()), None)
        with super().following(workload):
            yield
        self._num_rows = len(self._rows)

    def probe(self, *, small: bool = True) -> None:
        super().probe(small=small)
        for allocation, _ in self._inner:  # given back before the operator returned: the row behind it
            row = self._born[allocation]
            assert [one[0] for one in self._rows[row : row + 2]] == [WHAT["allocate"], WHAT["release"]]
            for one in self._rows[row : row + 2]:
                one[1] = self._allocations[allocation][0]

    def saved_trace(self, batch_size: int, seconds: float | None, unchecked_on: str | None) -> SavedTrace:
        """What was followed."""
        return SavedTrace(
            self.mode,
            batch_size,
            np.array(self._saved, dtype=np.int64).reshape(-1, len(SAVED_FIELDS)),
            np.array(self._rows[: self._num_rows], dtype=np.int64).reshape(-1, len(ROW_FIELDS)),
            tuple(self._operators),
            tuple(self._modules),
            seconds,
            unchecked_on,
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if does_no_work(func):
            return func(*args, **(kwargs or {}))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._add("operator", flops_of(func, args, kwargs or {}, out))
        return out

    def _add(self, what: SavedEvent, value: int) -> int:
        self._rows.append([WHAT[what], value, self._phase, self._operator, self._here()])
        return len(self._rows) - 1

    def _can_go(self, tensor: torch.Tensor) -> bool:
        return is_plain(tensor, FakeTensor) and self._device in (None, tensor.device)

    def _here(self) -> int:
        """The module that is being run."""
        return self._stack[-1][0] if self._phase == FORWARD and self._stack else self._module

    def _event(self, allocation: int, sign: int) -> None:
        super()._event(allocation, sign)
        size = self._allocations[allocation][0]
        if sign > 0:
            self._born[allocation] = self._add("allocate", size)
        elif allocation in self._owner:
            self._gone(self._owner[allocation])
        else:
            self._add("release", size)

    def _gone(self, saved: int) -> None:
        """The memory of a saved storage is gone."""
        self._add("let_go", saved)

    def _own(self, allocation: int, *, clean: bool = False) -> int:
        """A new saved storage, which is now what the allocation is; its number."""
        saved = len(self._saved)
        self._saved.append((self._allocations[allocation][0], int(clean), self._here()))
        if allocation not in self._owner:
            self._rows[self._born[allocation]][:2] = [WHAT["hold"], saved]
        self._owner[allocation] = saved
        return saved


class TrainTracer(RowTracer):  # type: ignore[no-untyped-call]
    """Traces what autograd saves, by hooks that hold nothing."""

    mode = "train"

    def __init__(self, *, rounding: int, inside: bool) -> None:
        super().__init__(rounding=rounding, inside=inside)
        self._known = SameValues[_Saved]()
        self._quiet = False

    @contextmanager
    def following(self, workload: ModelWorkload) -> Iterator[None]:
        with super().following(workload), torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._quiet:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Autograd saves a tensor: what it is given back is the place in a saved storage."""
        known = self._live.get(storage_key(tensor)) if self._can_go(tensor) else None
        if known is None or self._allocations[known[1]][1] == PARAMETERS:
            self._add("pack", NOT_SAVED)
            return tensor.detach()
        allocation = known[1]
        saved = self._known.find(tensor)
        if saved is None:
            saved = self._save(allocation, tensor)
        self._add("pack", saved.index)
        return saved, SavedView.of(tensor)

    def _save(self, allocation: int, tensor: torch.Tensor) -> _Saved:
        before = self._owner.get(allocation)
        if before is not None:
            self._add("let_go", before)
        index = self._own(allocation)
        if before is not None:
            self._add("hold", index)
        saved = _Saved(index, tensor)
        weakref.finalize(saved, self._add, "forget", index).atexit = False
        self._known.keep(tensor, saved)
        return saved

    def unpack(self, packed: Any) -> torch.Tensor:
        """Autograd uses a saved tensor."""
        self._locate()
        if isinstance(packed, torch.Tensor):
            self._add("unpack", NOT_SAVED)
            return packed
        saved, view = packed
        if not saved.held():
            self._give_up(saved.index)
        self._add("unpack", saved.index)
        self._quiet = True
        try:
            # `set_` would let the fake storage live for ever.
            size = -(-view.storage_bytes // WIDEST) * WIDEST
            memory = torch.empty(size, dtype=torch.uint8, device=view.device)
            tensor = memory.view(view.dtype).as_strided(view.shape, view.stride, view.offset)
        finally:
            self._quiet = False
        self._watch(saved, memory.untyped_storage())
        return tensor

    def _give_up(self, index: int) -> None:
        """What others still hold of a saved storage is not it any more: memory like all else."""
        for allocation in self._allocations_held(index):
            del self._owner[allocation]
            self._add("let_go", index)
            self._add("allocate", self._allocations[allocation][0])

    def _allocations_held(self, index: int) -> list[int]:
        return [one for _, one in self._live.values() if self._owner.get(one) == index]

    def _watch(self, saved: _Saved, storage: torch.UntypedStorage) -> None:
        """Follow memory that was made anew until others let go of it."""
        key, allocation = storage._cdata, len(self._allocations)
        self._allocations.append([self._saved[saved.index][0], ACTIVATIONS])
        self._owner[allocation] = saved.index
        saved.num_copies += 1

        def gone(_: object) -> None:
            del self._live[key]
            saved.num_copies -= 1
            self._release(allocation)

        self._live[key] = weakref.ref(storage, gone), allocation

    def _gone(self, saved: int) -> None:
        if not self._allocations_held(saved):
            super()._gone(saved)


class InferTracer(RowTracer):  # type: ignore[no-untyped-call]
    """Traces every storage that operators read or write; a storage that is written becomes another saved one."""

    mode = "infer"
    takes_apart = False  # the hooks see the operators that the model calls

    def stand(self, kind: int, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            super().stand(kind, [tensor])
            if kind in (PARAMETERS, ACTIVATIONS):
                for allocation in self._allocations_of([tensor]):
                    if allocation not in self._owner:
                        self._pack(allocation, clean=kind == PARAMETERS)

    def end_step(self, inputs: Any, output: Any) -> None:
        for allocation in self._allocations_of([*tensors_of(inputs), *tensors_of(output)]):
            self._add("unpack", self._owner[allocation])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if does_no_work(func):
            return func(*args, **kwargs)
        self._operator = self._operators.setdefault(str(func), len(self._operators))
        self._locate()
        read = self._allocations_of(tree_leaves((args, kwargs)))
        for allocation in read:
            self._add("unpack", self._owner[allocation])
        out = super().__torch_dispatch__(func, types, args, kwargs)
        written = self._allocations_of(written_by(func, args, kwargs))
        for allocation in read:
            self._add("let_go", self._owner[allocation])
            if allocation in written:
                self._add("forget", self._owner[allocation])
                self._pack(allocation)
        for allocation in self._allocations_of(tree_leaves(out)):
            if allocation not in self._owner:
                self._pack(allocation)
        return out

    def _gone(self, saved: int) -> None:
        self._add("forget", saved)

    def _pack(self, allocation: int, *, clean: bool = False) -> None:
        """The storage's values are there: it may go to the host from now on."""
        is_new = allocation not in self._owner
        saved = self._own(allocation, clean=clean)
        if not is_new:
            self._add("hold", saved)
        self._add("pack", saved)
        self._add("let_go", saved)

    def _allocations_of(self, values: Iterable[Any]) -> list[int]:
        """Allocations of the tensors among values, each once, in their order."""
        tensors = [value for value in values if isinstance(value, torch.Tensor) and self._can_go(value)]
        known = [self._live.get(storage_key(tensor)) for tensor in tensors]
        return list(dict.fromkeys(one[1] for one in known if one is not None))
