"""Jobs of the layers study: each call's time within whole iterations, and of each call alone."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.devices.base import Device, Event
from loaderbench.loaders.base import Batch
from loaderbench.recording.model_layers import PARTS, AloneTimes, LayerTimes
from loaderbench.recording.progress import Phase, Report, StepsDone
from loaderbench.running.jobs.table import Layers, LayersRequest
from loaderbench.running.layers import (
    NOTHING,
    NUM_BLOCKS,
    Alone,
    Iteration,
    Mark,
    Repeated,
    StepTimes,
    Stopwatch,
    discover,
    events_apart_s,
    held_whole,
    holding,
    no_mark,
    repeated,
)
from loaderbench.running.models import model_on, of_pytorch, opened, pinned
from loaderbench.running.rig import Rig, once_a_second
from loaderbench.running.streams import close
from loaderbench.workloads.calls import CallTracer
from loaderbench.workloads.objective import tensors_of
from loaderbench.workloads.training import ModelWorkload

PURPOSE = "layers cannot be timed"
NUM_WARMING = 3
"""Iterations before the first round: the optimizer's state, the allocator's growth."""
ALONE_S = 60.0
"""Seconds for repeating all calls alone; a call gets its part of it, and at most MOST_S."""
MOST_ALONE_S = 1.0


@dataclass(frozen=True)
class _Opened:
    device: Device
    workload: ModelWorkload
    iteration: Iteration
    num_ahead: int
    """Batches that the loader has prepared when it rests."""


def _open(request: LayersRequest, stack: ExitStack, report: Report) -> _Opened:
    """The device, the model on it, and what feeds them."""
    if request.case is not None:
        rig = Rig(request.case, stack, report)
        report(Phase("starting the loader"))
        batches = _endless(rig.build_loader(rig.data, evict=request.case.subject.cache == "cold"))
        stack.callback(close, batches)
        first = next(batches)
        resident = Batch(first.inputs.clone(), first.targets.clone(), first.num_samples, 0)
        workload = of_pytorch(rig.workload, request.step, PURPOSE)
        return _Opened(rig.device, workload, Iteration(rig.device, workload, resident, batches), rig.buffer_batches)
    device = opened(request.step, stack)
    report(Phase("building the model"))
    workload = model_on(device, request.step, request.seed, PURPOSE)
    inputs, targets = workload.example("float32")
    resident = Batch(pinned(device, inputs), device.pin(targets), request.step.batch_size, 0)
    return _Opened(device, workload, Iteration(device, workload, resident, None), 0)


def _endless(loader: Any) -> Iterator[Batch]:
    """Batches of one epoch after the other."""
    epoch = 0
    while True:
        stream = loader.batches(epoch)
        try:
            yield from stream
        finally:
            close(stream)
        epoch += 1


def time_layers(request: LayersRequest, report: Report) -> Layers:
    """Iterations with and without a stopwatch on each call, in turns.

    Raises:
        LoaderbenchError: as ModelWorkload, its step, and the loader.
    """
    with ExitStack() as stack:
        opened = _open(request, stack, report)
        device, iteration = opened.device, opened.iteration
        tracer = CallTracer(opened.workload.model)
        report(Phase("calling each layer for the first time"))
        first = Stopwatch(device, None)
        with tracer.installed(first):
            iteration.run(calls=tracer)
        first.end_step()
        first_s = first.read(None)[0].calls_s[:, 0]
        report(Phase("finding the calls"))
        found = discover(iteration, tracer)
        warming_ns = []
        for _ in range(max(NUM_WARMING, device.num_search_steps)):
            warming_ns.append(sum(iteration.run()))
            report(Phase("warming up"))
        watch = Stopwatch(device, found.has_backward)
        facts = device.describe()
        # While the device is held a loader would get ahead, and the wait for its batches would vanish.
        held = not facts.on_host_cpus and iteration.batches is None
        hold = _hold(iteration, tracer, watch) if held else None
        turns = _Turns(iteration, tracer, watch, hold)
        took_s = statistics.median(warming_ns[-NUM_WARMING:]) / 1e9
        enough = math.ceil(request.least_round_s / (len(turns.kinds) * took_s))
        seen = _rounds(replace(request, num_steps=max(request.num_steps, enough)), turns, report)
        kept = found.kept
        inputs = iteration.copied_inputs(iteration.resident)
        input_bytes = sum(one.nbytes for one in tensors_of(inputs))
        return Layers(
            facts,
            opened.workload.describe(),
            input_bytes,
            tuple(found.calls),
            LayerTimes(
                load_s=seen.load_s,
                plain_s=seen.plain_s,
                timed_s=seen.timed_s,
                parts_s=seen.parts_s,
                forward_s=seen.spans[:, :, kept, 0],
                backward_s=seen.spans[:, :, kept, 1],
                recomputed_s=None if np.isnan(seen.spans[:, :, kept, 2]).all() else seen.spans[:, :, kept, 2],
                first_s=first_s[kept],
                lag_s=None if facts.on_host_cpus else np.median(seen.lags[:, :, kept], axis=(0, 1)).T,
                held_s=None if hold is None else seen.held_s,
                zero_s=None if hold is None else watch.zero_s,
            ),
        )


def _hold(iteration: Iteration, tracer: CallTracer, watch: Stopwatch) -> Mark:
    """Lets the device begin an iteration once all of it is issued; also sets the stopwatch's zero."""
    took_ns = []
    for _ in range(NUM_WARMING):
        with tracer.installed(watch):
            iteration.run(watch.mark, tracer)
        watch.end_step()
        took_ns.append(iteration.issued_ns)
    watch.read(None)
    hold = holding(iteration.device, max(took_ns))
    watch.zero_s = events_apart_s(iteration.device, hold)
    return hold


