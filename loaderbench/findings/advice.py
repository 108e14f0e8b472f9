"""Advice: what to try. What each changes of the case is in its details, under `change`."""

from __future__ import annotations

from loaderbench.findings.figures import between, number
from loaderbench.findings.row import Details, Row

PIXELS = (
    "changes pixels by {mean:.2f} of 255 levels on average, and by {most:.2f} in the most changed of {num_samples} "
    "samples; {scaled_fraction:%} of the samples are decoded smaller"
)
PIXELS_EXAMPLE = {"mean": 0.84, "most": 2.8, "scaled_fraction": 0.9, "num_samples": 19}
NEEDS = {"needs_bytes_per_s": 3e8, "still_rising": False}
UNKNOWN = dict.fromkeys(("gives_bytes_per_s", "gives_low", "gives_high", "readers"))
GIVES = {"gives_bytes_per_s": 1e8, "gives_low": 9e7, "gives_high": 1.1e8, "readers": 32, "still_rising": True}
WIDE_GIVES = {"gives_bytes_per_s": 2e9, "gives_low": 1.9e9, "gives_high": 2.1e9, "readers": 4}
STARTS = "Each start takes {start_s:duration} of an epoch's {epoch_s:duration}"


def _headroom(details: Details) -> str:
    if "needs_bytes_per_s" not in details:
        return ""
    if details.get("gives_bytes_per_s") is None:
        return "; the run needs {needs_bytes_per_s:rate}, and what this storage delivers was not measured"
    rate = number(details, "gives_bytes_per_s")
    low, high = number(details, "gives_low") or rate, number(details, "gives_high") or rate
    rising = ", still rising" if details.get("still_rising") else ""
    return (
        f"; the run needs {{needs_bytes_per_s:rate}}, this storage delivers {{gives_bytes_per_s:rate}}"
        f"{between(rate, low, high)} to {{readers:.0f}} reader{{readers:plural}}{rising}"
    )


def _faster_storage(details: Details) -> str:
    where = "keep the data set in memory (--cache warm), or move it" if details.get("change") else "move the data set"
    return f"{where} to faster storage{_headroom(details)}"


def _data_in_memory(details: Details) -> str:
    slow = {"stalls": "stalls", "tail": "slow files"}.get(str(details.get("kind")))
    where = "keep the data set in memory (--cache warm)"
    if slow is None:
        return f"{where}: the latency of each file costs the time, not bandwidth{_headroom(details)}"
    where = f"{where}, or move it" if details.get("change") else "move the data set"
    return f"{where} to a storage without {slow}: {slow} cost the time, not bandwidth{_headroom(details)}"


def _num_workers(details: Details) -> str:
    processors = "{cpus} CPU{cpus:plural}"
    change = details.get("change")
    if not isinstance(change, dict) or not change:
        return f"try more workers: DataLoader(num_workers=…), up to {processors} (now {{now}})"
    if number(change, "workers") < number(details, "now"):
        return (
            f"use fewer workers: DataLoader({{change:arguments}}) (now {{now}} on {processors}; extra workers only "
            "wait for each other, and each uses memory)"
        )
    return "use more workers: DataLoader({change:arguments}) (now {now}; more than these give < 3 %)"


