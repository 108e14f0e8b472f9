"""The layers of a model: the rows of an iteration, and whether they can be trusted. docs/model.md defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.next_run import under_load
from loaderbench.analysis.statistics import UNBOUNDED, Blocks, blocks_of, draws_of_mean, interval
from loaderbench.cases.inputs import sample_inputs
from loaderbench.findings.table import words
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.model_layers import (
    PARTS,
    AloneTimes,
    CallFacts,
    LayerPhase,
    LayerRow,
    LayersFacts,
    LayersResult,
    LayerTimes,
    Part,
    TypeRow,
)
from loaderbench.recording.others import OtherPrograms
from loaderbench.recording.record import Estimate

CLOSURE = (0.95, 1.05)
"""Within which the rows must sum to the whole."""
MOST_STOPWATCH = 1.05
"""An iteration with the stopwatch ÷ one without."""
MOST_ISSUING = 1.05
"""An iteration as a user runs it ÷ the device's part of it: beyond, the device waits for launches."""
LEAST_LAG_S = 30e-6
"""A device that begins a call sooner after it was issued had nothing to do: CUDA's clock is tied to the host's within
about 10 µs, and a launch takes about 5 µs."""
BLOCKS_PER_ROUND = 4
METHOD = "the next run, by the rounds of this one, 95 %"
COPIES: tuple[tuple[Part, str], ...] = (("copy_inputs", "x to Input"), ("copy_targets", "y to the loss"))


def layers_of(facts: LayersFacts) -> LayersResult:
    """All figures of the calls measured so far."""
    times, step = facts.times, facts.step
    plain = None if times is None else _blocks(times.plain_s[:, :, None])
    timed = None if times is None else _blocks(times.timed_s[:, :, None])
    total = None if times is None else _blocks(_sum_of_rows(times)[:, :, None])
    held = None if times is None or times.held_s is None else _blocks(times.held_s[:, :, None])
    whole = plain if held is None else held
    closure = None if whole is None or total is None else _ratio(total, whole)
    cost = None if whole is None or timed is None else _ratio(timed, whole)
    step_s = None if times is None else _whole(times)
    device_s = None if held is None else _estimates(held)[0]
    rows = [] if times is None or step_s is None else _rows(facts, times, (device_s or step_s).value)
    caveats = _caveats(rows, closure, cost)
    if step_s is not None and device_s is not None and (ratio := step_s.value / device_s.value) > MOST_ISSUING:
        caveats.append(Caveat("issuing_takes_longer", {"ratio": ratio}))
    alone, num_parameters = facts.alone, sum(call.parameters for call in facts.calls)
    result = LayersResult(
        model=step.model,
        mode=step.mode,
        precision=step.precision,
        optimizer=None if facts.workload is None or facts.workload.optimizer is None else facts.workload.optimizer.name,
        batch_size=step.batch_size,
        input_shape=sample_inputs(step)[0].shape,
        device_name=step.device if facts.device is None else facts.device.name,
        data_set=None if facts.case is None else facts.case.title,
        environment=facts.environment,
        rows=tuple(rows),
        types=_types(rows),
        forward_s=_part(times, "forward"),
        backward_s=_part(times, "backward"),
        forward_backward_s=_part(times, "forward", "backward"),
        forward_alone_s=None if alone is None else _alone(alone.parts_s[PARTS.index("forward")]),
        backward_alone_s=None if alone is None else _alone(alone.parts_s[PARTS.index("backward")]),
        step_s=step_s,
        layers_over_whole=closure,
        timed_over_untimed=cost,
        disturbed=any(caveat.code in ("layers_do_not_sum", "stopwatch_takes_time") for caveat in caveats),
        required_bytes=facts.input_bytes + sum(map(required_bytes, facts.calls)),
        num_parameters=num_parameters,
        num_uncalled_parameters=_of_the_model(facts, num_parameters) - num_parameters,
        flops=sum(
            call.forward_flops + (call.backward_flops or 0) + (call.recomputed_flops or 0) for call in facts.calls
        ),
        num_steps=0 if times is None else times.plain_s.size,
        num_rounds=0 if times is None else len(times.plain_s),
        alone_limit_s=None if alone is None else alone.limit_s,
        alone_num_calls=_num_calls(alone),
        missing=_missing(facts),
        caveats=tuple(caveats),
        status=facts.status,
        failure=facts.failure,
        device_s=device_s,
    )
    return _under_load(result, facts.others) if facts.device is not None and facts.device.on_host_cpus else result


def _under_load(result: LayersResult, others: OtherPrograms | None) -> LayersResult:
    """The times of a step on the processors with the intervals that they have beside others on them."""

    def known(time_s: Estimate | None) -> Estimate | None:
        return None if time_s is None else under_load(time_s, others)

    return replace(
        result,
        rows=tuple(replace(row, in_step_s=known(row.in_step_s), alone_s=known(row.alone_s)) for row in result.rows),
        forward_s=known(result.forward_s),
        backward_s=known(result.backward_s),
        forward_backward_s=known(result.forward_backward_s),
        forward_alone_s=known(result.forward_alone_s),
        backward_alone_s=known(result.backward_alone_s),
        step_s=known(result.step_s),
    )


