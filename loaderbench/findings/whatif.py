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
        "whatif_left",
        "other programs go on as they did, and leave the run {left:.2g} of the {cpus} processors; the interval reaches "
        "to where a run that wants more gets more",
        examples=({"left": 0.46, "cpus": 2},),
    ),
    Row(
        "whatif_fewer",
        "fewer workers wait less for the processors that others want too, by half of what is possible; the interval "
        "holds both ends",
    ),
    Row(
        "whatif_first_workers",
        "handing a batch over from a worker process costs nothing: this run has no workers that would tell",
    ),
    Row(
        "whatif_readers_probed",
        "the storage gives to more readers what its probe found: {rate:rate} at most",
        examples=({"rate": 5e8},),
    ),
    Row(
        "whatif_readers_fetched",
        "the storage gives to more readers what this run's arms `real` and `fetch` tell: {rate:rate} at most",
        examples=({"rate": 5e8},),
    ),
    Row(
        "whatif_readers_unknown",
        "reads take no longer beside more readers: nothing in this run tells, so the interval reaches to where the "
        "storage gives all of them no more than it gives now",
    ),
    Row("whatif_memory", "images come from memory, as in this run"),
    Row(
        "whatif_rate",
        "the storage gives {rate:rate} to all readers together; how long a file takes to answer stays as in this run",
        examples=({"rate": 5e8},),
    ),
    Row(
        "whatif_factor",
        "every read takes 1/{factor:g} of its time, slow files too; standstills of the storage stay",
        examples=({"factor": 2.0},),
    ),
    Row(
        "whatif_waits",
        "what the script's workers waited for without wanting a processor counts as reading: a sleep, a lock or "
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
            {"run_id": "RUN2", "rate": 5e8, "by": "fetch", "read_s": None},
        ),
        choices={"by": {"probe": "its probe", "fetch": "its arms `real` and `fetch`"}},
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
        "the host issues a step in {issue_s:ms}, as in this run: the device's profile does not tell",
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
    Row("whatif_one_block", "the run has one window with too few steps: nothing tells how far a figure may be off"),
    Row("whatif_no_case", "no run can be measured that is exactly this, so the ledger will not score it"),
)
