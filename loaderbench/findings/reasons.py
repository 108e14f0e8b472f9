"""Why a verdict is undetermined or mixed, why a trace is incomplete, and notes on watched scripts and comparisons."""

from __future__ import annotations

from loaderbench.findings.advice import PIXELS, PIXELS_EXAMPLE
from loaderbench.findings.figures import number
from loaderbench.findings.row import Details, Row


def _threads(details: Details) -> str:
    own = " and {own} thread{own:plural} of the script" if details.get("own") else ""
    waits = "" if details.get("starved") is None else "; a worker waits for a CPU {starved:%} of its time"
    workers = "{workers} worker{workers:plural} with {each} thread{each:plural} each"
    return f"CPUs are oversubscribed: {workers}{own} share {{cpus}}{waits}"


def _first_epoch(details: Details) -> str:
    is_slower = number(details, "first_s") > number(details, "later_s")
    why = "the first one reads and starts what later ones reuse" if is_slower else "later epochs are slower"
    return "a batch takes {first_s:duration} in the first epoch and {later_s:duration} in later epochs: " + why


SERVED = ": another program reads these files, or they cannot be evicted (see loaderbench doctor)"
NO_GAIN = "the gain from removing {cause} was not measured"
ALL_ARMS = ". To measure it, use --arms all, --cache warm or cold, and a --duration that is long enough for all arms"