def _of_the_model(facts: LayersFacts, otherwise: int) -> int:
    known = None if facts.workload is None else facts.workload.num_parameters
    return otherwise if known is None else known


def required_bytes(call: CallFacts) -> int:
    """Caffe's count (net.cpp, `memory_used_`): every output, in-place ones too, and where several layers take it the
    outputs of the Split layer that Caffe puts there, one for each. What only arranges values anew makes none."""
    if call.reshapes:
        return 0
    return call.top_bytes * (1 + (call.num_consumers if call.num_consumers > 1 else 0))


def _num_calls(alone: AloneTimes | None) -> tuple[int, int] | None:
    if alone is None or not alone.num_calls.any():
        return None
    repeated = alone.num_calls[alone.num_calls > 0]
    return int(repeated.min()), int(repeated.max())


def _missing(facts: LayersFacts) -> dict[str, str]:
    missing = {} if facts.case is not None else {"load_dataset": words("no_data_set", {})}
    if facts.times is not None and facts.alone is None:
        missing["alone"] = facts.no_alone or words("was_interrupted", {})
    return missing


# -- rows ------------------------------------------------------------------------------------------------


def _rows(facts: LayersFacts, times: LayerTimes, whole_s: float) -> list[LayerRow]:
    """In the order of an iteration. `whole_s`: what shares are of, an iteration in the time that the rows are measured
    in: the device's, where all was issued before it began."""
    trains = facts.step.mode == "train"
    loads = facts.case is not None
    rows = [_part_row(facts, times, "load", "load_dataset", whole_s, known=loads)]
    rows += [_part_row(facts, times, part, f"let_data ({name})", whole_s) for part, name in COPIES]
    first = np.maximum(times.first_s - np.median(times.forward_s, axis=(0, 1)), 0.0)
    for call, seconds in zip(facts.calls, first.tolist(), strict=True):
        once = Estimate(seconds, None, None, "s", 1, "the first call minus the median of the later calls")
        rows.append(LayerRow(call.name, call.type, "set_up", call.call, once, None, None, reshapes=call.reshapes))
    rows += _call_rows(facts, times, "forward", whole_s)
    if trains:
        rows.append(_part_row(facts, times, "zero_grad", "prepare_backward", whole_s))
        rows += reversed(_call_rows(facts, times, "backward", whole_s))
        rows += reversed(_recomputed_rows(facts, times, whole_s))
        rows.append(_part_row(facts, times, "update", "update", whole_s))
        rows.append(_part_row(facts, times, "monitor", "monitor_loss", whole_s))
    rest = _blocks((times.timed_s - _sum_of_rows(times))[:, :, None])
    left = _estimates(rest)[0]
    return [*rows, LayerRow("rest", "rest", "rest", 1, left, None, left.value / whole_s)]


def _part_row(
    facts: LayersFacts, times: LayerTimes, part: Part, name: str, whole_s: float, *, known: bool = True
) -> LayerRow:
    in_step = None
    if known:
        in_step = _estimates(_blocks(times.load_s[:, :, None]))[0] if part == "load" else _part(times, part)
    alone = None
    if facts.alone is not None and known:
        alone = _alone(facts.alone.parts_s[PARTS.index(part)])
    share = None if in_step is None else in_step.value / whole_s
    kind = part if part not in ("forward", "backward") else "rest"
    return LayerRow(name, "", kind, 1, in_step, alone, share)


def _call_rows(facts: LayersFacts, times: LayerTimes, phase: LayerPhase, whole_s: float) -> list[LayerRow]:
    forward = phase == "forward"
    table = times.forward_s if forward else times.backward_s
    estimates = _estimates(_blocks(np.nan_to_num(table)))
    rows = []
    for number, call in enumerate(facts.calls):
        known = not math.isnan(table[0, 0, number])
        if not known and not forward:
            continue
        alone = None
        if facts.alone is not None:
            alone = _alone((facts.alone.forward_s if forward else facts.alone.backward_s)[number])
        lag = None if times.lag_s is None else float(times.lag_s[0 if forward else 1, number])
        in_step = estimates[number]
        rows.append(
            LayerRow(
                name=call.name,
                type=call.type,
                phase=phase,
                call=call.call,
                in_step_s=in_step,
                alone_s=alone,
                share_fraction=in_step.value / whole_s,
                output_shape=call.output_shape,
                parameters=call.parameters if forward else None,
                flops=call.forward_flops if forward else call.backward_flops,
                required_bytes=required_bytes(call) if forward else None,
                reshapes=call.reshapes,
                waits_for_host=None if lag is None or math.isnan(lag) else lag < LEAST_LAG_S,
            )
        )
    return rows


