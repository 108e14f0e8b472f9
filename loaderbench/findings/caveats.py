"""Caveats: what a reader must know before trusting a figure."""

from __future__ import annotations

from functools import partial

from loaderbench.findings.reasons import TRACE_FAULTS
from loaderbench.findings.row import FIGURE, INFORMATION, VERDICT, Row

MEASURE_LONGER = "raise --duration or --steps"
MEASURE_AGAIN = "measure again"
QUIETER = "measure on a quieter machine, with more --steps or a larger --batch-size"
TOOK_LONGER = "the run took {seconds:.0f} s from the start of its process, {beyond:.0f} s more than --duration: "

changes_verdict = partial(Row, severity=VERDICT)
limits = partial(Row, severity=FIGURE)
informs = partial(Row, severity=INFORMATION)

CAVEATS = (
    # the run itself
    limits(
        "figures_contradict",
        "two figures contradict each other ({which}); the less certain one is left out",
        "report it with the stored run",
        examples=({"which": "shares"}, {"which": "lines"}, {"which": "delivery"}, {"which": "methods"}),
        choices={
            "which": {
                "shares": "the shares do not add up",
                "lines": "the shares of lines of code do not add up",
                "delivery": "taking a batch over lasts longer than a step",
                "methods": "advice names a method that the data set lacks",
            }
        },
    ),
    limits(
        "images_failed",
        "{num} image reads failed, and the next image replaced each (see `failures`)",
        "loaderbench dataset scan names the broken files",
        examples=({"num": 3},),
    ),
    changes_verdict(
        "cold_not_proven",
        "{moved_fraction:%} of the expected bytes came from the storage, and page residency before each window was "
        "{resident_before}. The cold figures are not those of the storage",
        "see loaderbench doctor",
        examples=({"moved_fraction": 0.4, "resident_before": 0.1}, {"moved_fraction": None, "resident_before": 0.1}),
    ),
    limits(
        "cold_by_residency",
        "this storage has no byte counter. The reads count as cold because the page cache was empty before and after "
        "each window, and because reading one file took {read_ratio:.0f}× as long as from memory. A cache of the "
        "daemon or server would not show",
        examples=({"read_ratio": 18.0},),
    ),
    informs(
        "disk_shared",
        "other programs read {bytes:MB} from the same disk during the run. The reported bytes and bandwidth are the "
        "run's own",
        examples=({"bytes": 2_000_000},),
    ),
    informs(
        "reads_not_timed",
        "only `fetch` can show slow files and storage stalls. Either this loader does not report its reads, or it read "
        "all files before the windows began, or an older version did not store the read times",
    ),
    limits(
        "fetch_missed",
        "`fetch` saw too few of the stalls or slow files that `real` saw, so what the storage delivers alone is "
        "unknown",
        "raise --duration",
    ),
    changes_verdict(
        "eviction_failed",
        "{fraction:%} of the pages stayed in the page cache after eviction, so the cache was not cold",
        examples=({"fraction": 0.2},),
        remark="Pages that are mapped, dirty or on tmpfs cannot be evicted.",
    ),
    limits(
        "residency_unknown",
        ("page residency is unknown: {reason}", "which of these files are in the page cache is unknown"),
        "see loaderbench doctor",
        examples=({"reason": "no mincore"}, {"reason": None}),
    ),
    limits(
        "warm_not_locked",
        "{reason}; the run reads the files before each window instead",
        examples=({"reason": "RLIMIT_MEMLOCK is 8 MB"},),
    ),
    limits(
        "warm_drifted",
        "only {fraction:%} of the pages were still in memory after a warm window",
        examples=({"fraction": 0.8},),
    ),
    informs(
        "ram_subset",
        "`ram` used {num} of {of} images, with the same mix of sizes",
        examples=({"num": 100, "of": 1000},),
        remark="It uses 128 batches, or as many as memory and `--max-bytes` allow.",
    ),
    limits(
        "max_bytes_reached",
        "--max-bytes {max_bytes} stopped the measurement before it reached its target",
        examples=({"max_bytes": 1000},),
    ),
    limits(
        "ended_early",
        "stopped in round {rounds}. The verdict uses the windows measured until then. The storage's ceiling, the "
        "decoders, the link, memory and the device's kernels were not measured",
        examples=({"rounds": 2},),
        remark="Ctrl-C, an error, or the death of the measuring process stopped the run.",
    ),
    limits(
        "short_runs_not_measured",
        "the data set's own cache state can be measured only once",
        "use --cache cold or warm",
        remark="For `--buffer-ratio`.",
    ),
    limits(
        "buffer_not_full",
        "the loader was not yet steady when a short run began, so its buffer may not have been full",
        remark="The short run (`--buffer-ratio`) may flatter the loader less than it would with a full buffer.",
    ),
    limits(
        "queue_not_steady",
        "{arms}: the loader's queue was not yet steady when the window opened",
        examples=({"arms": ["ram", "real"]},),
        remark="Use `--warmup`, or measure longer.",
    ),
    limits(
        "preparation_differs",
        "preparing an image in `{arm}` takes {ratio:.2f}× ({low:.2f} – {high:.2f}) the CPU time that it takes in "
        "`{other}`, with {more_faults:+.0f} page faults per image. The gain of storage includes this",
        examples=(
            {"arm": "ram", "other": "real", "ratio": 1.18, "low": 1.16, "high": 1.2, "more_faults": 383.0},
            {"arm": "prep", "other": "free", "ratio": 0.9, "low": 0.88, "high": 0.92, "more_faults": -12.4},
        ),
        remark="From 2 % beyond the interval. More page faults point to the memory allocator; an equal number to reads "
        "that wait, since a CPU that slept needs 30 to 80 µs more, or to other load.",
    ),
    limits(
        "short_run",
        "the run is short: {steps} steps are fewer than ten prefetch buffers ({buffer_batches} batches each)",
        MEASURE_LONGER,
        examples=({"steps": 12, "buffer_batches": 4},),
    ),
    informs(
        "took_longer",
        (TOOK_LONGER + "{why:; }", TOOK_LONGER + "the reason was not predicted"),
        examples=(
            {"seconds": 52.2, "beyond": 37.2, "why": ["evicting takes about 33 s"]},
            {"seconds": 31.0, "beyond": 16.0, "why": []},
        ),
        remark="From 10 s.",
    ),
    limits(
        "ci_target_missed",
        (
            "the step time is known to ± {half_width:.1%}, the target is ± {target:.1%} (stopped by {stopped_by})",
            "the step time has no confidence interval, the target is ± {target:.1%} (stopped by {stopped_by})",
        ),
        MEASURE_LONGER,
        examples=(
            {"half_width": 0.1, "target": 0.03, "stopped_by": "duration"},
            {"half_width": None, "target": 0.03, "stopped_by": "duration"},
        ),
    ),
    limits(
        "cpu_contention",
        "workers were runnable but waited for a CPU for {fraction:%} of their time; this is the share `contention`",
        examples=({"fraction": 0.2},),
        remark="`contention` in the record says who used the CPUs.",
    ),
    limits(
        "contention_not_measured",
        "who used the CPUs is unknown: an older version did not store it, or this kernel does not count run-queue "
        "delay",
        "measure again, or see loaderbench doctor",
    ),
    changes_verdict(
        "witnesses_disagree",
        "two measurements of the data wait disagree: {by_arms:%} of a step by comparing the arms, {by_timeline:%} by "
        "the timeline",
        "measure longer, or on a quieter machine",
        examples=({"by_arms": 0.4, "by_timeline": 0.1},),
        remark="Also a reason of a verdict.",
    ),
    # what was not measured
    changes_verdict("real_not_measured", "the arm `real` has no complete step", MEASURE_LONGER),
    limits(
        "arms_not_measured",
        "{arms}: {why}. Figures that need these arms are missing",
        examples=tuple(
            {"arms": ["ram"], "why": why}
            for why in ("not_asked", "measured_once", "not_allowed", "no_time", "decided", "interrupted")
        ),
        choices={
            "why": {
                "not_asked": "they were not requested; use --arms all",
                "measured_once": "only `real` can measure the data set's own cache state, and only once; use --cache "
                "cold or warm to measure all",
                "no_time": "the steps take too long to measure these arms too; raise --duration",
                "decided": "the cause was decided without them; --duration 60 measures them too",
                "interrupted": "the run stopped before they were measured",
                "not_allowed": "the loader or the data set does not support them",
            }
        },
    ),
    limits("launch_not_measured", "this device reports no busy time, so compute includes the launch gaps"),
    informs("no_files", "the loader reads no files, so a step has no storage time"),
    informs(
        "no_transfer",
        "no copy figures: {why}",
        examples=({"why": "took_no_time"}, {"why": "nothing_copied"}),
        choices={
            "why": {"nothing_copied": "the CPU needs no copy", "took_no_time": "copying the batches took no time"}
        },
    ),
    informs("loader_owns_transfer", "the loader delivers batches on the device, so transfer is part of prep"),
    limits(
        "link_not_measured", "the link's ceiling was not measured: {reason}", examples=({"reason": "out of memory"},)
    ),
    limits(
        "storage_bytes_unknown",
        "{reason}",
        examples=({"reason": "on overlay no counter exists"}, {"reason": None}),
        choices={"reason": {None: "the storage's byte counter could not be read"}},
        remark="FUSE and tmpfs have no counter.",
    ),
    limits(
        "ceiling_not_measured",
        "the storage's ceiling was not measured: {why}",
        examples=(
            {"why": "not_asked"},
            {"why": "error", "reason": "EIO"},
            {"why": "from_cache"},
            {"why": "ended", "stopped_by": "deadline"},
        ),
        choices={
            "why": {
                "not_asked": "use --cache cold and --arms all",
                "error": "{reason}",
                "from_cache": "a cache served the probe's stages, or each reader read fewer than two files",
                "ended": "{stopped_by} stopped the probe: raise --duration or --max-bytes",
            }
        },
    ),
    limits(
        "ceiling_still_rising",
        "the storage was still getting faster at {readers} readers (stopped by {stopped_by}), so the reported ceiling "
        "is a lower bound",
        examples=({"readers": 32, "stopped_by": "max_readers"},),
    ),
    limits("ceiling_probe_limited", "the storage probe was CPU-bound, so the storage may deliver more"),
    limits(
        "stages_not_measured",
        "the time per image in each stage is unknown: {reason}",
        examples=({"reason": "its stages are C++"}, {"reason": None}),
        choices={"reason": {None: "this loader does not report read, decode and augment separately"}},
        remark="For DALI see [inside DALI](decoders.md).",
    ),
    limits(
        "cpu_not_measured",
        "cpu.{names:, cpu.}: the windows were shorter than the sampling interval",
        examples=({"names": ["busy_fraction", "workers_rss_bytes"]},),
    ),
    informs(
        "worker_memory_not_measured",
        "the memory of the loader's workers is unknown: {reason}",
        examples=({"reason": "its workers are threads"}, {"reason": None}),
        choices={"reason": {None: "an older version did not store it"}},
    ),
    limits("overhead_not_measured", "this run did not measure its own overhead", MEASURE_AGAIN),
    limits("first_batch_not_measured", "this run did not measure the time to the first batch", MEASURE_AGAIN),
    # the device
    informs(
        "emulated_device",
        "no GPU was used: step times are those of {name} (see `device` in the record)",
        examples=({"name": "emulated H200"},),
        remark="Its constants were measured elsewhere or published by others ([devices](devices.md)).",
    ),
    limits(
        "issue_unknown",
        "the device's profile does not give the CPU cost of launching a step, so the emulation spends no CPU time on "
        "it. With the real device the loader would have less CPU time",
        remark="The share `launch` is null.",
    ),
    limits("device_memory_not_measured", "{kind} devices do not report their memory use", examples=({"kind": "cpu"},)),
    limits("nvml_not_measured", "NVML gave no reading within the windows"),
    limits(
        "nvml_device_order",
        "this machine has {num_models} GPU models, and CUDA numbers the fastest first. The sampled GPU may not be the "
        "measured one",
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        examples=({"num_models": 2},),
    ),
    limits("nvml_field_missing", "{reason}", examples=({"reason": "gpu_power_w (NVML) is not supported"},)),
    limits(
        "kernel_gap_not_measured",
        "no kernel gaps: {why}",
        examples=(
            {"why": "not_asked"},
            {"why": "no_real_step"},
            {"why": "measured_once"},
            {"why": "max_bytes"},
            {"why": "older_version"},
            {"why": "steps_too_long", "step_s": 12.0},
            {"why": "failed", "reason": "OSError: no"},
            {"why": "reason", "reason": "unchanged"},
        ),
        choices={
            "why": {
                "not_asked": "not requested; use --kernels to trace a few steps",
                "no_real_step": "the arm `real` has no complete step: raise --duration or --steps",
                "measured_once": "the data set's own cache state can be measured only once; use --cache cold or warm",
                "max_bytes": "--max-bytes leaves no budget for more steps",
                "steps_too_long": "a step takes {step_s:.2g} s, too long for three windows: raise --duration",
                "failed": "tracing failed: {reason}",
                "reason": "{reason}",
                "older_version": "an older version, which did not trace kernels, stored this run",
            }
        },
    ),
    limits(
        "trace_incomplete",
        "no kernel gaps, because the trace is incomplete: {faults:findings}",
        examples=(
            {
                "faults": [
                    {"code": row.code, "details": dict(details)} for row in TRACE_FAULTS for details in row.examples
                ]
            },
        ),
        remark="Lost records would look like gaps.",
    ),
    limits(
        "trace_not_steady",
        "the loader's queue was not yet steady in the {arms: and } window of the kernel trace. Gaps from missing data "
        "and the cost of tracing apply to that window only",
        examples=({"arms": ["traced", "untraced"]},),
    ),
    limits(
        "busy_witnesses_disagree",
        "kernels ran for {kernels:.1%} of the traced window, but other measurements say {others:shares}. Do not trust "
        "either alone",
        examples=({"kernels": 0.5, "others": {"nvml": 0.9, "gpm": 0.8, "events_at_most": 0.4}},),
        remark="A difference of 3 points or more: another process uses the GPU, or the trace is not like the run.",
    ),
    informs(
        "busy_not_cross_checked",
        "no window was 6 s long, so NVML was not compared with the kernels",
        remark="Use `--arms real` with many `--steps`.",
    ),
    # a watched script
    informs(
        "watched_script",
        "watching a script does not show its files, kernels and copies, so those figures are missing",
        remark="See [your own training](watch.md).",
    ),
    limits(
        "watched_so_far",
        "written {seconds:.0f} s after the script's start, while it was still running: the rest is missing",
        examples=({"seconds": 600.0},),
    ),
    informs(
        "not_written_so_far",
        "some saves of the run failed while the script was running: {reason}",
        examples=({"reason": "no space left"},),
    ),
    limits(
        "no_bursts",
        "the run was never paused until its loader's queue was full ({reason}), so the step time with data ready comes "
        "from the timeline alone",
        examples=({"reason": "it has no workers"},),
    ),
    limits(
        "no_delays", "known delays gave no result for this run ({reason})", examples=({"reason": "too few batches"},)
    ),
    limits(
        "no_shadow",
        "the shadow reader gave no result for this run ({reason})",
        examples=({"reason": "its samples have no numbers"},),
    ),
    limits(
        "shadow_differs",
        "a shadow reader spends {shadow:%} of a sample on storage, the script's own workers {spans:%}: one of them "
        "found other files in memory, or waits for something else",
        examples=({"shadow": 0.8, "spans": 0.1},),
    ),
    limits(
        "spans_unknown",
        "the workers' own times are unknown ({reason})",
        examples=({"reason": "its workers were not forked"},),
        remark="Storage and preparation stay joint.",
    ),
    # sampling
    limits(
        "sampler_failed",
        "{channels}: {error}",
        examples=({"channels": ["gpu_power_w"], "error": "OSError: gone"},),
        remark="A source of samples stopped during the run.",
    ),
    limits(
        "sampler_missing",
        "{reason}",
        examples=({"reason": "the run-queue delay is not counted"},),
        remark="See `loaderbench doctor`.",
    ),
    # precision
    limits("fp32_not_measured", "fp32 did not run, so there is no reference to compare with"),
    limits(
        "fp32_repeat_not_measured",
        "fp32 could not be repeated ({reason}), so its own spread is unknown",
        examples=({"reason": "out of memory"},),
    ),
    informs(
        "memory_is_rss",
        "memory is the growth of the process's peak resident set, because the CPU has no memory of its own",
    ),
    limits(
        "process_memory_not_measured",
        "{reason}",
        examples=({"reason": "the driver does not report it"},),
        remark="NVML does not report this process's GPU memory.",
    ),
    limits(
        "prediction_misses",
        "the prediction for batch {batch_size:.0f} misses the measured peak by {error:+%}: use the measured one, and "
        "do not extend the prediction to other batches",
        examples=({"batch_size": 32, "error": -0.35},),
        remark="From 5 % of the measured peak.",
    ),
    # a model's layers
    limits(
        "layers_do_not_sum",
        (
            "the rows are distorted: their sum is {ratio:.3f} ({low:.2f} to {high:.2f}) of the whole iteration without "
            "the stopwatch, not 0.95 to 1.05",
            "the rows are distorted: their sum is {ratio:.3f} of the whole iteration without the stopwatch, not 0.95 "
            "to 1.05",
        ),
        QUIETER,
        examples=({"ratio": 0.91, "low": 0.88, "high": 0.94}, {"ratio": 0.91, "low": None, "high": None}),
    ),
    limits(
        "stopwatch_takes_time",
        (
            "the rows are distorted: an iteration with the stopwatch takes {ratio:.3f} ({low:.2f} to {high:.2f}) times "
            "as long as without it",
            "the rows are distorted: an iteration with the stopwatch takes {ratio:.3f} times as long as without it",
        ),
        QUIETER,
        examples=({"ratio": 1.08, "low": 1.06, "high": 1.11},),
        remark="From 1.05 times.",
    ),
    limits(
        "issuing_takes_longer",
        "the run is host-bound: an iteration takes {ratio:.2f} times the device's work in it, because the host "
        "launches no faster. Rows and shares are of the device's work",
        examples=({"ratio": 1.45},),
        remark="From 1.05 times.",
    ),
    limits(
        "layers_hold_gaps",
        "the device was idle before {num:.0f} of the rows ({share:%} of the iteration), marked with *. Their times "
        "include gaps between kernels",
        "a larger --batch-size closes them",
        examples=({"num": 12, "share": 0.31},),
    ),
    # trace files
    limits(
        "activities_unusable",
        "{num:,.0f} device activities have no usable time or duration: their time counts as idle",
        examples=({"num": 12},),
    ),
    limits(
        "events_malformed",
        "{num:,.0f} events of the trace are not valid JSON: {repaired:,.0f} repaired, {left_out:,.0f} left out",
        examples=({"num": 4, "repaired": 3, "left_out": 1},),
        remark="Old releases of torch do not escape names; with_stack=False leaves most of them out.",
    ),
    limits(
        "stamps_stray",
        "{num:,.0f} device activities are left out: their times are far outside the trace",
        examples=({"num": 1},),
    ),
    limits(
        "steps_not_annotated",
        "{why}",
        examples=({"why": "no_step_ranges"}, {"why": "no_host_calls"}),
        choices={
            "why": {
                "no_step_ranges": "the trace has no ProfilerStep: call the profiler's step() after each step",
                "no_host_calls": "the trace has no host calls, so its kernels belong to no step: record with "
                "ProfilerActivity.CPU too",
            }
        },
    ),
    # the record
    limits(
        "facts_missing",
        "an older version did not store these figures: {names}",
        "measure again if you need them",
        examples=({"names": ["bytes of a batch"]},),
        remark="See [stored runs](stored-runs.md).",
    ),
    limits(
        "not_finite",
        "these figures were NaN or infinity and are stored as null: {places}",
        "please report it as a bug",
        examples=({"places": ["throughput.low"]},),
    ),
)