@dataclass
class _Seen:
    load_s: NDArray[np.float64]
    plain_s: NDArray[np.float64]
    timed_s: NDArray[np.float64]
    parts_s: NDArray[np.float64]
    spans: NDArray[np.float64]
    """[rounds, steps, calls, 2]"""
    lags: NDArray[np.float64]
    held_s: NDArray[np.float64]


class _Turns:
    """The kinds of iteration that take turns: without and with the stopwatch.

    A device of its own begins once all is issued (`hold`). It then has a turn more without the stopwatch, which the
    rows are held against, and the stopwatch marks the two passes in turns: half the events in an iteration.
    """

    def __init__(self, iteration: Iteration, tracer: CallTracer, watch: Stopwatch, hold: Mark | None) -> None:
        self.iteration, self.watch, self._tracer, self._hold = iteration, watch, tracer, hold
        self._ends: list[Event] = []
        self._timed_ns: list[int] = []
        self._plain_ns: list[int] = []
        self.kinds: list[Callable[[], int]] = [self._plain, partial(self._timed, True, True)]
        if hold is not None:
            passes = ((True, False), (False, True)) if iteration.trains else ((True, False),)
            self.kinds[1:] = [partial(held_whole, iteration, hold, self._ends)]
            self.kinds += [partial(self._timed, *one) for one in passes]

    def _plain(self) -> int:
        load_ns, ns = self.iteration.run()
        self._plain_ns.append(ns)
        return load_ns

    def _timed(self, forward: bool, backward: bool) -> int:
        self.watch.forward, self.watch.backward = forward, backward
        with self._tracer.installed(self.watch):
            load_ns, ns = self.iteration.run(self.watch.mark, self._tracer, self._hold or no_mark)
        self.watch.end_step()
        self._timed_ns.append(ns)
        return load_ns

    def read(self, seen: _Seen, number: int) -> None:
        """Put the times of a round where they belong."""
        times = self.watch.read(self.watch.num_known)
        steps = seen.plain_s.shape[1]
        num_passes = len(times) // steps
        for step in range(steps):
            each = times[step * num_passes : (step + 1) * num_passes]
            seen.spans[number, step] = np.fmax.reduce([one.calls_s for one in each])
            seen.lags[number, step] = np.fmax.reduce([one.lag_s for one in each])
            seen.parts_s[number, step, self.iteration.parts] = np.mean([one.parts_s for one in each], axis=0)
            seen.timed_s[number, step] = self._timed_ns[step] / 1e9 if self._hold is None else _mean_whole(each)
        seen.plain_s[number] = np.array(self._plain_ns) / 1e9
        if self._hold is not None:
            at_ns = self.iteration.device.times_ns(self._ends).reshape(steps, 2)
            seen.held_s[number] = (at_ns[:, 1] - at_ns[:, 0]) / 1e9
            # on the device's clock the wait would hold the hold
            seen.parts_s[number, :, PARTS.index("load")] = seen.load_s[number].reshape(steps, -1).mean(axis=1)
        for done in (self._ends, self._timed_ns, self._plain_ns):
            done.clear()


def _mean_whole(times: list[StepTimes]) -> float:
    return sum(one.whole_s for one in times) / len(times)


