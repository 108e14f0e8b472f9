"""What `loaderbench attach` says of a job."""

from __future__ import annotations

from collections.abc import Mapping

from loaderbench.findings.row import Details, Row
from loaderbench.plain import Json

SHARE = {"share": 0.62, "low": 0.57, "high": 0.67}
LIMITS: Mapping[Json, str] = {
    "storage": "storage limits this job", "prep": "CPU preparation limits this job",
    "contention": "missing processors limit this job",
    "compute": "the training step limits this job, which does not wait for data",
}  # fmt: skip
DETAILS: Mapping[str, Mapping[Json, str]] = {
    "storage": {"latency": " (each read waits)", "bandwidth": " (its bandwidth)", "connections": " (connections)"},
    "prep": {
        "sampler": " (the sampler, in the main process)", "delivery": " (passing batches to the main process)",
        "lock": " (workers wait for a lock)", "sleep": " (the data set's code sleeps)",
        "network": " (the data set's code waits for the network)", "one_worker": " (one worker is late)",
        "order": " (one late batch holds up the others)", "collate": " (collate)", "decode": " (decoding)",
        "dataset_code": " (the data set's own code)", "epoch_start": " (workers start anew each epoch)",
    },
    "contention": {
        "quota": " (a control group's quota)", "neighbours": " (other programs)", "affinity": " (the affinity mask)",
        "own_threads": " (the job's own threads)", "workers": " (more workers than processors)",
        "steal": " (the hypervisor)", "gil": " (another thread holds the GIL)",
    },
    "compute": {
        "step": "", "checkpoint": " (checkpoints)", "logging": " (logging)", "validation": " (validation)",
        "compile": " (compilation)", "sync": " (synchronising calls)", "collective": " (a collective)",
        "gc": " (garbage collection)",
    },
}  # fmt: skip
NO_DETAIL: Mapping[Json, str] = {None: ""}
NAMED = tuple({"cause": cause, "detail": detail} for cause, texts in DETAILS.items() for detail in (None, *texts))
"""Each cause and detail."""
TRY: Mapping[str, str] = {
    "storage": "read from a faster storage or a local copy, or use more workers: more reads are then under way at once",
    "bandwidth": "read fewer bytes (smaller or compressed files), or from a faster storage",
    "prep": "use more workers if processors are free, or make the data set's code cheaper",
    "sampler": "make the sampler cheaper, or draw its indices ahead: it runs in the main process",
    "delivery": "deliver fewer, larger arrays a batch: each one is passed by itself",
    "lock": "remove the lock that workers share: with it more workers gain nothing",
    "sleep": "remove the sleep from the data set's code, or use more workers",
    "network": "cache what the data set asks for over the network, or use more workers",
    "one_worker": "divide the work evenly among workers: one is busy while others wait",
    "order": "let batches be delivered as they are ready: DataLoader(in_order=False)",
    "epoch_start": "keep workers between epochs: DataLoader(persistent_workers=True)",
    "contention": "use as many workers and threads as there are processors",
    "quota": "raise the control group's CPU quota, or use fewer workers",
    "neighbours": "move the other programs away, or give this job processors of its own",
    "affinity": "let the job use more of the machine's processors (taskset, cpuset)",
    "gil": "move the other thread's work to a process of its own: it holds the GIL",
    "own_threads": "use fewer threads (OMP_NUM_THREADS, torch.set_num_threads): they want more processors than exist",
    "compute": "feeding it faster gains nothing: make the step cheaper, or use a faster device",
}


def _advice(details: Details) -> str:
    return TRY.get(str(details["detail"]), TRY[str(details["cause"])])


STAGES: Mapping[Json, str] = {"storage": "storage", "prep": "CPU preparation"}
CAUSES: Mapping[Json, str] = {**STAGES, "contention": "missing processors"}
ATTACH = (
    Row("attach_limits", "{cause}{detail}", examples=NAMED,
        choices={"cause": LIMITS, "detail": {**NO_DETAIL, **{name: text for texts in DETAILS.values()
                                                           for name, text in texts.items()}}}),
    Row("attach_try", _advice, examples=NAMED),
    Row("attach_mixed", "{one} and {other} limit this job together", choices={"one": CAUSES, "other": STAGES},
        examples=({"one": "storage", "other": "prep"}, {"one": "contention", "other": "prep"},
                  {"one": "prep", "other": "storage"})),
    Row("attach_few_looks", "too few looks ({num:d}) to name a cause: attach for longer, e.g. --seconds 60",
        examples=({"num": 12},)),
    Row("attach_wide", "it looks like {cause}, worth {low:.2f}× to {high:.2f}×: too wide to name; try --seconds 60",
        examples=tuple({"cause": cause, "low": 1.02, "high": 1.4} for cause in CAUSES), choices={"cause": CAUSES}),
    Row("attach_balanced", "no single cause is worth its removal: the loader and the step take about as long"),
    Row("attach_threads", "threads of the main process want {wanted:.1f} processors of {cpus:.2g}",
        examples=({"wanted": 9.6, "cpus": 2.0},)),
    Row("attach_unseen", "the main thread waits for {share:%} of the time, and the kernel does not say for what",
        examples=({"share": 0.95},)),
    Row(
        "attach_one_thread",
        "the main thread is busy for {busy:%} of the time: its step, or preparation in the main process (a sampler, "
        "collate); the names of its functions would show which",
        examples=({"busy": 0.93},),
    ),
    Row("attach_unknown_loader", "the main thread does not wait for its workers, and they do not wait for it: they are "
        "not those of a loader that I know"),
    Row(
        "attach_stuck",
        ("the main thread has not run for {seconds:duration}: it waits in state {state} ({of})",
         "the main thread has not run for {seconds:duration}: it waits in state {state}"),
        examples=({"state": "file", "of": "rpc_wait_bit_killable", "seconds": 431.0},
                  {"state": "lock", "of": "", "seconds": 25.0}),
    ),
    Row("attach_starting", "it is starting: {age_s:duration} old, and has asked for no batch yet",
        examples=({"age_s": 12.0},)),
    Row("attach_no_rate_workers", "no worker processes, whose messages would be counted"),
    Row("attach_no_rate_rhythm", "no messages of one batch each were seen"),
    Row("attach_waits", "the main thread waits for data {share:%} of the time ({low:%} – {high:%})", examples=(SHARE,)),
    Row("attach_idle", "workers wait for the main thread {share:%} of the time ({low:%} – {high:%})",
        examples=(SHARE,)),
    Row("attach_states", "{role}: {shares:shares}",
        examples=({"role": "worker", "shares": {"running": 0.7, "file": 0.3}},
                  {"role": "consumer", "shares": {"running": 1.0}}),
        choices={"role": {"worker": "of the time that workers work",
                          "consumer": "of the main thread's own time"}}),
    Row("attach_processors",
        ("CPU: the job uses {own:.2f} of {cpus:.2g} processors, other programs {others:.2f}",
         "CPU: the job uses {own:.2f} of {cpus:.2g} processors"),
        examples=({"own": 1.2, "cpus": 2.0, "others": 0.7}, {"own": 1.2, "cpus": 2.0, "others": None})),
    Row("attach_restarts", "{num:d} worker{num:plural} started meanwhile: an epoch began", examples=({"num": 4},)),
    Row("attach_try_watch", "for names, finer causes and narrower bounds: loaderbench watch SCRIPT"),
    Row("attach_rights", "only waiting functions of the kernel could be seen, not calls: with CAP_SYS_PTRACE, or "
        "kernel.yama.ptrace_scope=0, bounds are narrower"),
)  # fmt: skip
