"""Jobs of the layers study: each call's time within whole iterations, and of each call alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.devices.base import Device
from loaderbench.loaders.base import Batch
from loaderbench.recording.model_layers import PARTS, AloneTimes, LayerTimes
from loaderbench.recording.progress import Phase, Report, StepsDone
from loaderbench.running.jobs.table import Layers, LayersRequest
from loaderbench.running.layers import NOTHING, NUM_BLOCKS, Alone, Iteration, Repeated, Stopwatch, discover, repeated
from loaderbench.running.models import model_on, of_pytorch, opened
from loaderbench.running.rig import Rig, once_a_second
from loaderbench.running.streams import close
from loaderbench.workloads.calls import CallTracer
from loaderbench.workloads.training import ModelWorkload

PURPOSE = "layers could be followed"
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
    resident = Batch(device.pin(inputs), device.pin(targets), request.step.batch_size, 0)
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
        for _ in range(max(NUM_WARMING, device.num_search_steps)):
            iteration.run()
            report(Phase("warming up"))
        seen = _rounds(request, iteration, tracer, Stopwatch(device, found.has_backward), report)
        facts = device.describe()
        kept = found.kept
        inputs = iteration.copied_inputs(iteration.resident)
        return Layers(
            facts,
            opened.workload.describe(),
            int(inputs.numel() * inputs.element_size()),
            tuple(found.calls),
            LayerTimes(
                load_s=seen.load_s,
                plain_s=seen.plain_s,
                timed_s=seen.timed_s,
                parts_s=seen.parts_s,
                forward_s=seen.spans[:, :, kept, 0],
                backward_s=seen.spans[:, :, kept, 1],
                first_s=first_s[kept],
                lag_s=None if facts.on_host_cpus else np.nanmedian(seen.lags[:, :, kept], axis=(0, 1)).T,
            ),
        )


@dataclass
class _Seen:
    load_s: NDArray[np.float64]
    plain_s: NDArray[np.float64]
    timed_s: NDArray[np.float64]
    parts_s: NDArray[np.float64]
    spans: NDArray[np.float64]
    """[rounds, steps, calls, 2]"""
    lags: NDArray[np.float64]


def _rounds(
    request: LayersRequest, iteration: Iteration, tracer: CallTracer, watch: Stopwatch, report: Report
) -> _Seen:
    """The rounds: an iteration without and one with the stopwatch in turns; which comes first alternates."""
    rounds, steps, num_calls = request.num_rounds, request.num_steps, watch.num_known
    seen = _Seen(
        np.empty((rounds, 2 * steps)),
        np.empty((rounds, steps)),
        np.empty((rounds, steps)),
        np.full((rounds, steps, len(PARTS)), np.nan),
        np.empty((rounds, steps, num_calls, 2)),
        np.empty((rounds, steps, num_calls, 2)),
    )
    done, total, said = 0, 2 * rounds * steps, time.monotonic()
    for number in range(rounds):
        iteration.device.anchor()
        for step in range(steps):
            for timed in (False, True) if step % 2 == 0 else (True, False):
                if timed:
                    with tracer.installed(watch):
                        load_ns, ns = iteration.run(watch.mark, tracer)
                    watch.end_step()
                else:
                    load_ns, ns = iteration.run()
                (seen.timed_s if timed else seen.plain_s)[number, step] = ns / 1e9
                seen.load_s[number, 2 * step + timed] = load_ns / 1e9
            done += 2
            if time.monotonic() - said > 1 or done == total:
                said = time.monotonic()
                report(StepsDone(done, total))
        for step, times in enumerate(watch.read(num_calls)):
            seen.spans[number, step], seen.lags[number, step] = times.calls_s, times.lag_s
            seen.parts_s[number, step, iteration.parts] = times.parts_s
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
