"""One case, measured in one process: builds it, interleaves its arms, returns the raw facts.

The process itself, its pipe and its end are child.py's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from loaderbench import plugins
from loaderbench.analysis.statistics import half_width_fraction, is_steady
from loaderbench.cases.case import SHORT_RUN_STEPS, Case
from loaderbench.devices.base import Device
from loaderbench.devices.select import open_device
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.images.shards import DataSet, open_data_set
from loaderbench.loaders import fetch
from loaderbench.loaders.base import SPAN_FIELDS, Batch, Loader, LoaderContext
from loaderbench.machine import usable_cpus
from loaderbench.recording.types import SHORT, STEP_FIELDS, Caveat, Recording, Segment
from loaderbench.running.cache import CacheKeeper, OnDone, RamCopy
from loaderbench.running.ceiling import PROBE_S, probe_ceiling
from loaderbench.running.kernel_window import num_steps_for, trace_kernels
from loaderbench.running.link import link_bytes_per_s
from loaderbench.running.loop import StepLoop
from loaderbench.running.overhead import loop_overhead_s
from loaderbench.running.prep_probe import probe_preparation
from loaderbench.samplers.sources import StorageCounter
from loaderbench.workloads import build_workload
from loaderbench.workloads.base import Workload

if TYPE_CHECKING:
    from loaderbench.testbeds.injections import Injection

Report = Callable[[str, Any], None]

MIN_WINDOW_STEPS, MAX_MIN_WINDOW_STEPS = 5, 64
MAX_WARMUP_S = 3.0
TARGET_ROUNDS = 4
LONGEST_WINDOW_S = 10.0
MIN_ROUNDS = 3
STORAGE_ARMS = ("real", "free", "fetch", SHORT)
"""Those that read the data set where it lies."""
SHORT_RUNS = 5
"""Short runs of a case, the first always, the others while they fit into the case's seconds."""
IDLE_S, IDLE_CPU_FRACTION = 0.5, 0.05
"""A loader that used less of one core and read nothing for so long has filled its buffer."""
MIN_SEGMENT_S, MAX_SEGMENT_S = 0.25, 2.5
PROBE_FROM = 0.10
"""Decoders are timed where preparation takes at least this fraction of a step with the data in memory."""
CEILING_FRACTION = 0.1
"""Of the measuring time, for the storage's ceiling; at most ceiling.PROBE_S."""
COPY_PART, CEILING_PART, ARMS_PART = 0.25, 0.15, 0.6
"""Of `max_bytes`, for the copy in memory, for the storage's ceiling, and for the arms that read the storage."""
COPY_BATCHES = 128
"""Batches of images that are copied into memory: a large set is not copied whole."""
HELD_STEPS, MAX_HOLD_S = 3, 0.5
"""Steps of each `device` window that are held back until all of them is enqueued, and the longest hold."""
SETTLE_S = 0.25
"""Length of a window as `_warm_up` takes it for the kernel trace: it then gives up within a second."""
NUM_HOST_BATCHES = 3
"""Ready batches that the `host` arm cycles through, so that one does not stay in the processor's cache."""


def measure(case: Case, report: Report, injection: dict[str, Any] | None = None) -> Recording:
    """Measure the case's arms, interleaved, and return the raw facts.

    `injection`: a slow-down of known size to build in (the self-test's; Injection.to_json). Nothing of it is recorded.

    Raises:
        LoaderbenchError: what the user can mend, in one line.
    """
    with ExitStack() as stack:
        measurement = _Measurement(case, report, stack, injection)
        try:
            return measurement.run()
        except CaseFailed as error:
            raise CaseFailed(measurement.in_terms_of_the_data_set(str(error))) from error


def once_a_second(report: Report) -> Callable[[str], None]:
    """Reports a phase, once a second at most: a supervisor that hears nothing gives up."""
    said = time.monotonic()

    def on_progress(phase: str) -> None:
        nonlocal said
        if time.monotonic() - said > 1:
            said = time.monotonic()
            report("phase", phase)

    return on_progress