def _recomputed_rows(facts: LayersFacts, times: LayerTimes, whole_s: float) -> list[LayerRow]:
    """Calls that the backward pass makes again."""
    if times.recomputed_s is None:
        return []
    estimates = _estimates(_blocks(np.nan_to_num(times.recomputed_s)))
    return [
        LayerRow(
            name=call.name,
            type=call.type,
            phase="recompute",
            call=call.call,
            in_step_s=in_step,
            alone_s=None,
            share_fraction=in_step.value / whole_s,
            output_shape=call.output_shape,
            flops=call.recomputed_flops,
            reshapes=call.reshapes,
        )
        for number, (call, in_step) in enumerate(zip(facts.calls, estimates, strict=True))
        if not math.isnan(times.recomputed_s[0, 0, number])
    ]


def _types(rows: Sequence[LayerRow]) -> tuple[TypeRow, ...]:
    types = []
    for name in dict.fromkeys(row.type for row in rows if row.phase == "forward"):
        forward = [row for row in rows if row.type == name and row.phase == "forward"]
        backward = [row for row in rows if row.type == name and row.phase == "backward"]
        both = [*forward, *backward]
        types.append(
            TypeRow(
                type=name,
                num_calls=len(forward),
                forward_s=_seconds(forward),
                backward_s=_seconds(backward) if backward else None,
                share_fraction=math.fsum(row.share_fraction or 0.0 for row in both),
                parameters=sum(row.parameters or 0 for row in both),
                flops=sum(row.flops or 0 for row in both),
            )
        )
    return tuple(sorted(types, key=lambda one: -one.share_fraction))


def _seconds(rows: Sequence[LayerRow]) -> float:
    return math.fsum(row.in_step_s.value for row in rows if row.in_step_s is not None)


# -- figures ---------------------------------------------------------------------------------------------


def _sum_of_rows(times: LayerTimes) -> NDArray[np.float64]:
    """[rounds, steps] seconds of all rows but the rest and the wait for the batch: each call, and what is around."""
    around = [number for number, name in enumerate(PARTS) if name not in ("load", "forward", "backward")]
    calls = np.nansum(times.forward_s, axis=2) + np.nansum(times.backward_s, axis=2)
    if times.recomputed_s is not None:
        calls = calls + np.nansum(times.recomputed_s, axis=2)
    return np.asarray(calls + np.nansum(times.parts_s[:, :, around], axis=2))


def _blocks(table: NDArray[np.float64]) -> Blocks:
    """[rounds, steps, K]: a round is a segment."""
    return blocks_of([list(one.T) for one in table], blocks_per_segment=BLOCKS_PER_ROUND)


def _estimates(blocks: Blocks) -> list[Estimate]:
    """Of each of the K quantities, seconds a step, with the interval of the next run's."""
    found = []
    for mean, low, high in zip(blocks.means().tolist(), *(end.tolist() for end in blocks.of_next_run()), strict=True):
        if math.isnan(low):
            found.append(Estimate(mean, None, None, "s", len(blocks), METHOD))
            continue
        bounded = high <= UNBOUNDED * abs(mean)
        found.append(Estimate(mean, max(low, min(mean, 0.0)), high if bounded else None, "s", len(blocks), METHOD))
    return found


def _whole(times: LayerTimes) -> Estimate:
    """An iteration without the stopwatch; the wait for its batch is that of all iterations."""
    load_s = times.load_s.reshape(*times.plain_s.shape, -1).mean(axis=2)
    return _estimates(_blocks((times.plain_s + load_s)[:, :, None]))[0]


def _part(times: LayerTimes | None, *names: Part) -> Estimate | None:
    """Parts of the iteration together; None where it has none of them."""
    if times is None:
        return None
    table = times.parts_s[:, :, [PARTS.index(name) for name in names]]
    if np.isnan(table).all():
        return None
    return _estimates(_blocks(np.nansum(table, axis=2)[:, :, None]))[0]


def _alone(block_s: NDArray[np.float64]) -> Estimate | None:
    if np.isnan(block_s).any():
        return None
    return _estimates(blocks_of([[block_s]], blocks_per_segment=len(block_s)))[0]


def _ratio(over: Blocks, under: Blocks) -> Estimate:
    draws = draws_of_mean(over, 0)[:, 0] / draws_of_mean(under, 1)[:, 0]
    value = float(over.means()[0] / under.means()[0])
    return interval(value, np.asarray(draws), "ratio", min(len(over), len(under)))


def _caveats(rows: Sequence[LayerRow], closure: Estimate | None, cost: Estimate | None) -> list[Caveat]:
    caveats = []
    if closure is not None and not CLOSURE[0] <= closure.value <= CLOSURE[1]:
        caveats.append(Caveat("layers_do_not_sum", {"ratio": closure.value, "low": closure.low, "high": closure.high}))
    if cost is not None and cost.value > MOST_STOPWATCH:
        caveats.append(Caveat("stopwatch_takes_time", {"ratio": cost.value, "low": cost.low, "high": cost.high}))
    waiting = [row for row in rows if row.waits_for_host]
    if waiting:
        share = math.fsum(row.share_fraction or 0.0 for row in waiting)
        caveats.append(Caveat("layers_hold_gaps", {"num": len(waiting), "share": share}))
    return caveats
