"""One iteration of a model by its parts and calls: what the calls are, what each takes in the step, and alone."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.devices.base import Device, Event
from loaderbench.errors import ConfigError
from loaderbench.loaders.base import Batch
from loaderbench.recording.model_layers import PARTS, CallFacts
from loaderbench.running.flops import FlopCount
from loaderbench.running.models import on_device
from loaderbench.workloads.calls import RESHAPES, CallTracer, Keywords, Site
from loaderbench.workloads.objective import tensors_of
from loaderbench.workloads.training import ModelWorkload

Mark = Callable[[], None]
FORWARD_BEGIN, FORWARD_END, BACKWARD, MARK, AGAIN_BEGIN, AGAIN_END = range(6)
"""What an event of the stopwatch marks."""


def no_mark() -> None:
    pass


class Iteration:
    """A training or inference iteration as a user writes it, with the loss read at its end.

    `batches`: a running loader; None: `resident`, host tensors that are used again each time.
    """

    def __init__(
        self, device: Device, workload: ModelWorkload, resident: Batch, batches: Iterator[Batch] | None
    ) -> None:
        self.device, self.workload, self.batches = device, workload, batches
        self.resident = resident
        self.trains = workload.describe().mode == "train"
        self.issued_ns = 0
        """What the host took to issue the last iteration: until it began to read the loss."""
        self._nothing = contextlib.nullcontext()

    def run(
        self,
        mark: Mark = no_mark,
        calls: contextlib.AbstractContextManager[Any] | None = None,
        hold: Mark = no_mark,
    ) -> tuple[int, int]:
        """One iteration; returns (the wait for its batch, all else with the device's work), ns on the host's clock.

        `mark` is called before the first and after each of PARTS (of inference those up to `forward`, and without
        `zero_grad`); `calls` is entered around the forward pass; `hold` is called once the batch is there.
        """
        workload = self.workload
        mark()
        called = time.perf_counter_ns()
        batch = self.resident if self.batches is None else next(self.batches)
        begun = time.perf_counter_ns()
        hold()
        mark()
        inputs = self.copied_inputs(batch)
        mark()
        targets = self.copied_targets(batch)
        mark()
        if self.trains:
            workload.zero_gradients()
            mark()
        with calls or self._nothing:
            output = workload.forward(inputs, targets)
        mark()
        if self.trains:
            workload.backward(output)
            mark()
            workload.update()
            mark()
        self.issued_ns = time.perf_counter_ns() - begun
        if self.trains:
            output.item()
            mark()
        self.device.synchronize()
        return begun - called, time.perf_counter_ns() - begun

    def copied_inputs(self, batch: Batch) -> Any:
        """On the device, in the layout and type of the model."""
        return self.workload.prepared(on_device(self.device, batch.inputs, batch.targets[:0])[0])

    def copied_targets(self, batch: Batch) -> Any:
        return self.device.copy_in(batch.targets[:0], batch.targets)[1]

    @property
    def parts(self) -> list[int]:
        """Which of PARTS an iteration has."""
        names = PARTS if self.trains else ("load", "copy_inputs", "copy_targets", "forward")
        return [PARTS.index(name) for name in names]


# -- what the calls are ------------------------------------------------------------------------------------


@dataclass
class _Tensor:
    """A tensor that a call made."""

    tensor: Any
    """Held, so that its identity stays its own."""
    maker: int | None


@dataclass
class Found:
    """What one iteration's calls are. Indices count all that the tracer showed."""

    calls: list[CallFacts] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Those that are operations: they give a tensor that was not there before, or change one."""
    has_backward: list[bool] = field(default_factory=list)
    """Of all."""


class Discovery:
    """A visitor for one iteration: shapes, parameters, FLOPs, and who takes whose outputs."""

    def __init__(self, model: Any, flops: FlopCount) -> None:
        self._flops = flops
        self._parameters = {id(one): one for one in model.parameters()}
        self._counted: set[int] = set()
        self._tensors: dict[int, _Tensor] = {}
        self._nodes: dict[Any, int] = {}
        self._names: Counter[str] = Counter()
        self._facts: dict[int, CallFacts] = {}
        self._consumers: Counter[int] = Counter()
        self._backward: list[tuple[int, int]] = []
        """(call, FLOPs so far) when its backward began."""
        self.has_backward: list[bool] = []
        self._again = CallNumbers()
        self._again_flops: Counter[int] = Counter()

    def revisit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """A call that the backward pass makes again, for what checkpointing did not keep."""
        number, before = self._again.next(site), self._flops.total
        result = call(*args, **kwargs)
        if number is not None:
            self._again_flops[number] += self._flops.total - before
            self._follow(number, _tensors_in(result))
        return result

    def visit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        number = len(self.has_backward)
        self.has_backward.append(False)
        self._again.made(site, number)
        given = _tensors_in((args, dict(kwargs)))
        before = self._flops.total
        versions = [_version(one) for one in given]
        result = call(*args, **kwargs)
        made = _tensors_in(result)
        changed = versions != [_version(one) for one in given] or _is_in_place(call, kwargs)
        same = made and site.module is None and all(any(one is other for other in given) for one in made)
        if not made or (same and not changed):
            return result
        for one in given:
            maker = self._tensors.get(id(one))
            if maker is not None and maker.maker is not None:
                self._consumers[maker.maker] += 1
        for one in made:
            self._tensors[id(one)] = _Tensor(one, number)
        self._names[site.name] += 1
        self._facts[number] = CallFacts(
            name=site.name,
            type=site.type,
            call=self._names[site.name],
            output_shape=tuple(made[0].shape),
            top_bytes=sum(one.numel() * one.element_size() for one in made),
            num_consumers=0,
            parameters=self._new_parameters(site, given),
            forward_flops=self._flops.total - before,
            backward_flops=None,
            reshapes=(site.module is None and site.function in RESHAPES) or site.type in ("Flatten", "Unflatten"),
        )
        self._follow(number, made)
        return result

    def _follow(self, number: int, made: Sequence[Any]) -> None:
        """Note when the call's backward begins, where it has one of its own."""
        node = _node_of(made)
        if node is not None and node not in self._nodes:
            self._nodes[node] = number
            self.has_backward[number] = True
            node.register_prehook(partial(self._begin, number))

    def _begin(self, number: int, gradients: Any) -> None:
        self._backward.append((number, self._backward_flops))

    @property
    def _backward_flops(self) -> int:
        """FLOPs so far, without those of calls that were made again."""
        return self._flops.total - self._again_flops.total()

    def _new_parameters(self, site: Site, given: Sequence[Any]) -> int:
        mine = given if site.module is None else list(site.module.parameters())
        new = [one for one in mine if id(one) in self._parameters and id(one) not in self._counted]
        self._counted |= {id(one) for one in new}
        return sum({id(one): one.numel() for one in new}.values())

    def found(self, *, trains: bool) -> Found:
        """Call it after the iteration."""
        ends = [*(flops for _, flops in self._backward[1:]), self._backward_flops]
        backward = {number: end - begun for (number, begun), end in zip(self._backward, ends, strict=False)}
        kept = sorted(self._facts)
        calls = [
            replace(
                self._facts[number],
                num_consumers=self._consumers[number],
                backward_flops=backward.get(number, 0) if trains else None,
                recomputed_flops=self._again_flops.get(number),
            )
            for number in kept
        ]
        return Found(calls, kept, self.has_backward)


class CallNumbers:
    """Which call of the forward pass is made again: the same module's, in the same order."""

    def __init__(self) -> None:
        self._of: dict[str, list[int]] = {}
        self._next: Counter[str] = Counter()

    def made(self, site: Site, number: int) -> None:
        """A call of the forward pass."""
        self._of.setdefault(site.path, []).append(number)

    def next(self, site: Site) -> int | None:
        """The number of the call that is made again; None where the forward pass had none."""
        known = self._of.get(site.path)
        if known is None or site.module is None:
            return None
        self._next[site.path] += 1
        return known[(self._next[site.path] - 1) % len(known)]


def _tensors_in(given: Any) -> list[Any]:
    return list(tensors_of(given))


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _is_in_place(call: Any, kwargs: Keywords) -> bool:
    """By its name or argument; versions, which tell all, are not kept in inference."""
    name = getattr(call, "__name__", "")
    return bool(kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


def _node_of(made: Sequence[Any]) -> Any:
    """The first output's node of the backward graph; None without one."""
    return next((one.grad_fn for one in made if one.grad_fn is not None), None)


def discover(iteration: Iteration, tracer: CallTracer) -> Found:
    """What the calls of an iteration are.

    Raises:
        ConfigError: there are none.
    """
    flops = FlopCount()
    discovery = Discovery(iteration.workload.model, flops)
    with tracer.installed(discovery), flops:
        iteration.run(calls=tracer)
    found = discovery.found(trains=iteration.trains)
    if not found.calls:
        raise ConfigError("the model's forward pass calls no PyTorch operation to time")
    return found


# -- in the step -------------------------------------------------------------------------------------------


class Stopwatch:
    """A visitor that marks where each call begins and ends, on the device's own clock.

    `forward`, `backward`: which pass's calls are marked from now on. `zero_s`: see `events_apart_s`.
    """

    def __init__(self, device: Device, has_backward: Sequence[bool] | None = None) -> None:
        """`has_backward`: of each call; None: only the forward calls are marked."""
        self._record, self._has_backward = stamping(device), has_backward
        self._device = device
        self.forward = self.backward = True
        self.zero_s = 0.0
        self._begins = [partial(self._begin, number) for number in range(len(has_backward or ()))]
        self._num_calls = 0
        self._again = CallNumbers()
        self._events: list[Event] = []
        self._marks: list[tuple[int, int]] = []
        self._host_ns: list[int] = []
        self._steps: list[tuple[int, list[Event], list[tuple[int, int]], list[int]]] = []

    @property
    def num_known(self) -> int:
        """Calls that it expects."""
        return len(self._begins)

    def mark(self) -> None:
        self._stamp(0, MARK)

    def _stamp(self, number: int, kind: int) -> None:
        self._host_ns.append(time.perf_counter_ns())
        self._events.append(self._record())
        self._marks.append((number, kind))

    def _begin(self, number: int, gradients: Any) -> None:
        self._stamp(number, BACKWARD)

    def revisit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """A call that the backward pass makes again."""
        number = self._again.next(site) if self.backward else None
        if number is None:
            return call(*args, **kwargs)
        self._stamp(number, AGAIN_BEGIN)
        result = call(*args, **kwargs)
        self._stamp(number, AGAIN_END)
        self._hook(number, result)
        return result

    def visit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        number = self._num_calls
        self._num_calls = number + 1
        self._again.made(site, number)
        if self.forward:
            self._stamp(number, FORWARD_BEGIN)
        result = call(*args, **kwargs)
        if self.forward:
            self._stamp(number, FORWARD_END)
        self._hook(number, result)
        return result

    def _hook(self, number: int, result: Any) -> None:
        """Let the call's backward be marked, where it has one."""
        has_backward = self._has_backward if self.backward else None
        if has_backward is not None and number < len(has_backward) and has_backward[number]:
            node = result.grad_fn if isinstance(result, torch.Tensor) else _node_of(_tensors_in(result))
            if node is not None:
                node.register_prehook(self._begins[number])

    def end_step(self) -> None:
        """Put the step's marks aside; reading them would take time between two steps."""
        self._steps.append((self._num_calls, self._events, self._marks, self._host_ns))
        self._num_calls = 0
        self._again = CallNumbers()
        self._events, self._marks, self._host_ns = [], [], []

    def read(self, expected: int | None) -> list[StepTimes]:
        """The times of each step that ended since the last call. `expected`: calls of a step; None: any number.

        Raises:
            ConfigError: a step made other calls than the first one.
        """
        steps, self._steps = self._steps, []
        times = []
        for num_calls, events, marks, host_ns in steps:
            if expected not in (None, num_calls):
                raise ConfigError(
                    f"the model's calls change from step to step ({expected}, then {num_calls}), so its layers cannot "
                    "be timed"
                )
            at = self._device.times_ns(events)
            marked = np.array(marks).reshape(-1, 2)
            times.append(_step_times(num_calls, at, marked, at - np.array(host_ns), self.zero_s))
        return times


@dataclass(frozen=True)
class StepTimes:
    """One step, in seconds."""

    parts_s: NDArray[np.float64]
    """Between its marks."""
    calls_s: NDArray[np.float64]
    """[calls, 3]: forward, backward, and made again by the backward pass; NaN without."""
    lag_s: NDArray[np.float64]
    """[calls, 2]: from when the host issued it to when the device began it."""

    @property
    def whole_s(self) -> float:
        """Without the wait for the batch."""
        return float(self.parts_s[1:].sum())


def _step_times(
    num_calls: int, at_ns: NDArray[np.int64], marks: NDArray[np.int64], lag_ns: NDArray[np.int64], zero_s: float
) -> StepTimes:
    number, kind = marks.T
    calls_s, lag_s = np.full((num_calls, 3), np.nan), np.full((num_calls, 2), np.nan)
    begins, ends = kind == FORWARD_BEGIN, kind == FORWARD_END
    calls_s[number[begins], 0] = (at_ns[ends] - at_ns[begins]) / 1e9
    lag_s[number[begins], 0] = lag_ns[begins] / 1e9
    again_ns = np.where(kind == AGAIN_END, np.diff(at_ns, prepend=at_ns[:1]), 0)  # each end follows its begin
    for one in np.flatnonzero(kind == AGAIN_END):
        calls_s[number[one], 2] = np.nan_to_num(calls_s[number[one], 2]) + again_ns[one] / 1e9
    edges = np.flatnonzero((kind == BACKWARD) | (kind == MARK))
    took_ns = np.diff(at_ns[edges]) - np.diff(np.cumsum(again_ns)[edges])  # a mark follows the last
    is_backward = kind[edges[:-1]] == BACKWARD
    backward = edges[:-1][is_backward]
    calls_s[number[backward], 1] = took_ns[is_backward] / 1e9
    lag_s[number[backward], 1] = lag_ns[backward] / 1e9
    return StepTimes(np.diff(at_ns[kind == MARK]) / 1e9, np.maximum(calls_s - zero_s, 0.0), lag_s)


# -- with all issued before the device begins --------------------------------------------------------------

HOLD_MARGIN, HOLD_MORE_S, MOST_HOLD_S = 1.5, 0.002, 0.5
"""A device is held this many times as long as the host took to issue, and a little longer, but no longer than that."""
NUM_APART, NUM_EVENTS_APART = 5, 64


def stamping(device: Device) -> Callable[[], Event]:
    """What marks a point in the device's queue at the least cost."""
    stamp: Callable[[], Event] = getattr(device, "stamp", device.record)
    return stamp


def holding(device: Device, issued_ns: int) -> Mark:
    """A function that lets the device begin later than what is enqueued next is issued, which takes `issued_ns`.

    A host that marks each call issues slower than a fast device computes, which would idle between the calls, and the
    idle time would count as the calls'. A queue that fills up meanwhile (CUDA's takes about 1,024 launches) makes the
    host wait for the device's beginning, and it goes on that far ahead.
    """
    return device.occupying(min(HOLD_MARGIN * issued_ns / 1e9 + HOLD_MORE_S, MOST_HOLD_S))


def events_apart_s(device: Device, hold: Mark) -> float:
    """What lies between two events with nothing between them: each call's time holds as much that is not the call's."""
    stamp, apart = stamping(device), []
    for _ in range(NUM_APART):
        hold()
        at = device.times_ns([stamp() for _ in range(NUM_EVENTS_APART)])
        apart.append((int(at[-1]) - int(at[0])) / 1e9 / (NUM_EVENTS_APART - 1))
    return float(np.median(apart))


def held_whole(iteration: Iteration, hold: Mark, ends: list[Event]) -> int:
    """One iteration without the stopwatch, its two ends on the device's clock added to `ends`; returns the wait for its
    batch, ns."""
    stamp, numbers = stamping(iteration.device), itertools.count()
    marked = (1, len(iteration.parts))  # after the batch is there, and the last

    def mark() -> None:
        if next(numbers) in marked:
            ends.append(stamp())

    return iteration.run(mark, hold=hold)[0]


# -- alone -------------------------------------------------------------------------------------------------

NUM_BLOCKS = 5
MOST_CALLS, MOST_S = 100, 1.0
"""A call is repeated this often, or for so long, whichever is reached first: as the tool of 2019 did it."""
NUM_WARMING = 2


@dataclass(frozen=True)
class Repeated:
    block_s: NDArray[np.float64]
    """[NUM_BLOCKS] seconds of one call."""
    num_calls: int


NOTHING = Repeated(np.full(NUM_BLOCKS, np.nan), 0)


def repeated(device: Device, call: Callable[[], Any], limit_s: float, num_warming: int = NUM_WARMING) -> Repeated:
    """A call repeated MOST_CALLS times or for `limit_s`, whichever is reached first, but at least NUM_BLOCKS times."""
    for _ in range(num_warming):
        call()
    device.synchronize()
    begun = time.perf_counter()
    call()
    device.synchronize()
    once_s = max(time.perf_counter() - begun, 1e-7)
    each = max(1, min(MOST_CALLS, int(limit_s / once_s)) // NUM_BLOCKS)
    seconds = []
    for _ in range(NUM_BLOCKS):
        begin = device.record()
        for _ in range(each):
            call()
        end = device.record()
        device.synchronize()
        first, last = device.times_ns([begin, end])
        seconds.append((int(last) - int(first)) / 1e9 / each)
    return Repeated(np.array(seconds), each * NUM_BLOCKS)


class Alone:
    """A visitor that, before each call, repeats it on copies of its inputs: forward, then backward."""

    def __init__(self, device: Device, found: Found, limit_s: float, done: Callable[[int], None], *, trains: bool):
        self._device, self._found, self._limit_s, self._done, self._trains = device, found, limit_s, done, trains
        self._kept = set(found.kept)
        self._number = 0
        self.forward: list[Repeated] = []
        self.backward: list[Repeated] = []

    def visit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        number = self._number
        self._number += 1
        if number in self._kept:
            forward, backward = self._measure(site, call, args, kwargs, self._found.has_backward[number])
            self.forward.append(forward)
            self.backward.append(backward)
            self._done(len(self.forward))
        return call(*args, **kwargs)

    def _measure(
        self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords, backward: bool
    ) -> tuple[Repeated, Repeated]:
        leaves: list[Any] = (
            [] if site.module is None else [one for one in site.module.parameters() if one.requires_grad]
        )
        own_args, own_kwargs = copies_of((args, dict(kwargs)), [])
        forward = repeated(self._device, lambda: call(*own_args, **own_kwargs), self._limit_s)
        if not (backward and self._trains):
            return forward, NOTHING
        own_args, own_kwargs = copies_of((args, dict(kwargs)), leaves)
        result = call(*own_args, **own_kwargs)
        outputs = [one for one in _tensors_in(result) if one.requires_grad]
        gradients = [torch.ones_like(one) for one in outputs]

        def pull() -> None:
            torch.autograd.grad(outputs, leaves, gradients, retain_graph=True, allow_unused=True)

        return forward, repeated(self._device, pull, self._limit_s)


def copies_of(given: Any, leaves: list[Any]) -> Any:
    """The arguments with copies of their tensors, which can be changed in place; those that need a gradient hang on
    leaves of their own, which are added to `leaves`."""

    def copied(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        copy = one.detach().clone()
        if one.requires_grad:
            leaves.append(copy.requires_grad_())
            return copy.clone()
        return copy

    return torch.utils._pytree.tree_map(copied, given)