class Rig:
    """A case's images, device and workload, opened, and its loaders, built on demand. Closed with `stack`."""

    def __init__(self, case: Case, stack: ExitStack, report: Report, injection: dict[str, Any] | None = None) -> None:
        self._case, self._stack = case, stack
        self._module = plugins.load("loaders", case.loader)
        report("phase", "listing the images")
        progress = once_a_second(report)
        self.data = open_data_set(
            case.dataset,
            getattr(self._module, "DATA_FORMAT", None),
            lambda num: progress(f"listing the images: {num:,} so far"),
        )
        self.images = self.data.images
        report("phase", "opening the device")
        self.device: Device = open_device(case)
        stack.callback(self.device.close)
        self.workload: Workload = build_workload(case, self.device, len(self.images.classes))
        self._slowdown: Injection | None = None
        self._pin = self.device.kind == "cuda"
        if injection:
            from loaderbench.testbeds.injections import Injection

            self._slowdown = Injection.from_json(injection)
            self._pin = self._pin and not self._slowdown.pageable
            self.device = self._slowdown.wrap_device(self.device)
            self.workload = self._slowdown.wrap_workload(self.workload, self.device)

    def context(self, data: DataSet, *, evict: bool) -> LoaderContext:
        """What the case's loader over `data` is told. `evict`: drop each file's pages once read."""
        case = self._case
        return LoaderContext(
            images=data.images,
            shards=data.shards,
            batch_size=case.batch_size,
            workers=case.workers,
            prefetch=case.prefetch,
            decoder=case.decoder,
            input_size=case.input_size,
            mode=case.mode,
            output=case.output,
            seed=case.seed,
            device=case.device,
            pin_memory=self._pin,
            evict_after_read=evict,
            keep_evictable=case.cache != "warm",
            max_failure_fraction=case.max_failure_fraction,
            decoder_options={
                **case.decoder_options,
                **({} if case.decode_scale is None else {"scale": case.decode_scale}),
            },
            slowdown=self._slowdown,
        )

    def build_loader(self, data: DataSet, *, evict: bool) -> Loader:
        """The case's loader over `data`."""
        options = plugins.parse_options(self._module, self._case.loader_options)
        loader: Loader = self._module.build(options, self.context(data, evict=evict))
        self._stack.callback(loader.close)
        return loader

    def build_fetch(self, data: DataSet, *, evict: bool, readers: int) -> Loader:
        """The same files by `readers` threads that only read."""
        loader: Loader = fetch.FetchLoader(replace(self.context(data, evict=evict), workers=readers))
        self._stack.callback(loader.close)
        return loader