def _rounds(request: LayersRequest, turns: _Turns, report: Report) -> _Seen:
    """The rounds: an iteration of each kind in turns; whether the first or the last comes first alternates."""
    rounds, steps, num_calls, num_kinds = request.num_rounds, request.num_steps, turns.watch.num_known, len(turns.kinds)
    seen = _Seen(
        np.empty((rounds, num_kinds * steps)),
        np.empty((rounds, steps)),
        np.empty((rounds, steps)),
        np.full((rounds, steps, len(PARTS)), np.nan),
        np.empty((rounds, steps, num_calls, 3)),
        np.empty((rounds, steps, num_calls, 2)),
        np.empty((rounds, steps)),
    )
    done, total, said = 0, num_kinds * rounds * steps, time.monotonic()
    for number in range(rounds):
        turns.iteration.device.anchor()
        for step in range(steps):
            numbers = range(num_kinds)
            for kind in numbers if step % 2 == 0 else reversed(numbers):
                seen.load_s[number, num_kinds * step + kind] = turns.kinds[kind]() / 1e9
            done += num_kinds
            if time.monotonic() - said > 1 or done == total:
                said = time.monotonic()
                report(StepsDone(done, total))
        turns.read(seen, number)
    return seen


# -- alone -------------------------------------------------------------------------------------------------


def time_alone(request: LayersRequest, report: Report) -> AloneTimes:
    """Each call repeated on copies of the inputs that it has in an iteration, and each part of an iteration.

    Raises:
        LoaderbenchError: as `time_layers`.
    """
    with ExitStack() as stack:
        opened = _open(request, stack, report)
        device, iteration = opened.device, opened.iteration
        tracer = CallTracer(opened.workload.model)
        iteration.run()
        found = discover(iteration, tracer)
        for _ in range(device.num_search_steps):
            iteration.run()
        num_calls = len(found.calls)
        limit_s = min(MOST_ALONE_S, ALONE_S / (2 * num_calls))

        def done(number: int) -> None:
            report(StepsDone(number, num_calls))

        alone = Alone(device, found, limit_s, done, trains=iteration.trains)
        inputs = iteration.copied_inputs(iteration.resident)
        targets = iteration.copied_targets(iteration.resident)
        with tracer.installed(alone), tracer:
            opened.workload.forward(inputs, targets)
        parts = _parts_alone(opened, inputs, targets, once_a_second(report))
        both = (alone.forward, alone.backward)
        return AloneTimes(
            forward_s=np.array([one.block_s for one in alone.forward]),
            backward_s=np.array([one.block_s for one in alone.backward]),
            parts_s=np.array([parts.get(name, NOTHING).block_s for name in PARTS]),
            num_calls=np.array([[one.num_calls for one in each] for each in both], dtype=np.int64),
            limit_s=limit_s,
        )


def _parts_alone(opened: _Opened, inputs: Any, targets: Any, say: Callable[[str], None]) -> dict[str, Repeated]:
    """The parts that can be repeated by themselves; not `zero_grad`, which has nothing left to free the second time."""
    device, workload, iteration = opened.device, opened.workload, opened.iteration

    def measured(call: Callable[[], Any], num_warming: int = 1) -> Repeated:
        say("repeating the parts of an iteration")
        return repeated(device, call, MOST_ALONE_S, num_warming)

    parts = {
        "copy_inputs": measured(lambda: iteration.copied_inputs(iteration.resident)),
        "copy_targets": measured(lambda: iteration.copied_targets(iteration.resident)),
        "forward": measured(lambda: workload.forward(inputs, targets)),
    }
    if iteration.trains:
        parts["backward"] = _backward_alone(opened, inputs, targets)
        loss = workload.forward(inputs, targets)
        parts["monitor"] = measured(loss.item)
        if not workload.scales_dynamically:  # its scaler takes one update a backward pass
            parts["update"] = measured(workload.update)
    if iteration.batches is not None:
        batches = iteration.batches
        parts["load"] = measured(lambda: next(batches), 1 + opened.num_ahead)
    return parts


def _backward_alone(opened: _Opened, inputs: Any, targets: Any) -> Repeated:
    """The backward pass, after a forward pass each time."""
    device, workload = opened.device, opened.workload
    seconds: list[float] = []
    spent = 0.0
    while len(seconds) < NUM_BLOCKS or (spent < MOST_ALONE_S and len(seconds) < 100):
        loss = workload.forward(inputs, targets)
        workload.zero_gradients()
        device.synchronize()
        begin = device.record()
        workload.backward(loss)
        end = device.record()
        device.synchronize()
        first, last = device.times_ns([begin, end])
        seconds.append((int(last) - int(first)) / 1e9)
        spent += seconds[-1]
    blocks = np.array_split(np.array(seconds), NUM_BLOCKS)
    return Repeated(np.array([block.mean() for block in blocks]), len(seconds))