REASONS = (
    Row(
        "served_by_page_cache",
        (
            "a cold read got {moved_fraction:%} of its bytes from the storage and the rest from the page cache"
            + SERVED,
            "{resident_before:%} of the pages were in the page cache before the windows" + SERVED,
        ),
        examples=({"moved_fraction": 0.4, "resident_before": 0.1}, {"moved_fraction": None, "resident_before": 0.6}),
    ),
    Row(
        "read_as_fast_as_memory",
        "evicted files took {ratio:.1f}× as long to read as files in memory: another cache served them (the file "
        "system's own, or memory of the host that this machine maps)",
        examples=({"ratio": 2.4},),
    ),
    Row(
        "arms_out_of_order",
        "`{faster}` ({faster_s:ms} per step) ran faster than `{slower}` ({slower_s:ms}), although `{slower}` does less",
        examples=({"faster": "ram", "faster_s": 0.01, "slower": "host", "slower_s": 0.02},),
    ),
    Row(
        "model_disagrees",
        "without {cause} the run would be {measured:.2f}× faster by the arm that leaves it out, but only {model:.2f}× "
        "by the model of the run's own batches: measure longer, on an idle machine",
        examples=({"cause": "storage", "measured": 1.24, "model": 1.01},),
    ),
    Row(
        "too_few_steps",
        "the run is too short: `real` has only {steps} steps. Use --steps {wanted} without --duration (measuring takes "
        "about {seconds:,.0f} s)",
        examples=({"steps": 6, "wanted": 30, "seconds": 41.2},),
    ),
    Row(
        "gain_not_measured",
        (NO_GAIN + " and may be up to {most:.2f}×" + ALL_ARMS, NO_GAIN + ALL_ARMS),
        examples=({"cause": "transfer", "most": 1.4}, {"cause": "transfer", "most": float("inf")}),
    ),
    Row(
        "gain_uncertain",
        "the gain from removing {cause} is uncertain, {low:.2f}× – {high:.2f}×: measure longer",
        examples=({"cause": "prep", "low": 0.9, "high": 2.0},),
    ),
    Row(
        "may_be_faster",
        "without {cause} the run may be up to {high:.2f}× faster: measure longer",
        examples=({"cause": "prep and storage", "high": 1.4},),
    ),
    Row(
        "cannot_be_told_apart",
        "the gains from removing {causes: and from removing } are too close to distinguish",
        examples=({"causes": ["prep", "storage"]},),
    ),
    Row(
        "not_separated",
        (
            "this run cannot separate {causes: and }: it needs the arms {arms}",
            "this run cannot separate {causes: and }: the workers' own times are unknown",
        ),
        examples=(
            {"causes": ["storage", "prep"], "arms": ["ram", "fetch"]},
            {"causes": ["storage", "prep"], "arms": []},
        ),
    ),
    Row(
        "nothing_read",
        "this run cannot separate {causes: and }: the data set waited without reading (a sleep, a lock or another "
        "process)",
        examples=({"causes": ["storage", "prep"]},),
    ),
    Row(
        "device_not_stamped",
        "the script used CUDA, which runs asynchronously, and the device did not report when each step finished "
        "({reason})",
        examples=({"reason": None}, {"reason": "an error of CUDA"}),
        choices={"reason": {None: "for an unknown reason"}},
    ),
    Row(
        "threads_in_step",
        "other Python threads of the script may have blocked its training thread for at most {part:%} of the step "
        "time. If they prepare the batches, the script may be up to {most:.2f}× faster without them",
        examples=({"part": 0.5, "most": 2.0},),
    ),
    Row(
        "delays_disagree",
        "each step was slowed by a known delay, and steps grew by {response:%} of it; the bursts and the timeline "
        "predict {expected:range}. Do not trust either figure alone",
        examples=({"response": 0.1, "expected": [0.8, 1.0]}, {"response": 0.1, "expected": [1.0, 1.0]}),
    ),
    Row(
        "feeding_uncertain",
        "the device has its data ready between {low:%} and {high:%} of the time: measure longer",
        examples=({"low": 0.7, "high": 0.99},),
    ),
    Row(
        "consumer_not_separated",
        "waiting for data does not limit this run. Use --arms all to see whether compute, launches or the copy does",
    ),
    Row(
        "storage_was_idle",
        "`real` ran slower than `ram`, but the storage transferred no data. Something else disturbed this run: measure "
        "longer, or on a quieter machine",
    ),
    Row(
        "stalls_missed",
        "the storage stalled for {part:%} of the time, but for {seen:%} of the time in which the run itself was "
        "measured: measure longer",
        examples=({"part": 0.2, "seen": 0.0},),
    ),
    Row("none_alone", "no single cause gives 1.10× when removed alone"),
)
TRACE_FAULTS = (
    Row("no_complete_step", "the trace has no complete step"),
    Row("steps_without_kernel", "{num} of {num_steps} steps have no kernels", examples=({"num_steps": 20, "num": 3},)),
    Row(
        "steps_differ",
        "the kernel counts of {num} of {num_steps} steps differ by more than {allowed:.0f} from the median, "
        "{median:.0f} (range {least} to {most})",
        examples=({"num_steps": 20, "num": 3, "allowed": 5.0, "median": 100.0, "least": 10, "most": 120},),
    ),
    Row(
        "graphs_count_as_one",
        "{median:.0f} kernels for {graphs:.1f} CUDA graph launches per step: the trace counts each graph as one kernel",
        examples=({"median": 4.0, "graphs": 2.0},),
    ),
    Row(
        "count_off",
        "{witness}: {counted:.0f} per step, expected {at_least}{expected:.0f}",
        examples=tuple(
            {"witness": witness, "counted": 90.0, "expected": 100.0, "at_least": at_least}
            for witness in ("pieces", "operators_found", "operators", "launch_calls")
            for at_least in (False, True)
        ),
        choices={
            "witness": {
                "pieces": "pieces of the virtual timeline",
                "operators_found": "operators of an untraced step found in the trace",
                "operators": "kernels and copies, by an untraced step's operators",
                "launch_calls": "kernels, by CUDA's launch calls",
            },
            "at_least": {True: "at least ", False: ""},
        },
    ),
    Row(
        "clocks_do_not_fit",
        "kernels run outside their steps by {fraction:%} of a step: the clocks do not match",
        examples=({"fraction": 0.2},),
    ),
)
COMPARISON_NOTES = (
    Row(
        "as_is_for_cold",
        "as-is instead of cold: reads of {path} cannot be proven to come from the storage (see doctor)",
        examples=({"path": "/mnt/nfs"},),
    ),
    Row(
        "warm_too_large_for_max_bytes",
        "warm is skipped: it reads all {bytes:GB}, more than --max-bytes allows a run",
        examples=({"bytes": 2_000_000_000},),
    ),
    Row(
        "warm_does_not_fit",
        "warm is skipped: memory cannot hold {bytes:GB}; to run it anyway, use --cache",
        examples=({"bytes": 2_000_000_000},),
    ),
    Row(
        "note",
        "{text}",
        examples=({"text": "warm is left out"},),
        remark="A note that an older version stored as a sentence.",
    ),
)
WATCHED_NOTES = (
    Row(
        "memory_grows",
        "the memory of {of}",
        examples=(
            {"of": "script", "bytes": 2e8, "batches": 1000},
            {"of": "workers", "bytes": 2e8, "batches": 1000},
            {"of": "workers_full", "bytes": 2e8, "batches": 1000, "full": 8000.0},
            {"of": "workers_from", "bytes": 2e8, "batches": 1000, "first": 1e8, "last": 4e8},
            {"of": "workers_full_from", "bytes": 2e8, "batches": 1000, "full": 8e3, "first": 1e8, "last": 4e8},
        ),
        choices={
            "of": {
                "script": "the script grows by {bytes:size} per 1,000 batches",
                "workers": "all its workers together grows by {bytes:size} per 1,000 batches within an epoch (private "
                "pages: Python objects of the data set, copied as each worker touches them, or a cache). Keep the data "
                "set's items in arrays, not in lists of objects",
                "workers_from": "all its workers together grew from {first:size} to {last:size} within an epoch, by "
                "{bytes:size} per 1,000 batches while it grew (private pages: Python objects of the data set, copied "
                "as each worker touches them, or a cache). Keep the data set's items in arrays, not in lists of "
                "objects",
                "workers_full_from": "all its workers together grew from {first:size} to {last:size} within an epoch, "
                "by {bytes:size} per 1,000 batches (private pages: Python objects of the data set, copied as each "
                "worker touches them, or a cache); no memory is left after {full:,.0f} more batches. Keep the data "
                "set's items in arrays, not in lists of objects",
                "workers_full": "all its workers together grows by {bytes:size} per 1,000 batches within an epoch "
                "(private pages: Python objects of the data set, copied as each worker touches them, or a cache), and "
                "no memory is left after {full:,.0f} more batches. Keep the data set's items in arrays, not in lists "
                "of objects",
            }
        },
    ),
    Row(
        "in_turn",
        "the script waits {wait_s:duration} for one batch in {workers}: the {workers} workers finish together and "
        "deliver in turn. Only the mean matters",
        examples=({"workers": 4, "wait_s": 0.04},),
    ),
    Row(
        "taking_over",
        "dequeuing a batch that is ready takes {each_s:duration} of a step's {step_s:duration} in the script's own "
        "thread, because each array is passed separately. Fewer, larger arrays per batch (padded or joined) take less",
        examples=({"each_s": 0.03, "step_s": 0.04},),
    ),
    Row(
        "threads",
        _threads,
        examples=(
            {"workers": 4, "each": 4, "own": 0, "cpus": 8, "starved": None},
            {"workers": 4, "each": 1, "own": 8, "cpus": 8, "starved": 0.3},
        ),
    ),
    Row(
        "of_a_thread",
        "all figures are about the script's thread '{thread}', which dequeues the batches. If it passes them on to "
        "another thread, its steps last until that thread has room for more",
        examples=({"thread": "Thread-1 (read)"},),
    ),
    Row(
        "of_many_ranks",
        "this is rank {rank} of {ranks}: its own steps include waiting for the other ranks, in collectives. Other "
        "ranks on its node count as other users of the CPUs",
        examples=({"rank": 1, "ranks": 4, "node": "node7"},),
    ),
    Row(
        "shared_memory",
        "/dev/shm was nearly full, with {free_bytes:size} of {size:size} free. Workers deliver batches through it: "
        "raise its size (docker run --shm-size)",
        examples=({"size": 67108864, "free_bytes": 1000000},),
    ),
    Row(
        "shared_memory_needed",
        "/dev/shm is too small for the batches that are asked for at once: they need {needed:size} of its {size:size}. "
        "Start the container with a larger --shm-size (or --ipc=host), or lower prefetch_factor",
        examples=({"needed": 48e6, "size": 32e6},),
    ),
    Row(
        "samples_repeat",
        "each sample comes {times:.1f} times an epoch: the iterable data set is not divided among its {workers} "
        "workers. Let each worker give its own part (torch.utils.data.get_worker_info() in __iter__); an epoch is "
        "then {times:.1f} times as short",
        examples=({"times": 2.0, "workers": 2},),
    ),
    Row(
        "same_random",
        "workers draw the same random numbers ({sources: and }): samples of different workers get the same "
        "augmentation. Seed each worker by torch.utils.data.get_worker_info().seed in worker_init_fn",
        examples=({"sources": ["numpy.random"]},),
    ),
    Row(
        "few_shards",
        "{idle} of {workers} workers give few batches or none: the data set has fewer shards than workers, or shards "
        "of unlike size",
        examples=({"idle": 1, "workers": 2},),
    ),
    Row("first_epoch", _first_epoch, examples=({"first_s": 0.04, "later_s": 0.01}, {"first_s": 0.01, "later_s": 0.04})),
)
EVIDENCE = (
    Row(
        "storage_idle",
        "the storage share is 0 (proven): {proof}",
        examples=({"proof": "local"}, {"proof": "nfs"}, {"proof": "memory"}),
        choices={
            "proof": {
                "local": "all pages were in memory before and after each window, and no process of the run read a byte "
                "from a disk",
                "nfs": "all pages were in memory before and after each window, and the server got no request",
                "memory": "the files are in memory",
            }
        },
    ),
    Row("pixels_changed", PIXELS, examples=(PIXELS_EXAMPLE,)),
)