class _Measurement:
    def __init__(self, case: Case, report: Report, stack: ExitStack, injection: dict[str, Any] | None) -> None:
        self.case, self.report, self.stack = case, report, stack
        self.caveats: list[Caveat] = []
        self.facts: dict[str, Any] = {}
        self.segments: list[Segment] = []
        self.failures: list[tuple[str, str]] = []
        self.rig = Rig(case, stack, report, injection)
        self.data, self.images = self.rig.data, self.rig.images
        self.device, self.workload = self.rig.device, self.rig.workload
        self.loaders: dict[str, Loader] = {}
        self.cache = CacheKeeper(case.cache, self.data, self._progress)
        self.storage = StorageCounter(case.dataset)
        stack.callback(self.storage.close)
        self.epoch = 0

    def run(self) -> Recording:
        case = self.case
        self._prepare_cache()
        self._collect_ready_batches()
        self.device.reset_peak_memory()
        self._measure_rounds()
        if case.buffer_ratio is not None:
            self._measure_short_runs()
        if self.probes_ceiling:
            self.report("phase", "probing the storage")
            self.facts["ceiling"] = probe_ceiling(
                self.data.files, counter=self.storage, deadline_s=self.ceiling_s, max_bytes=self._part(CEILING_PART)
            )
        if self._prep_matters():
            self.report("phase", "timing the decoders")
            self.facts["prep_probe"] = probe_preparation(self.rig.context(self.ram.data, evict=False), usable_cpus())
        self.facts |= {
            "peak_memory_bytes": self.device.peak_memory_bytes(),  # of the arms, before anything else is put there
            "loop_overhead_s": loop_overhead_s(self.device),
        }
        if "host" in self.case.arms and not self.owns_transfer:
            try:
                self.facts["link_bytes_per_s"] = link_bytes_per_s(self.device)
            except (CaseFailed, RuntimeError) as error:  # no room for it: the arms are measured and stay
                reason = str(error).strip().splitlines()[0]
                self.caveats.append(Caveat("link_not_measured", f"the link's ceiling was not measured: {reason}"))
        begun = time.perf_counter()
        self.facts["no_kernels"] = self._trace_kernels()
        self.facts["tracing_s"] = time.perf_counter() - begun
        describe = getattr(self._loader("real"), "describe", None)
        self.facts |= {
            "device": self.device.describe(),
            "workload": self.workload.describe(),
            "num_images": len(self.images),
            "image_bytes": int(self.images.sizes.sum()),
            "loader": {
                "decodes": self.reads_files,
                "owns_transfer": self.owns_transfer,
                "num_readers": fetch.readers_of(self._loader("real"), case.lanes),
                "description": {"loader": case.loader} if describe is None else describe(),
                "no_stage_times": getattr(self._loader("real"), "no_stage_times", None),
            },
            "num_failures": len(self.failures),
            "failures": [list(failure) for failure in dict.fromkeys(self.failures)][:100],
            "storage_source": self.storage.source,
            "storage_reason": self.storage.reason,
            "cache": self.cache.facts(),
        }
        return Recording(self.segments, self.facts, self.caveats)

    def in_terms_of_the_data_set(self, message: str) -> str:
        """The message with the paths of copies in memory replaced by those of the user's own files."""
        return message.replace(self.ram.data.images.root, self.images.root) if hasattr(self, "ram") else message

    def _part(self, fraction: float) -> int | None:
        """So much of the bytes that may be read from the storage; None where there is no limit."""
        return None if self.case.max_bytes is None else int(fraction * self.case.max_bytes)

    def _window_steps(self) -> int:
        """The fewest steps of a window. Workers hand over in bursts: it holds two whole rounds of them."""
        return min(max(MIN_WINDOW_STEPS, 2 * self.case.workers), MAX_MIN_WINDOW_STEPS)

    def _most_steps(self) -> int:
        """Steps that a segment may take of the storage, so that all of them stay within `max_bytes`.

        Raises:
            ConfigError: so few bytes that nothing can be measured with them.
        """
        case = self.case
        if case.max_bytes is None or not self.reads_files:
            return sys.maxsize
        total = int(self.data.files.sizes.sum())
        if case.cache == "warm" and total > case.max_bytes:
            raise ConfigError(f"--cache warm reads all of the data set once, {total:,} bytes: raise --max-bytes")
        arms = [arm for arm in self._arms() if arm in STORAGE_ARMS]
        segments = 1 if self.as_is_once else max(1, len(arms)) * TARGET_ROUNDS
        batch_bytes = self.data.sample_page_bytes * case.batch_size
        # What is prepared ahead, or half read, when the segment ends, was read as well.
        ahead = case.lanes * (case.prefetch + 2)
        steps = int(ARMS_PART * case.max_bytes / (segments * batch_bytes)) - ahead
        fewest = case.lanes + 1 + (case.warmup or 0) + self._window_steps()
        if steps < fewest:
            needed = segments * batch_bytes * (fewest + ahead) / ARMS_PART
            raise ConfigError(
                f"--max-bytes {case.max_bytes} is too little for {segments} windows of {fewest} batches each: "
                f"give at least {needed / 1e6:,.0f}M, or a smaller --batch-size, fewer --workers, or --arms real"
            )
        return steps

    def _progress(self, what: str) -> OnDone:
        """Tells how far long work over the files is."""
        progress = once_a_second(self.report)
        return lambda done, total: progress(f"{what}: {done:,} of {total:,}")

    # -- what the arms are fed ---------------------------------------------------------------------------

    def _loader(self, source: str) -> Loader:
        """The loader of `real`, `ram` or `fetch`, built at first use and kept."""
        if source not in self.loaders:
            begun = time.perf_counter_ns()
            cold = self.case.cache == "cold"
            if source == "fetch":
                readers = fetch.readers_of(self._loader("real"), self.case.lanes)
                self.loaders[source] = self.rig.build_fetch(self.data, evict=cold, readers=readers)
            elif source == "ram":
                self.loaders[source] = self.rig.build_loader(self.ram.data, evict=False)
            else:
                self.loaders[source] = self.rig.build_loader(self.data, evict=cold)
            self.facts[f"build_s_{source}"] = (time.perf_counter_ns() - begun) / 1e9
        return self.loaders[source]

    def _prepare_cache(self) -> None:
        measured_once = self.cache.survey()  # before a loader looks into the files
        loader = self._loader("real")
        self.reads_files, self.owns_transfer = loader.decodes, loader.owns_transfer
        wanted = set(self.case.arms)
        self.as_is_once = self.reads_files and measured_once
        self.most_steps = self._most_steps()
        if self.as_is_once and "real" in wanted:
            # The other arms would fill the page cache: what the user has now can be measured only once, first.
            self.report("phase", "measuring the data set as it is")
            self._segment("real", 0, self.case.duration_s * 0.3, self.case.steps)
        if self.reads_files and wanted & {"ram", "host", "device"} - {"device"}:
            self.report("phase", "copying images into memory")
            progress = self._progress("copying images into memory")
            copy = RamCopy(self.data, self._batch_bytes(), self._copy_bytes(), progress)
            self.ram: RamCopy = self.stack.enter_context(copy)
            self.facts["ram"] = self.ram.facts()
        if self.reads_files:
            self.stack.enter_context(self.cache)

    def _copy_bytes(self) -> int:
        """Most bytes to copy into memory: enough that no image comes again within a window."""
        allowed = self._part(COPY_PART)
        files = self.data.files.sizes
        # Each worker wants containers of its own, of which there may be more than that many batches hold.
        enough = max(
            int(COPY_BATCHES * self.case.batch_size * self.data.sample_page_bytes),
            2 * self.case.lanes * int(files.max()),
        )
        return enough if allowed is None else min(enough, allowed)

    def _batch_bytes(self) -> int:
        side = self.case.input_size or 1024
        pixel = 4 if self.case.output == "float32" else 1
        return self.case.batch_size * 3 * side * side * pixel * (self.case.buffer_batches + 4)

    def _collect_ready_batches(self) -> None:
        """Take real batches for the `device` and `host` arms; they have the loader's own shape and type."""
        self.report("phase", "starting the loader")
        source = "ram" if hasattr(self, "ram") else "real"
        loader = self._loader(source)
        wanted = set(self.case.arms)
        if not wanted & {"device", "host"}:
            return
        stream = loader.batches(self.epoch)
        first = next(stream)
        if self.device.kind == "cuda" and not self.owns_transfer:
            self.facts["pinned"] = bool(first.inputs.is_pinned())
        kept = [_copy_of(first), *(_copy_of(next(stream)) for _ in range(NUM_HOST_BATCHES - 1))]
        _close(stream)
        if not self.owns_transfer:
            for batch in kept:
                batch.inputs, batch.targets = self.device.pin(batch.inputs), self.device.pin(batch.targets)
        self.ready = kept
        first = kept[0]
        self.resident = first
        if not self.owns_transfer:
            inputs, targets = self.device.copy_in(first.inputs, first.targets)
            self.device.synchronize()
            self.resident = Batch(inputs, targets, first.num_samples, 0)
        self.facts["batch_bytes"] = int(first.inputs.nbytes + first.targets.nbytes)

    def _arms(self) -> list[str]:
        """The arms of a round, in order. `prep` is `free` on the files in memory, where `free` reads cold ones."""
        wanted = set(self.case.arms)
        arms = ["device"] if "device" in wanted else []
        if "host" in wanted and not self.owns_transfer:
            arms.append("host")
        if "ram" in wanted and self.reads_files:
            arms.append("ram")
        if "real" in wanted and not self.as_is_once:
            arms.append("real")
        if "free" in wanted:
            arms.append("prep" if self.as_is_once else "free")
        if self.reads_files and self.case.cache == "cold" and "ram" in wanted and "free" in wanted:
            arms.append("prep")
        if "fetch" in wanted and self.reads_files and not self.as_is_once:
            arms.append("fetch")
        return arms

    def _prep_matters(self) -> bool:
        """Whether advice needs the decoders' times: preparation takes enough of the step (PROBE_FROM), or the copy does
        and smaller pixels, which are also prepared faster, would mend it."""
        if self.case.decoder is None or self.data.shards is not None or not hasattr(self, "ram"):
            return False
        means = {
            arm: float(np.mean(np.concatenate([_durations(one) for one in self.segments if one.arm == arm])))
            for arm in {segment.arm for segment in self.segments} & {"device", "host", "ram"}
        }
        if not {"host", "ram"} <= means.keys():
            return False
        copied = means["host"] - means.get("device", means["host"]) if self.case.output == "float32" else 0.0
        return max(means["ram"] - means["host"], copied) >= PROBE_FROM * means["ram"]

    # -- the measuring -----------------------------------------------------------------------------------

    def _measure_rounds(self) -> None:
        case = self.case
        arms = self._arms()
        self.probes_ceiling = self.reads_files and case.cache == "cold" and "fetch" in arms
        self.ceiling_s = min(PROBE_S, CEILING_FRACTION * case.duration_s) if self.probes_ceiling else 0.0
        budget_s = case.duration_s - self.ceiling_s - sum(segment.facts["wall_s"] for segment in self.segments)
        if not arms:  # what there was to measure could be measured only once
            self.facts |= {"stopped_by": "measured_once", "num_rounds": 1, "arms": ["real"]}
            return
        segment_s = float(np.clip(budget_s / (len(arms) * TARGET_ROUNDS), MIN_SEGMENT_S, MAX_SEGMENT_S))
        num_rounds = 1 if case.steps is not None and case.steps < MIN_ROUNDS * MIN_WINDOW_STEPS else MIN_ROUNDS
        steps = None if case.steps is None else -(-case.steps // num_rounds)
        deadline = time.perf_counter() + budget_s
        stopped = "duration"
        number = 0
        while True:
            for arm in arms:
                if number and time.perf_counter() > deadline:
                    break
                short = 0.5 if arm in ("device", "host", "fetch") else 1.0
                self._segment(arm, number, segment_s * short, steps)
            number += 1
            if steps is not None and number >= num_rounds:
                stopped = "steps"
                break
            if time.perf_counter() > deadline:
                break
            if number >= TARGET_ROUNDS and self.most_steps < sys.maxsize:
                stopped = "max_bytes"
                break
            if steps is None and number >= MIN_ROUNDS and self._precise(arms):
                stopped = "ci_target"
                break
        self.facts |= {"stopped_by": stopped, "num_rounds": number, "arms": arms}

    def _measure_short_runs(self) -> None:
        """Runs of a fixed number of steps that begin with a full prefetch buffer (S-A4 of features.md)."""
        if self.as_is_once:
            message = "the data set's own cache state can be measured only once: --cache cold or warm"
            self.caveats.append(Caveat("short_runs_not_measured", message))
            return
        deadline = time.perf_counter() + self.case.duration_s
        for number in range(SHORT_RUNS):
            begun = time.perf_counter()
            self._segment(SHORT, number, 0.0, self.case.steps or SHORT_RUN_STEPS)
            ended = time.perf_counter()
            if ended + (ended - begun) > deadline:
                break

    def _fill_buffer(self, loop: StepLoop) -> tuple[int, bool]:
        """Take one batch, then wait until the loader rests. Returns (1, whether it came to rest)."""
        loop.run(1, sys.maxsize)
        self.device.synchronize()
        real = [segment for segment in self.segments if segment.arm == "real"]
        step_s = float(np.mean(_durations(real[-1]))) if real else 1.0
        limit = time.monotonic() + 4 * self.case.buffer_batches * step_s + 10 * IDLE_S
        before, seen = _work_done(), time.monotonic()
        looking = 2 * (_work_done()[1] - before[1])  # looking reads, too
        while time.monotonic() < limit:
            time.sleep(IDLE_S)
            now, at = _work_done(), time.monotonic()
            self.report("phase", "filling the prefetch buffer")
            if now[0] - before[0] < IDLE_CPU_FRACTION * (at - seen) and now[1] - before[1] <= looking:
                return 1, True
            before, seen = now, at
        return 1, False

    def _precise(self, arms: list[str]) -> bool:
        """Every step time is known to within the target."""
        for arm in set(arms) & {"device", "host", "ram", "real", "free"}:
            durations = [_durations(segment) for segment in self.segments if segment.arm == arm]
            if half_width_fraction(durations, self.case.lanes) > self.case.ci_target:
                return False
        return True

    def _batches(self, arm: str) -> tuple[Iterator[Batch], Loader | None]:
        if arm == "device":
            return cycle([self.resident]), None
        if arm == "host":
            return cycle(self.ready), None
        source = {"ram": "ram", "prep": "ram", "fetch": "fetch"}.get(arm, "real")
        loader = self._loader(source)
        self.epoch += 1
        return loader.batches(self.epoch), loader

    def _segment(self, arm: str, number: int, target_s: float, steps: int | None = None) -> None:
        case = self.case
        begun = time.perf_counter_ns()
        touches_storage = self.reads_files and arm in STORAGE_ARMS
        most = self.most_steps if touches_storage else sys.maxsize
        facts: dict[str, Any] = {}
        if touches_storage:
            loader = self._loader("fetch" if arm == "fetch" else "real")
            facts["residency_before"] = self.cache.before_segment(loader.evicts_own_reads)
        counters = self.storage.read(), _read_characters()
        self.device.anchor()
        opened = time.perf_counter_ns()
        batches, loader_or_none = self._batches(arm)
        on_device = arm in ("device", "host", "ram", "real", SHORT)
        loop = StepLoop(
            batches,
            self.device if on_device else None,
            self.workload if on_device else None,
            resident=arm == "device" or self.owns_transfer,
        )
        evict_behind = (
            touches_storage and case.cache == "cold" and not getattr(loader_or_none, "evicts_own_reads", True)
        )
        with self.cache.evicting_behind(loop.indices if evict_behind else None):
            window = min(steps or self._window_steps(), most)
            if arm == SHORT:
                num_warmup, steady = self._fill_buffer(loop)
            else:
                num_warmup, steady = self._warm_up(loop, loader_or_none, target_s, most - window)
            stage_times = getattr(loader_or_none, "stage_times", lambda: None)
            stages_begun = stage_times()
            cpu_begun = time.thread_time()
            # Storage that takes seconds for a batch must not make a window of minutes: two steps are one at least.
            longest_ns = sys.maxsize if steps is not None else time.perf_counter_ns() + int(LONGEST_WINDOW_S * 1e9)
            loop.run(2, sys.maxsize)
            if time.perf_counter_ns() < longest_ns:
                loop.run(window - 2, longest_ns)
            left_ns = int(target_s * 1e9) - _window_ns(loop, num_warmup)
            if steps is None and left_ns > 0:
                loop.run(most - len(loop.host), time.perf_counter_ns() + left_ns)
            if steps is None and time.perf_counter_ns() < longest_ns:
                # Half a round of the workers' bursts would count as a whole one, or as none.
                loop.run(-(len(loop.host) - num_warmup) % case.lanes, longest_ns)
            facts["consumer_cpu_s"] = time.thread_time() - cpu_begun
            facts["stage_times"] = _grown(stages_begun, stage_times())
            if on_device:
                self.device.synchronize()
            _close(batches)
        drained_spans = getattr(loader_or_none, "drained_spans", None)
        drained = None if drained_spans is None else drained_spans()
        closed = time.perf_counter_ns()
        table = loop.steps()
        if touches_storage:
            facts |= self._moved(counters, loop, drained)
            facts["residency_after"] = self.cache.after_segment()
        facts |= {
            "opened_ns": opened,
            "closed_ns": closed,
            "first_batch_s": (loop.host[0][1] - opened) / 1e9,
            "clock_drift_ns": self.device.drift_ns() if on_device else None,
            "num_drained": None if drained is None else len(drained),
            "wall_s": (time.perf_counter_ns() - begun) / 1e9,
        }
        read = self.ram.data.images if arm in ("ram", "prep") else self.images
        self.failures += [(self.in_terms_of_the_data_set(read.path(index)), reason) for index, reason in loop.failures]
        spans, phases = loop.table_of_spans(drained), loop.phases()
        segment = Segment(arm, number, num_warmup, steady, table, spans, facts, phases)
        if arm == "device":
            facts["held_busy_ns"], facts["held_issue_ns"] = self._hold_steps(table[num_warmup:])
        self.segments.append(segment)
        mean_s = float(np.mean(_durations(segment))) if len(table) - num_warmup > 1 else None
        self.report("segment", {"arm": arm, "round": number, "steps": len(table), "step_s": mean_s, **_size(table)})

    def _trace_kernels(self) -> str | None:
        """Trace a window of the loop of `real`, behind all arms. Returns why there is none, or None."""
        case, real = self.case, [one for one in self.segments if one.arm == "real" and len(one.steps) > 1]
        if not case.kernels:
            return "not asked for: --kernels traces a few steps"
        if not real:
            return "the arm `real` has no complete step: give --duration or --steps more"
        if self.as_is_once:
            return "the data set's own cache state can be measured only once: --cache cold or warm"
        if self.reads_files and case.max_bytes is not None:
            return "--max-bytes leaves nothing for further steps"
        step_s = float(np.mean(_durations(real[-1])))
        num_steps = num_steps_for(step_s, case.duration_s, case.lanes)
        if num_steps is None:
            return f"a step takes {step_s:.2g} s, too long for three windows of them: give --duration more"
        self.report("phase", "tracing the device's kernels")
        loader = self._loader("real")
        if self.reads_files:
            self.cache.before_segment(loader.evicts_own_reads)
        self.epoch += 1
        batches = loader.batches(self.epoch)
        loops: list[StepLoop] = []

        def new_loop() -> StepLoop:
            loops.append(StepLoop(batches, self.device, self.workload, resident=self.owns_transfer))
            return loops[-1]

        def ready() -> tuple[Any, Any]:
            batch = next(batches)
            on_device = (batch.inputs, batch.targets)
            return on_device if self.owns_transfer else self.device.copy_in(*on_device)

        evict = self.reads_files and case.cache == "cold" and not loader.evicts_own_reads
        try:
            self.segments += trace_kernels(
                new_loop,
                self.device,
                self.workload,
                ready,
                num_steps=num_steps,
                lanes=case.lanes,
                settle=lambda loop: self._warm_up(loop, loader, SETTLE_S, sys.maxsize),
                behind=lambda loop: self.cache.evicting_behind(loop.indices if evict else None),
            )
        except Exception as error:  # the arms are measured: whatever the trace meets costs its own figures only
            lines = str(error).strip().splitlines() or ["no message"]
            return f"it failed: {type(error).__name__}: {lines[0]}"
        finally:
            _close(batches)
            self.failures += [
                (self.in_terms_of_the_data_set(self.images.path(index)), reason)
                for loop in loops
                for index, reason in loop.failures
            ]
        return None

    def _hold_steps(self, table: Any) -> tuple[list[int], list[int]]:
        """Device times of steps that were wholly enqueued before they began, and the host's times to enqueue them;
        empty where the device cannot tell so.

        They are those of a device that never waits for the host, where the device does not tell its busy time, and
        of a host that never waits for room in the device's queue.
        """
        if table[0, STEP_FIELDS.index("busy_ns")] >= 0:
            return [], []
        issued, returned = (table[:, STEP_FIELDS.index(name)] for name in ("issued_ns", "returned_ns"))
        hold_s = float(min(2 * (issued - returned).max() / 1e9 + 0.002, MAX_HOLD_S))
        inputs, targets = self.resident.inputs, self.resident.targets
        took_ns = 0

        def issue() -> None:
            nonlocal took_ns
            begun = time.perf_counter_ns()
            self.workload.step(inputs, targets)
            took_ns = time.perf_counter_ns() - begun

        held = [(self.device.held_ns(issue, hold_s), took_ns) for _ in range(HELD_STEPS)]
        told = [(busy, took) for busy, took in held if busy is not None]
        return [busy for busy, _ in told], [took for _, took in told]

    def _warm_up(self, loop: StepLoop, loader: Loader | None, target_s: float, most: int) -> tuple[int, bool]:
        """Run until the loader's queue is steady, or the given number of steps, or `most`. Returns (steps, steady)."""
        case = self.case
        if case.warmup is not None:
            loop.run(case.warmup, sys.maxsize)
            return len(loop.host), loader is None
        if loader is None:
            loop.run(4, sys.maxsize)
            return len(loop.host), True
        # Without workers there is no queue, but the first batches pay for memory and tables that later ones find.
        depth = case.buffer_batches
        limit = time.perf_counter_ns() + int(min(MAX_WARMUP_S, 2 * target_s + 0.5) * 1e9)
        loop.run(case.lanes + 1, sys.maxsize)
        while len(loop.host) < min(4 * depth + 16, most):
            recent = slice(-(2 * depth + 8), None)
            host = np.array([row[:2] for row in loop.host[recent]], dtype=np.int64)
            ages = [span[SPAN_FIELDS.index("ready_ns")] for span in loop.spans[recent] if span is not None]
            ready = np.array(ages, dtype=np.int64) if len(ages) == len(host) else None
            if is_steady(host[:, 0], host[:, 1], ready, depth, case.lanes):
                return len(loop.host), True
            if loop.host[-1][3] > limit:
                break
            loop.run(1, sys.maxsize)
        return len(loop.host), depth == 0

    def _moved(self, before: tuple[dict[str, int] | None, int], loop: StepLoop, drained: Any) -> dict[str, Any]:
        """Bytes that the storage moved during the segment, and what a cold read of its files had to move."""
        after = self.storage.read()
        moved = (
            None
            if after is None or before[0] is None
            else {k: after[k] - before[0][k] for k in after if k in before[0]}
        )
        spans = loop.table_of_spans(drained)
        requested = _read_characters() - before[1]
        if spans is not None:
            expected = float(spans[:, SPAN_FIELDS.index("page_bytes")].sum())
        else:
            # The loader reads ahead unseen: take what its system calls read, rounded up as the files are.
            expected = requested * self.data.sample_page_bytes / self.data.sample_bytes
        if not self.storage.whole_pages:
            expected *= self.data.sample_bytes / self.data.sample_page_bytes
        return {"moved": moved, "expected_bytes": int(expected), "requested_bytes": requested}


def _durations(segment: Segment) -> Any:
    """Seconds of each step of the window: between completions on the device, or between deliveries without one."""
    column = "done_ns" if segment.steps[-1, STEP_FIELDS.index("done_ns")] >= 0 else "returned_ns"
    done = segment.steps[:, STEP_FIELDS.index(column)]
    return np.diff(done[max(segment.num_warmup - 1, 0) :]) / 1e9


def _size(table: Any) -> dict[str, int]:
    return {name: int(table[:, STEP_FIELDS.index(name)].sum()) for name in ("num_samples", "encoded_bytes")}


def _grown(
    before: dict[str, tuple[int, int]] | None, after: dict[str, tuple[int, int]] | None
) -> dict[str, list[int]] | None:
    """Stage → [batches, wall ns] that were added; None where the loader does not count them."""
    if before is None or after is None:
        return None
    return {name: [after[name][0] - before[name][0], after[name][1] - before[name][1]] for name in after}


def _window_ns(loop: StepLoop, num_warmup: int) -> int:
    return loop.host[-1][3] - loop.host[num_warmup][0]


def _close(batches: Iterator[Batch]) -> None:
    close = getattr(batches, "close", None)
    if close is not None:
        close()


def _copy_of(batch: Batch) -> Batch:
    """A batch that outlives the loader's buffers."""
    return Batch(batch.inputs.clone(), batch.targets.clone(), batch.num_samples, batch.encoded_bytes)


def _work_done() -> tuple[float, int]:
    """CPU seconds and bytes read by this process and its children up to now. What ended meanwhile drops out."""
    cpu_s, read = 0.0, 0
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            read += process.io_counters().read_chars
    return cpu_s, read


def _read_characters() -> int:
    """Bytes that this process and its reaped children asked for in read calls (`rchar` of /proc/self/io, proc(5))."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise CaseFailed("/proc/self/io has no rchar: this kernel lacks task I/O accounting (CONFIG_TASK_XACCT)")