ADVICE = (
    # storage
    Row(
        "faster_storage",
        _faster_storage,
        examples=(
            {"change": {"cache": "warm"}},
            {"change": None, **NEEDS, **UNKNOWN},
            {"change": None, **NEEDS, **GIVES},
        ),
    ),
    Row(
        "data_in_memory",
        _data_in_memory,
        examples=(
            {"change": {"cache": "warm"}, **NEEDS, "needs_bytes_per_s": 1e8, **WIDE_GIVES, "kind": None},
            {"change": None, "kind": "stalls"},
            {"change": {"cache": "warm"}, "kind": "stalls"},
            {"change": None, "kind": "tail"},
            {"change": {"cache": "warm"}, "kind": "tail"},
        ),
    ),
    Row(
        "more_files_at_once",
        "read more files in parallel: {change:flags} (this storage has a high latency, but serves many readers at "
        "once)",
        examples=({"change": {"loader": "multiprocess", "workers": 32}},),
    ),
    Row(
        "more_prefetch",
        "prefetch more batches to absorb slow reads: {change:flags} (now {now})",
        examples=({"change": {"prefetch": 8}, "now": 2},),
    ),
    Row(
        "fewer_opens",
        "open fewer files, because opening them takes the time: pack the images into container files (loaderbench "
        "dataset convert)",
    ),
    Row(
        "slow_files_elsewhere",
        (
            "move or copy the slow files ({folder}): the others are fast",
            "move or copy the slow files ({files}): the others are fast",
        ),
        examples=({"folder": "n01", "files": ["n01/1.jpg"]}, {"folder": None, "files": ["a"]}),
    ),
    # preparation
    Row(
        "parallel_loader",
        (
            "prepare batches in parallel: {change:flags} (more workers give < 3 %)",
            "use a parallel loader: --loader multiprocess --workers {workers}",
        ),
        examples=({"change": None, "workers": 8}, {"change": {"loader": "multiprocess", "workers": 8}}),
    ),
    Row(
        "more_workers",
        ("add workers: {change:flags} (now {now}; more gives < 3 %)", "add workers: --workers {workers} (now {now})"),
        examples=({"change": None, "workers": 8, "now": 2}, {"change": {"workers": 8}, "now": 2}),
    ),
    Row(
        "decode_in_threads",
        "decode in threads, directly into the batch: {change:flags} (more threads give < 3 %)",
        examples=({"change": {"loader": "threaded", "decoder": "turbojpeg", "output": "uint8", "workers": 8}},),
    ),
    Row("more_threads", "add threads: {change:flags} (more gives < 3 %)", examples=({"change": {"workers": 8}},)),
    Row(
        "other_decoder",
        "decode with {change[decoder]}: {change:flags}",
        examples=({"change": {"decoder": "turbojpeg", "decoder_options": {}, "decode_scale": None}},),
    ),
    Row(
        "direct_samples",
        "write each sample directly into its batch, without the copies of torchvision's transforms: {change:flags}",
        examples=({"change": {"loader_options": {"samples": "direct"}}},),
    ),
    Row(
        "scaled_decode",
        f"decode large crops at 1/2, 1/4 or 1/8 of their size: {{change:flags}} ({PIXELS})",
        examples=({"change": {"decoder": "libjpeg", "decode_scale": "auto"}, **PIXELS_EXAMPLE},),
    ),
    Row(
        "uint8_for_prep",
        "deliver uint8 batches and normalize on the device: --output uint8",
        examples=({"change": {"output": "uint8"}},),
    ),
    Row(
        "smaller_images",
        "store smaller images: loaderbench dataset derive --res {resolution}",
        examples=({"resolution": 256},),
    ),
    Row(
        "prep_and_memory",
        "do both: {of:finding}, and keep the data in memory: --cache warm",
        examples=(
            {"change": {"decoder": "turbojpeg", "cache": "warm"}, "of": "other_decoder"},
            {"change": {"decode_scale": "auto", "cache": "warm"}, "of": "scaled_decode", **PIXELS_EXAMPLE},
        ),
    ),
    # contention
    Row("free_processors", "the workers wait for a CPU: stop other programs, or add cores"),
    Row(
        "fewer_workers",
        "use fewer workers: {change:flags} (now {now} on {cpus} CPUs; extra workers only wait for each other, and each "
        "uses memory)",
        examples=({"change": {"workers": 2}, "now": 8, "cpus": 2},),
    ),
    Row(
        "fewer_threads",
        "the model and the loader share {cpus} CPUs: add cores so that each has its own (limiting their threads with "
        "OMP_NUM_THREADS gives less)",
        examples=({"cpus": 2},),
    ),
    Row(
        "stop_neighbours",
        "stop the other processes, which use {cores:.2f} of {cpus} CPUs, or pin them to other CPUs (taskset, cpuset)",
        examples=({"cores": 1.04, "cpus": 2},),
    ),
    Row(
        "raise_quota",
        "raise the CPU quota of {quota:g} (cpu.max, the container's --cpus or CPU limit); the machine has {cpus} CPUs",
        examples=({"quota": 0.7, "cpus": 2},),
    ),
    Row(
        "less_steal",
        "the hypervisor gives {cores:.2f} of {cpus} CPUs to other guests: use a machine with dedicated CPUs",
        examples=({"cores": 0.5, "cpus": 2},),
    ),
    # the device
    Row(
        "uint8_for_transfer",
        "copy uint8, a quarter of the bytes, and normalize on the device: --output uint8",
        examples=({"change": {"output": "uint8"}},),
    ),
    Row("pinned_memory", "deliver batches in pinned memory, so that the copy needs no host time"),
    Row(
        "larger_batch",
        "use a larger batch, which needs fewer launches per image: {change:flags} (now {now})",
        examples=({"change": {"batch_size": 128}, "now": 64},),
    ),
    Row("fewer_launches", "replay the step as a CUDA graph, or compile the model"),
)
WATCHED_ADVICE = (
    Row(
        "num_workers",
        _num_workers,
        examples=(
            {"change": {"workers": 8}, "now": 2, "cpus": 16},
            {"change": {"workers": 2}, "now": 8, "cpus": 2},
            {"change": None, "now": 0, "cpus": 2},
        ),
    ),
    Row(
        "prefetch_factor",
        "prefetch more batches, because some take much longer than others: DataLoader({change:arguments}) (now {now}; "
        "uses memory)",
        examples=({"change": {"prefetch": 8}, "now": 2},),
    ),
    Row(
        "persistent_workers",
        f"keep the workers between epochs: DataLoader({{change:arguments}}). {STARTS}",
        examples=({"change": {"loader_options": {"persistent_workers": "True"}}, "start_s": 0.4, "epoch_s": 9.0},),
    ),
    Row(
        "keep_loader",
        f"create the DataLoader once, before the loop over epochs, with persistent_workers=True. {STARTS}",
        examples=({"start_s": 0.4, "epoch_s": 9.0},),
    ),
    Row(
        "pin_memory",
        "use DataLoader({change:arguments}), so that the copy to the GPU needs no host time (gain unknown: copies are "
        "not timed)",
        examples=({"change": {"loader_options": {"pin_memory": "True"}}},),
    ),
    Row(
        "worker_threads",
        "use one thread per worker: torch.set_num_threads(1) in worker_init_fn, or OMP_NUM_THREADS=1 ({workers} "
        "workers use {threads} threads each on {cpus} CPUs)",
        examples=({"threads": 4, "workers": 2, "cpus": 2},),
    ),
    Row(
        "cheaper_transform",
        "make the transform {name} cheaper: it takes {part:%} of a worker's time; gain without it",
        examples=({"name": "Resize", "part": 0.4},),
    ),
    Row(
        "cheaper_collate",
        "make the collate function cheaper: {name} takes {part:%} of a worker's time; gain without it",
        examples=({"name": "pad", "part": 0.4},),
    ),
    Row(
        "cheaper_samples",
        "make samples cheaper: {name} computes for {part:%} of a worker's time, so store its results, smaller or "
        "already decoded; gain without that work",
        examples=({"name": "Photos.__getitem__", "part": 0.4},),
    ),
    Row(
        "cheaper_line",
        "make {line} cheaper: {part:%} of a worker's time is spent there. Open files once for each worker, not once "
        "for each sample; read what you need, not more; or store its results. Gain without it",
        examples=({"line": "zips.py:14 zipfile.ZipFile", "part": 0.9},),
    ),
    Row(
        "batched_fetch",
        "fetch whole batches: a sample takes {sample_s:duration}, most of which is Python around it ({line}). Give the "
        "data set a method `__getitems__(indices)`, or let a BatchSampler be its sampler, which gives it lists",
        examples=({"line": "rows.py:11 X[i]", "sample_s": 8e-6},),
    ),
    Row(
        "faster_sampler",
        "draw the indices of many samples at once: {line} runs in the script's main process and takes "
        "{seconds:duration} of each step; more workers do not help",
        examples=({"line": "train.py:13 np.random.choice", "seconds": 0.011},),
    ),
    Row(
        "release_gil",
        "move the work of {line} to a process, or make it sleep between its turns: its thread holds the GIL, for which "
        "the training thread waits {seconds:duration} of each step",
        examples=({"line": "metrics.py:5 sum", "seconds": 0.013},),
    ),
    Row(
        "fewer_torch_threads",
        "use fewer threads: torch.set_num_threads({cpus}) or less, now {threads} on {cpus} CPU{cpus:plural}; the step "
        "waits for them at {line}",
        examples=({"line": "train.py:11 backward", "threads": 16, "cpus": 2},),
    ),
    Row(
        "less_collecting",
        "collect garbage less often ({line}): call gc.freeze() after the setup, raise gc.set_threshold, or call "
        "gc.collect() once in an epoch. It takes {seconds:duration} of a mean step",
        examples=({"line": "train.py:11 main", "seconds": 0.009},),
    ),
    Row(
        "shorter_pause",
        "do {what} less often, or in another thread or process: {line} takes {seconds:duration} of a mean step",
        examples=(
            {"what": "checkpoint", "line": "train.py:40 torch.save", "seconds": 0.02},
            {"what": "validation", "line": "train.py:41 evaluate", "seconds": 0.02},
            {"what": "logging", "line": "train.py:42 print", "seconds": 0.02},
            {"what": "compile", "line": "train.py:43 net", "seconds": 0.02},
        ),
        choices={
            "what": {
                "checkpoint": "the checkpoint",
                "validation": "the validation",
                "logging": "the logging",
                "compile": "the compilation (shapes that change?)",
            }
        },
    ),
    Row(
        "shorter_lock",
        "hold the lock at {line} for less, or give each worker a file or connection of its own: workers wait for it "
        "for {part:%} of their time. More workers do not help",
        examples=({"line": "data.py:41 lock.acquire", "part": 0.5},),
    ),
    Row(
        "no_sleep",
        "remove the wait at {line}: workers sleep there for {part:%} of their time. Storage is not the cause",
        examples=({"line": "data.py:41 time.sleep", "part": 0.9},),
    ),
    Row(
        "use_a_loader",
        "give the work of {line} to a DataLoader with workers: the loop makes its batches itself, one after the other",
        examples=({"line": "train.py:31 get_batch"},),
    ),
    Row(
        "keep_memory",
        "keep freed memory: put MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432 before python. A "
        "worker spends {part:%} of its CPU time on memory that glibc returns to the system and allocates again",
        examples=({"part": 0.3},),
        remark="The settings are those that loaderbench's own runs use.",
    ),
    Row(
        "cache_in_memory",
        "keep the data set in memory: it needs about {bytes:size}, and {available:size} are free",
        examples=({"bytes": 4e9, "available": 2e10},),
    ),
    Row(
        "fewer_reads",
        (
            "make fewer, larger reads: pack samples of {bytes:size} into shards (WebDataset, LitData), or use faster "
            "storage",
            "make fewer, larger reads: pack samples into shards (WebDataset, LitData), or use faster storage",
        ),
        examples=({"bytes": 4e4}, {}),
    ),
)
ADVICE_CODES = tuple(row.code for row in (*ADVICE, *WATCHED_ADVICE))
NOT_VERIFIED = (
    Row("cache_state_gone", "measuring changes the data set's own cache state: run with --cache cold or --cache warm"),
    Row("no_step_in_turn", "no step finished within its turn"),
)
