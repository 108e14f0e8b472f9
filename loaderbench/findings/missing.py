"""Why a figure is missing, and what limits the figures of a capacity study. Records hold these as sentences."""

from __future__ import annotations

from loaderbench.findings.row import Row

WATCHED_MISSING = (
    Row("no_workers", "it has no workers"),
    Row("too_few_batches", "too few batches"),
    Row("queue_unknown", "the iterated object does not report a queue"),
    Row("queue_not_readable", "this loader's queue cannot be read ({error})", examples=({"error": "no attribute"},)),
    Row(
        "shared_memory_small",
        "batches may not fit into /dev/shm: those that are asked for at once need {needed:size}, and {left:size} of "
        "its {size:size} are free. A worker that finds none left is killed (bus error). Start the container with a "
        "larger --shm-size (or --ipc=host), or lower prefetch_factor, num_workers or the batch size",
        examples=({"needed": 48e6, "left": 32e6, "size": 32e6},),
    ),
    Row("queue_never_full", "its queue was not full after {patience_s:g} s", examples=({"patience_s": 2.0},)),
    Row("workers_unknown", "the iterated object does not report its workers"),
    Row("workers_not_forked", "its workers were not forked, or do not take turns"),
    Row("device_used_late", "the script first used it after the last window of steps"),
    Row("steps_not_ended", "too few steps, or the device finished none of them before the script's own code did"),
    Row("samples_not_numbered", "an iterable data set's samples have no numbers"),
    Row("other_loader_first", "the script iterated another loader first, which then took less of the time"),
    Row(
        "shadow_too_short",
        "it read {num:d} samples, of {least:d} at least: {stopped_by}",
        examples=({"num": 3, "least": 20, "stopped_by": "the script ended"},),
    ),
    Row(
        "too_few_delays",
        "{num:d} windows had one, of {least:d} at least: the run was too short for delays of {part:%} of its time",
        examples=({"num": 1, "least": 4, "part": 0.05},),
    ),
)
SPLIT_MISSING = (
    Row("no_outputs", "no part is on a device that computes outputs"),
    Row("one_device_alone", "one device did the whole batch: there are no other outputs to compare"),
    Row("no_reference", "the whole batch fits on no device that computes: there are no outputs to compare with"),
    Row("whole_batch_does_not_fit", "the whole batch fits on no device alone"),
    Row("greedy_has_no_start", "the whole batch fits on no device alone, and the greedy search begins there"),
    Row("no_split_fits", "no split fits"),
    Row("fastest_alone_wins", "by the table no split ends before the fastest device alone: it was run"),
    Row(
        "turns_left_out",
        "not decided: {num} of {of} turns were left out, since a member began late; measure again when the machine is "
        "idle",
        examples=({"num": 34, "of": 88},),
    ),
    Row("few_turns", "fewer than 6 turns have no interval: the outcome is undecided"),
    Row(
        "study_ended_before",
        "{how} before {step}",
        examples=tuple(
            {"how": how, "step": step}
            for how, step in (
                ("interrupted", "search"),
                ("failed", "choice"),
                ("interrupted", "turn"),
                ("failed", "outputs"),
            )
        ),
        choices={
            "how": {"interrupted": "it was interrupted", "failed": "it ended early"},
            "step": {
                "search": "the first search",
                "choice": "a split was chosen",
                "turn": "the first turn",
                "outputs": "the outputs were compared",
            },
        },
    ),
)
RANKS_MISSING = (
    Row("too_few_common_steps", "fewer than {least:d} steps that all ranks ran", examples=({"least": 20},)),
    Row(
        "ranks_not_in_step",
        "the ranks do not step together: a step takes from {least_s:duration} to {most_s:duration}",
        examples=({"least_s": 0.1, "most_s": 0.2},),
    ),
    Row("ranks_missing", "rank {ranks} delivered no run", examples=({"ranks": [1, 3]},)),
    Row("ranks_not_stored", "the runs of ranks {ranks} are not in this store", examples=({"ranks": [1, 3]},)),
)
CAPACITY_MISSING = (
    Row("no_ranks_measured", "no number of ranks was measured"),
    Row(
        "all_ranks_reach",
        "{max_ranks:d} ranks, the most that were asked for, reach the target",
        examples=({"max_ranks": 8},),
    ),
    Row("no_bound_known", "neither the storage's ceiling nor the CPU use is known"),
    Row("ended_while_reaching", "the study ended while {ranks:d} still reached the target", examples=({"ranks": 4},)),
    Row(
        "ended_between",
        "the study ended between {reach:d}, which reach the target, and {miss:d}, which miss it",
        examples=({"reach": 2, "miss": 8},),
    ),
)
CAPACITY_LIMITS = (
    Row(
        "files_in_memory",
        "the files are on {file_system}, which holds them in memory: there is no storage to measure",
        examples=({"file_system": "tmpfs"},),
    ),
    Row(
        "cache_left_unmodified",
        "the page cache was left unmodified: files that were in it did not come from the storage",
    ),
    Row(
        "storage_not_proven",
        (
            "cold reads are not proven: the page cache still held {resident:%} of the files before a look",
            "cold reads are not proven: the page cache cannot be seen",
        ),
        examples=({"resident": 0.4}, {"resident": None}),
    ),
    Row(
        "files_read_again",
        "files were read up to {times:.1f} times in a look, and evicted in between: a server may have kept them in its "
        "memory. Use a larger data set",
        examples=({"times": 2.5},),
    ),
    Row(
        "ceiling_cut_short",
        "the measurement of the storage's ceiling was cut short: {reason}",
        examples=({"reason": "--max-bytes was reached"},),
    ),
    Row(
        "cpus_used_by_others",
        "other programs used up to {part:%} of the CPUs (including any FUSE daemon on this machine): without them more "
        "ranks may reach the target",
        examples=({"part": 0.3},),
    ),
    Row(
        "few_steps_of_ranks",
        "few steps of {ranks} ranks: intervals are wide; raise --duration",
        examples=({"ranks": [2, 4]},),
    ),
)
RUN_MISSING = (
    Row("real_was_not_measured", "the arm `real` was not measured"),
    Row("worker_processes_unknown", "the loader has no worker processes of its own, or does not report them"),
    Row("workers_ended", "the worker processes had ended"),
    Row("gpu_decodes", "the GPU decodes and resizes; the host only enqueues the work"),
    Row("gpu_ranges_are_enqueueing", "on a GPU DALI's ranges show how long operators take to enqueue, not to run"),
    Row("cpu_has_no_memory", "the CPU has no memory of its own: see rss_growth_bytes"),
    Row("cpu_reserves_nothing", "the CPU's allocator keeps no reserve: it uses the C library's malloc and free"),
    Row("model_is_on_device", "the model's memory is on the device"),
    Row("process_memory_unknown", "the driver of this device does not report the memory of a process"),
    Row("profiler_does_not_fit", "the profiler, which measures it, would itself need memory below the limit"),
    Row("emulated_has_no_model", "an emulated device builds no model"),
)
SIZING_MISSING = (
    Row("not_predicted_yet", "the study ended before memory was predicted"),
    Row(
        "no_run_stored",
        (
            "no run of {data_set} on this machine, with its packages, is stored: measure one with `loaderbench run`",
            "no run of this machine and its packages is stored: measure one with `loaderbench run`",
        ),
        examples=({"data_set": "photos"}, {"data_set": None}),
    ),
    Row(
        "several_data_sets",
        "runs of several data sets are stored ({names}): choose one with --run or --data",
        examples=({"names": ["cats", "dogs"]},),
    ),
    Row("device_unknown_here", "the run's device is not installed here, and may have computed on the CPU"),
    Row("computed_on_cpu", "the run computed its model on the CPU, so the CPU time is not the loader's alone"),
    Row("no_cpu_times", "the run has no CPU times"),
)
MODEL_MISSING = (
    Row("no_data_set", "no data set given (--data)"),
    Row("was_interrupted", "it was interrupted"),
    Row("no_copy_times", "the copies' own time is unknown"),
    Row("images_in_containers", "the images are in containers"),
    Row("no_samples_compared", "no sample could be compared"),
)
