"""What a what-if assumes."""

from __future__ import annotations

from loaderbench.findings.row import Row

WHATIF_ASSUMED = (
    Row(
        "whatif_workers",
        (
            "each worker takes as long for a batch as this run's workers did, but for waits for each other at the "
            "storage and at the {cpus:.2g} processor{cpus:plural} that the run may use",
            "each worker takes as long for a batch as this run's workers did, but for waits for each other at the "
            "storage",
        ),
        examples=({"cpus": 8.0}, {"cpus": None}),
    ),
    Row(
        "whatif_others",
        "other programs keep running, and each thread of this run gets as much CPU time as each of theirs; the "
        "interval also covers a scheduler that gives more workers no more CPU time in total, as between containers",
    ),
    Row(
        "whatif_first_workers",
        "passing a batch from a worker process is free: this run has no workers, so that cost is unknown",
    ),
    Row(
        "whatif_readers_probed",
        "the storage gives more readers {rate:rate} at most, as its probe measured",
        examples=({"rate": 5e8},),
    ),
    Row(
        "whatif_readers_fetched",
        "the storage gives more readers {rate:rate} at most, as measured by this run's arms `real` and `fetch`",
        examples=({"rate": 5e8},),
    ),
    Row(
        "whatif_readers_unknown",
        "more readers do not slow each other down; this run does not show whether that is so, and the interval also "
        "covers a storage that is already at its limit",
    ),
    Row("whatif_memory", "images come from memory, as in this run"),
    Row(
        "whatif_rate",
        "the storage gives {rate:rate} to all readers together; how long a file takes to answer stays as in this run",
        examples=({"rate": 5e8},),
    ),
    Row(
        "whatif_factor",
        "every read takes 1/{factor:g} as long; slow files stay as slow, and stalls of the storage stay",
        examples=({"factor": 2.0},),
    ),
    Row(
        "whatif_waits",
        "all time in which the script's workers waited, but not for a CPU, counts as reading: a sleep, a lock or "
        "another process too",
    ),
    Row(
        "whatif_other_storage",
        (
            "the storage is that of {run_id}: {rate:rate} by {by}, and a single reader takes {read_s:ms} for a batch "
            "of this run's bytes",
            "the storage is that of {run_id}: {rate:rate} by {by}; how long a file takes to answer stays as in this "
            "run",
        ),
        examples=(
            {"run_id": "RUN2", "rate": 5e8, "by": "probe", "read_s": 0.02},
            {"run_id": "RUN2", "rate": 5e8, "by": "arms", "read_s": None},
        ),
        choices={"by": {"probe": "its probe", "arms": "its arms `real` and `fetch`"}},
    ),
    Row(
        "whatif_decoder",
        "{decoder} takes {ratio:.2f} times as long as {before} to prepare the same images: by this run's own probe",
        examples=({"decoder": "another", "before": "this decoder", "ratio": 0.5},),
    ),
    Row(
        "whatif_device",
        "{device_name} takes {step_s:ms} for a step of {batch_size}: its emulated profile, {label}",
        examples=({"device_name": "NVIDIA A100", "step_s": 0.05, "batch_size": 64, "label": "published"},),
    ),
    Row("whatif_step", "the device takes {step_s:ms} for a step, as you say", examples=({"step_s": 0.012},)),
    Row(
        "whatif_precision",
        "that profile is of {precision}, this run of {before}",
        examples=({"precision": "amp-fp16", "before": "amp-bf16"},),
    ),
    Row(
        "whatif_issue",
        "the host issues a step in {issue_s:ms}, as in this run: the device's profile has no such figure",
        examples=({"issue_s": 0.004},),
    ),
    Row(
        "whatif_ranks",
        "each rank is this run on a machine of its own, and waits for the slowest one at the end of every step; what "
        "they exchange there takes no time",
    ),
    Row("whatif_ranks_storage", "each rank reads from a storage of its own (give --storage for one that they share)"),
    Row(
        "whatif_ranks_share",
        "the ranks share that storage: each gets {rate:rate}",
        examples=({"rate": 5e8},),
    ),
)
WHATIF_MISSING = (
    Row("whatif_one_block", "the run has one window with too few steps for an interval"),
    Row("whatif_no_case", "no run can be measured that is exactly this, so the ledger will not score it"),
)
