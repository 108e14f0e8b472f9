"""The raw facts of a run, as they are stored. Every conclusion is computed from these.

Schema history
    1  first version; a segment may hold `kernels` (runs stored before have none)
    2  a run is stored whole: environment, sampling and the supervisor's caveats too; facts are typed; caveats have
       codes and details instead of sentences; segments have a lane; trials of the advice.
       Later runs also have a digest of their tables (files.py), and a tag
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import CacheState, Case, Change
from loaderbench.cases.traits import LoaderTraits
from loaderbench.plain import Json, JsonObject
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.rank_place import RankClock, RankPlace
from loaderbench.recording.thread_samples import ThreadSamples

SCHEMA = 2

Status = Literal["ok", "failed", "skipped", "interrupted"]
Table = NDArray[np.int64]
"""Rows of a stated tuple of columns."""

# -- tables ----------------------------------------------------------------------------------------------

STEP_FIELDS = (
    "called_ns",  # host: next(loader) was called
    "returned_ns",  # host: it returned
    "issued_ns",  # host: the last work of the step was enqueued
    "waited_ns",  # host: the bound on steps in flight let it go on (= issued_ns when it did not block)
    "copy_begin_ns",  # device clock, mapped to the host's: the copy could begin
    "copy_end_ns",  # device clock: the copy was done, compute could begin
    "done_ns",  # device clock: the step was done
    "busy_ns",  # device compute busy time within the step; -1 where unknown
    "num_samples",
    "encoded_bytes",
    "arrived_ns",  # host: the batch had come from the worker's process, ready to be taken; -1 where its loader does not
    # tell, and where no other process made it: then it was there when it was complete (`ready_ns` of its span)
    "queued_ns",  # host: since the step before ended, its thread was runnable but not running; -1 where unknown
    "ahead",  # 1: the device still worked on the step before when all of this one was enqueued; 0: it did not, and the
    # device had waited, or was about to; -1: there was no step before, or no device
)
"""Columns of a segment's `steps` table. Device columns are -1 in an arm without a device. Older runs lack the last
three."""

MAX_STEPS_IN_FLIGHT = 2
"""Steps that the host may be ahead of the device. A loader that reuses its buffers keeps the last
MAX_STEPS_IN_FLIGHT + 1 delivered batches untouched."""


PHASE_FIELDS = (
    "begun_ns",  # host: the batch's copy was enqueued, the forward pass begins
    "forward_ns",  # host: the forward pass was enqueued
    "backward_ns",  # host: the backward pass was enqueued, the update begins; -1 in inference
)
"""Columns of a segment's `phases`: a step's parts as the host enqueues them, between `returned_ns` and `issued_ns`."""


SPAN_FIELDS = (
    "worker",  # number of the worker that made the batch, -1 where several shared it
    "start_ns",  # work on the batch began            (time.perf_counter_ns: CLOCK_MONOTONIC, one for all processes)
    "ready_ns",  # the batch was complete in the worker
    "read_ns",  # wall time in each stage, summed over the batch's images
    "decode_ns",
    "augment_ns",  # crop, resize, flip, normalize
    "collate_ns",
    "cpu_ns",  # CPU time of the worker's threads between start and ready
    "runqueue_ns",  # time runnable but not running (/proc/thread-self/schedstat, field 2); -1 where unknown
    "major_faults",  # page faults that needed the storage (getrusage ru_majflt); -1 where unknown
    "page_bytes",  # sizes of the files read, each rounded up to whole pages: what a cold read moves; of a watched
    # script the bytes that it asked for, or received over TCP, whichever are more; -1 where unknown
    "minor_faults",  # page faults without the storage: memory used for the first time (ru_minflt); of a watched script
    # those of the data set's own code, less the growth of its process; -1 where unknown
    "read_cpu_ns",  # the part of cpu_ns that reading took; -1 where unknown
    "read_queue_ns",  # the part of runqueue_ns within read_ns, of reads behind one of WAITING_READ_NS; -1 where unknown
)
"""Columns of a span. One row of int64 a batch, written by the worker that made it. Older runs lack the last two or
three."""
WAITING_READ_NS = 50_000
"""Behind a read as long, the next one's wait for a processor is asked for: it costs 3 µs a file, too much where files
come from memory, and then there is next to none of it within reading."""


READ_FIELDS = (
    "image",  # position in the list of images; of the container, where the images lie in containers
    "begin_ns",  # perf_counter_ns: opening it began
    "open_ns",  # until it was open
    "read_ns",  # from then until it was read and closed
    "bytes",
)
"""Columns of one read of a file, as its reader tells them."""
SLOW_READ_FIELDS = (
    *READ_FIELDS,
    "batch",  # row of the segment's `steps` that it was read for; -1: none of them, or unknown
)
"""Columns of a read that is kept. Runs that were stored without the last one lack it."""

READ_BIN_FIELDS = (
    "opens",  # number of opens that took so long
    "open_ns",  # their sum
    "reads",
    "read_ns",
    "files",  # both together
    "file_ns",
)
"""Columns of a histogram of reads."""
BINS_A_DOUBLING = 4
READ_BIN_EDGES_NS = tuple(round(1e3 * 2 ** (number / BINS_A_DOUBLING)) for number in range(27 * BINS_A_DOUBLING))
"""1 µs to over 100 s, four bins a factor of 2. There is one more bin than edges: the first is below 1 µs."""

PAUSE_FIELDS = (
    "begin_ns",  # the last read that ended before, or, where later, the first of those that wait began
    "end_ns",  # a read ended
    "waiting",  # reads that were under way when it ended
    "released",  # those of them that ended within RELEASE_PART of its length behind it
)
"""Columns of a pause: no read ended though some were under way."""
RELEASE_PART = 0.05
MOST_SLOWEST, MOST_SLOWEST_OF_REAL = 128, 1024
"""The slowest reads of a window are kept one by one: behind a standstill as many are slow as there are readers. Of
`real` more are kept, since what slow files take is to be known batch by batch."""

KERNEL_FIELDS = (
    "begin_ns",  # the device began it, mapped to the host's perf_counter_ns
    "end_ns",
    "stream",  # the device's queue that it ran in; the thread where the CPU is the device
    "kind",  # KERNEL, COPY or MEMSET
    "step",  # row of the segment's `steps` that launched it
)
"""Columns of a segment's `kernels`: everything that the device ran in a traced window, one row of int64 each."""
KERNEL, COPY, MEMSET = 0, 1, 2
"""Kinds of a kernel row. On the CPU device top-level operator spans are its kernels."""

READ: Mapping[str, int] = {name: number for number, name in enumerate(SLOW_READ_FIELDS)}
READ_BIN: Mapping[str, int] = {name: number for number, name in enumerate(READ_BIN_FIELDS)}
PAUSE: Mapping[str, int] = {name: number for number, name in enumerate(PAUSE_FIELDS)}
STEP: Mapping[str, int] = {name: number for number, name in enumerate(STEP_FIELDS)}
SPAN: Mapping[str, int] = {name: number for number, name in enumerate(SPAN_FIELDS)}
ROW: Mapping[str, int] = {name: number for number, name in enumerate(KERNEL_FIELDS)}
"""Column name → number."""

# -- segments --------------------------------------------------------------------------------------------

Counters = Mapping[str, int]
"""Growth of the storage's counters: `read_bytes`, `reads`; `io_ticks_ms` of a disk; `rpcs`, `queue_ms`, `rtt_ms`,
`exe_ms`, `retransmits` of an NFS mount (samplers/sources.py)."""


@dataclass(frozen=True)
class HeldSteps:
    """Steps that were enqueued completely before the device began them."""

    busy_ns: tuple[int, ...]
    """Device time of each step, when the device never waits for the host."""
    issue_ns: tuple[int, ...]
    """Host time to enqueue each step, when the host never waits for room in the device's queue."""


@dataclass(frozen=True)
class StorageWindow:
    """What the storage did during a segment."""

    moved: Counters | None
    """None where no counter exists."""
    expected_bytes: int
    """What a cold read of the segment's files has to move."""
    requested_bytes: int | None
    """Bytes that this process requested in read calls (`rchar` of proc(5))."""
    residency_before: float | None
    """Fraction of the files' pages that were in the page cache; None where that cannot be seen."""
    residency_after: float | None
    process_read_bytes: int | None = None
    """Bytes that were fetched from block devices for this process and its descendants (`read_bytes` of proc(5)); None
    where the kernel does not count them, and in runs that did not store it."""
    looked_s: float | None = None
    """The longest that a look at the page cache took, before the window or behind it: it opens files, and waits where
    the storage stands still. None in runs that did not store it."""

    @property
    def untouched(self) -> bool:
        """Whether the window provably took nothing from a storage of this machine: every sampled page was in memory
        before it and after it, no process read a byte, and an NFS client sent no request. It says nothing of a FUSE
        daemon or a network, which count nowhere here (`tells_idle`)."""
        whole = self.residency_before == 1.0 and self.residency_after == 1.0
        return whole and self.process_read_bytes == 0 and not (self.moved or {}).get("rpcs")


@dataclass(frozen=True)
class CpuWindow:
    """Who had the processors during a window; all in CPU seconds unless stated."""

    wall_s: float
    own_s: float
    """Used by the measuring process and its descendants (/proc/PID/task/TID/schedstat, field 1)."""
    own_queued_s: float | None
    """Their threads were runnable, but ran on no processor (field 2). It holds the time in which a cgroup's quota
    stopped them."""
    consumer_queued_s: float | None
    """The same of the thread alone that takes batches and issues."""
    machine_busy_s: float | None
    """Used by all processes, on the processors that this one may use (/proc/stat; ticks of 10 ms)."""
    stolen_s: float | None
    """The hypervisor ran other guests there."""
    cpus: int
    """Processors that the affinity mask allows."""
    quota_cpus: float | None
    """The tightest cgroup quota; None without one."""
    num_throttled: int | None
    """Periods in which a cgroup's quota stopped the run (`nr_throttled` of cpu.stat); None without a quota."""
    python_threads_s: float | None = None
    """Used by the other Python threads of the calling process (`threading.enumerate`), and by its threads that ended;
    None in runs that did not store it."""
    asked_bytes: int | None = None
    """What read calls of the process and its descendants returned, from the page cache too (`rchar` of /proc/PID/io),
    or the process's TCP connections received, whichever is more; None where unknown, and where nothing asked for it."""
    major_faults: int | None = None
    """Pages that they had to wait for (`majflt` of /proc/PID/stat)."""
    throttled_s: float | None = None
    """Processors' time in which a cgroup's quota stopped the run's threads there (`throttled_usec` of cpu.stat, in
    version 1 `throttled_time`); None without a quota, where the kernel does not tell, and in runs that did not store
    it."""
    quota_period_s: float | None = None
    """The tightest quota is given anew so often; None without one, and in runs that did not store it."""
    busiest_s: float | None = None
    """Used by that thread which was running or runnable longest, but for the one that takes batches and issues; None in
    runs that did not store it."""
    busiest_queued_s: float | None = None
    """It was runnable, but ran on no processor."""


@dataclass(frozen=True)
class WaitLooks:
    """What all other threads of the process and its descendants did in some of the calls of `next()`, by readings at
    both ends (/proc/PID/task/TID/schedstat)."""

    num: int
    """Calls; the others are of all of them together."""
    wall_s: float
    busy_s: float
    """They ran, or were runnable but ran on no processor."""


@dataclass(frozen=True)
class ReadTimes:
    """How long single files took in a segment, warm-up and drained batches included."""

    histogram: Table
    """[len(READ_BIN_EDGES_NS) + 1, len(READ_BIN_FIELDS)]"""
    slowest: Table
    """[≤ MOST_SLOWEST, of `real` ≤ MOST_SLOWEST_OF_REAL, len(SLOW_READ_FIELDS)], the slowest first."""
    pauses: Table
    """[≤ 32, len(PAUSE_FIELDS)], the longest first; up to 128 more that the slowest reads waited through."""
    begin_ns: int
    """The first read began (perf_counter_ns)."""
    end_ns: int
    """The last one ended."""

    @property
    def judged(self) -> Table:
        """The slowest reads that verdicts go by: as many in each arm."""
        return self.slowest[:MOST_SLOWEST]


@dataclass(frozen=True)
class TraceWitness:
    """Kernels a step in the trace, compared with those expected by another count."""

    name: Literal["pieces", "operators_found", "operators", "launch_calls"]
    counted: float
    expected: float
    at_least: bool = False
    """True where the expected number is a minimum, since an operator may launch several kernels."""


@dataclass(frozen=True)
class TraceFacts:
    """How a traced window was recorded."""

    source: str
    drift_ns: int
    """Drift of the recorder's clock against the host's over the window."""
    uncertainty_ns: int
    """Uncertainty of the mapping between the two clocks."""
    graph_launches: int
    """Launches of CUDA graphs in the window."""
    witnesses: tuple[TraceWitness, ...]
    first_step: int = 0
    """The first row of `steps` that was recorded: later than 0 where a window of `real` keeps its last steps' log."""


@dataclass(frozen=True)
class StepDelay:
    """What was put into each step of a window."""

    place: Literal["host", "stream"]
    """The thread that takes the batches slept before it asked for one; or the device's stream was kept busy."""
    asked_ns: int
    mean_ns: float
    """As it was: by the host's clock, or by the device's events."""


SCRIPT_LANE = "script"
"""Of the segments of a watched script."""


@dataclass
class Segment:
    """One measured window of one arm: consecutive steps after the arm's warm-up.

    The first `num_warmup` rows of `steps` are the warm-up; the window is the rest.
    """

    arm: Arm
    round: int
    num_warmup: int
    steady: bool
    """The loader's queue was steadily full or steadily empty when the window opened. For short runs: the loader came to
    rest before the run, so that its buffer was full."""
    steps: Table
    """[N, len(STEP_FIELDS)]"""
    spans: Table | None
    """[M, len(SPAN_FIELDS)], M ≥ N where the batches left in the queue were drained; None: unknown."""
    opened_ns: int
    """When the batches were first requested (perf_counter_ns)."""
    closed_ns: int
    phases: Table | None = None
    """[N, len(PHASE_FIELDS)]; None where the workload has none (an emulated device, an arm without a device)."""
    kernels: Table | None = None
    """[K, len(KERNEL_FIELDS)] of a traced window, or of the last steps of one of `real` where recording changes
    nothing; None: not traced."""
    lane: str = ""
    """What ran it: a device (`cuda:0`) or a rank (`rank3`)."""
    wall_s: float | None = None
    """Duration of the segment, including its preparation."""
    first_batch_s: float | None = None
    """From requesting the batches to the first one delivered; None where the stream went on from an earlier window."""
    num_drained: int | None = None
    """Finished batches that were left in the queue; None where the loader cannot tell."""
    consumer_cpu_s: float | None = None
    """CPU time of the thread that takes batches and issues, over the window."""
    wait_cpu_s: float | None = None
    """The part of it within `next()`; None where it was not timed: the loader tells of itself."""
    wait_looks: WaitLooks | None = None
    """None where nobody looked."""
    stage_times: Mapping[str, tuple[int, int]] | None = None
    """Stage → (batches, wall ns), of a loader that counts whole batches."""
    clock_drift_ns: int | None = None
    """Device clock ahead of the host's at the end of the window."""
    first_batch: int = 0
    """Number, within its stream of batches, of the segment's first one."""
    held: HeldSteps | None = None
    storage: StorageWindow | None = None
    """None in an arm that does not touch the storage."""
    cpu: CpuWindow | None = None
    """None in runs of older versions, and where the kernel does not tell."""
    trace: TraceFacts | None = None
    delay: StepDelay | None = None
    """Of a watched script's window with known delays."""
    reads: ReadTimes | None = None
    """None in an arm without a loader, where the loader does not tell, and in runs that did not store it."""

    @property
    def window(self) -> Table:
        """The steps after the warm-up."""
        return self.steps[self.num_warmup :]


@dataclass
class Series:
    """One sampled channel. `t_ns` is the host's monotonic clock (perf_counter_ns)."""

    name: str
    unit: str
    kind: Literal["counter", "gauge"]
    source: str
    t_ns: NDArray[np.int64]
    value: NDArray[np.float64]


StorageKind = Literal["local", "nfs", "memory", "fuse", "unknown"]


def tells_idle(kind: StorageKind | None) -> bool:
    """Whether a window can be proven to have taken nothing from such a storage (`StorageWindow.untouched`). Not from
    FUSE, whose daemon serves each open, nor from a file system of which nothing is known."""
    return kind in ("local", "nfs", "memory")


# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceFacts:
    """What the device is. Nothing branches on `kind`: what a caller needs to know has a field of its own."""

    kind: str
    name: str
    """What reports call it. An emulated device says so here."""
    emulated: bool = False
    overlap: bool = False
    """Copies run beside the compute of earlier steps."""
    copies: bool = True
    """It has memory of its own, so that batches are copied to it."""
    on_host_cpus: bool = False
    """It computes on the processors that the loader works on."""
    has_counters: bool = False
    """Its driver has counters (NVML), so a run without readings gets a caveat."""
    memory_bytes: int | None = None
    details: Mapping[str, Json] = field(default_factory=dict)
    """Further facts: driver and library versions, or an emulated device's profile and constants."""


@dataclass(frozen=True)
class MemoryFacts:
    """Peak memory of some steps. What is unknown is None and has its reason under `missing`."""

    allocated_bytes: int | None
    """PyTorch's allocator, on a device with memory of its own."""
    reserved_bytes: int | None
    process_bytes: int | None
    """The driver's figure for the process now: context, libraries and all reserved memory."""
    rss_growth_bytes: int | None
    """Peak of the process's resident set minus what was resident before the model was built (VmHWM of proc(5))."""
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerFacts:
    name: str
    learning_rate: float
    momentum: float
    weight_decay: float
    fused: bool
    loss_scale: float | str
    """A factor, or `dynamic`."""


@dataclass(frozen=True)
class WorkloadFacts:
    """What a step does."""

    model: str
    mode: str
    precision: str
    emulated: bool = False
    num_parameters: int | None = None
    """None where no model was built (an emulated device)."""
    optimizer: OptimizerFacts | None = None
    """None in inference and on an emulated device."""
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class LoaderFacts:
    """What the loader is."""

    decodes: bool
    """False for a loader that reads no files."""
    owns_transfer: bool
    """Batches arrive on the device."""
    traits: LoaderTraits
    num_readers: int | None = None
    """Files that it reads at once."""
    description: JsonObject | None = None
    """The libraries and versions that really ran."""
    no_stage_times: str | None = None
    """Why it does not report the time in its stages; None where it does, or gives no reason."""
    alternatives: Mapping[str, LoaderTraits] = field(default_factory=dict)
    """Loaders that advice may propose."""
    workers_pss_bytes: int | None = None
    """Memory of the worker processes of the loader of `real`, behind its last window; shared pages count once (PSS)."""
    no_workers_pss: str | None = None
    """Why that is not known."""


@dataclass(frozen=True)
class ColdRead:
    """A file that was evicted and read, beside the same number of bytes read from memory."""

    bytes: int
    storage_ns: int
    """Of the read calls alone: opening may take long though the pages are in memory."""
    memory_ns: int


@dataclass(frozen=True)
class CacheFacts:
    """The page cache during the run."""

    state: CacheState
    """As asked for."""
    measured_once: bool
    """The data set's own cache state (`as-is`) was not fully warm, so `real` could be measured only once, first."""
    residency_at_start: float | None = None
    residency_method: str = "none"
    locked: bool = False
    cold_reads: tuple[ColdRead, ...] = ()
    """A few files, timed before the first and behind the last window of a cold run."""
    num_surveyed: int | None = None
    """Fewest files of a sample whose residency was looked at; None in runs that did not store it."""


@dataclass(frozen=True)
class Percentiles:
    p50: float
    p95: float
    p99: float | None = None
    """None in runs that did not store it."""


FILES_A_READER = 2


@dataclass(frozen=True)
class CeilingStage:
    """One number of readers of the storage probe."""

    readers: int
    bytes: int
    seconds: float
    """Mean over the readers of the time from the common start to each one's last read."""
    files: int
    """Files that were read completely."""
    file_s: Percentiles | None
    """Seconds from open to last byte; None where no file was read completely."""
    slices_bytes: tuple[int, ...]
    """Bytes read in each slice of `slice_s` seconds."""
    slice_s: float
    method: str
    """O_DIRECT, or DONTNEED (buffered, the pages dropped before and after each read)."""
    user_cpu_s: float
    """CPU seconds of the probe itself."""
    moved: Counters | None

    @property
    def tells(self) -> bool:
        """Whether each reader had a few whole files: a stage with fewer (`--max-bytes`, slow files) says nothing about
        its number of readers."""
        return self.seconds > 0 and self.files >= FILES_A_READER * self.readers

    @property
    def slice_rates(self) -> NDArray[np.float64]:
        """Bytes/s in each slice; their mean alone where there are none."""
        if not any(self.slices_bytes):
            return np.array([self.bytes / self.seconds])
        return np.asarray(self.slices_bytes, dtype=np.float64) / self.slice_s


@dataclass(frozen=True)
class CeilingProbe:
    """The data set's own files, read past the page cache by increasing numbers of readers (running/ceiling.py)."""

    stages: tuple[CeilingStage, ...]
    stopped_by: Literal["flat", "max_readers", "deadline", "max_bytes", "error"]
    reason: str | None
    """The error that ended it."""
    num_images: int
    """A probe that read more files than this read some twice, and a server may have had those in its own cache."""


@dataclass(frozen=True)
class RamCopyFacts:
    """The copy of images in memory that `ram` reads."""

    num_images: int
    bytes: int
    subset: bool
    """Fewer images than the data set has, chosen with the same size distribution."""
    memory_holds_all: bool | None
    """This machine's memory could hold the whole data set."""
    where: str


@dataclass(frozen=True)
class StorageFacts:
    """The data set and the storage behind it."""

    num_images: int
    image_bytes: int | None
    source: str | None
    """Where its bytes are counted; None where nothing counts them."""
    reason: str | None
    """Why nothing counts them."""
    file_system: str | None = None
    """Type of the file system, as mountinfo calls it: ext4, nfs4, fuse.sshfs; None in runs that did not store it."""
    kind: StorageKind | None = None
    """What the kernel tells of it (images/filesystem.py); None in runs that did not store it."""
    ram_copy: RamCopyFacts | None = None
    """None where no arm needed one."""
    ceiling: CeilingProbe | None = None
    """None where it was not probed."""
    slow_files: Mapping[str, str] = field(default_factory=dict)
    """Image number → path below the data set's root, of the files in the segments' tables `slowest`."""
    slow_folders: Mapping[str, int] = field(default_factory=dict)
    """Classes of those files, which are the folders right below the root → files in each. Newer runs
    also hold the folders around the files, where these lie deeper (`train/class`)."""
    num_containers: int | None = None
    """Files that hold the images, and whose numbers and folders `slow_files` and `slow_folders` give; None where each
    image is a file, and in runs that did not store it."""

    @property
    def num_files(self) -> int:
        return self.num_images if self.num_containers is None else self.num_containers


@dataclass(frozen=True)
class DecoderProbe:
    """CPU time of an image in one decoder."""

    image_s: tuple[float, ...]
    """CPU seconds of decode and resize of each image, at the case's `--decode-scale` where the decoder takes it; the
    same images in the same order for all decoders."""
    all_cpus_image_s: float | None = None
    """Mean CPU seconds of an image with a thread on each processor."""
    all_cpus_rate: float | None = None
    """Images/s of those threads together."""
    as_torchvision_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Output → CPU seconds of each of these images as torchvision's users make it, to its tensor. Of the case's own
    decoder, if it gives PIL images; else empty."""


@dataclass(frozen=True)
class ScaleProbe:
    """The same samples made by one decoder with `--decode-scale off` and `auto`."""

    off_s: tuple[float, ...]
    """CPU seconds of decode and resize of each sample."""
    auto_s: tuple[float, ...]
    difference: tuple[float, ...]
    """Mean absolute difference of the two of each sample, in 8-bit levels; 0 where its crop is too small to scale."""


@dataclass(frozen=True)
class PrepProbe:
    """CPU time of a sample with each decoder that is installed (running/prep_probe.py)."""

    num_cpus: int
    decoders: Mapping[str, DecoderProbe] = field(default_factory=dict)
    handover_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Output → memory (`shared`, `private`, `reused`) → CPU seconds an image of writing finished samples there."""
    stack_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Output → memory (`shared`, `private`) → CPU seconds an image of stacking the tensors of samples there."""
    scales: Mapping[str, ScaleProbe] = field(default_factory=dict)
    """Of each decoder that takes `--decode-scale`."""


@dataclass(frozen=True)
class CopyFacts:
    """The copy of a batch to the device."""

    batch_bytes: int | None = None
    """None where no batch was kept to measure it."""
    pinned: bool | None = None
    """Whether the loader hands over batches in pinned memory; None where pinning has no effect."""
    link_bytes_per_s: float | None = None
    """The fastest of some large copies; None where nothing is copied, or it was not measured."""


@dataclass(frozen=True)
class StartupFacts:
    """What came before the first step."""

    build_s: Mapping[Arm, float] = field(default_factory=dict)
    """Construction of the loader of `real`, `ram` and `fetch`, where they were built."""
    process_s: float | None = None
    """From the start of the process until it looked at the data set: Python and its imports. None in a process that had
    other jobs before, and in runs that did not store it."""
    open_s: float | None = None
    """The list of images, the device and the model; None in runs that did not store it."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Each part of what came before the rounds, by name, in order (running/deadline.py, PHASES); empty in runs that did
    not store them."""


@dataclass(frozen=True)
class ImageFailure:
    path: str
    reason: str


@dataclass(frozen=True)
class FailureFacts:
    """Images that could not be decoded; each was replaced by the next one in index order."""

    num_reads: int = 0
    examples: tuple[ImageFailure, ...] = ()
    """Each image once, the first hundred."""


@dataclass(frozen=True)
class WatchedSeconds:
    """What the script's thread spent on one of its loaders."""

    opening: float
    """Making its iterators."""
    first: float
    """Waiting for the first batch of each."""
    wait: float
    """Waiting for later ones."""
    step: float
    """Working on batches."""
    held: float
    """Held by bursts and delays."""
    after: float
    """From an iterator's end until it turned to another one."""

    @property
    def total(self) -> float:
        return self.opening + self.first + self.wait + self.step + self.held + self.after


@dataclass(frozen=True)
class WatchedDelivery:
    """A batch as a worker delivers it."""

    objects: int
    """Tensors and arrays, each of which is passed by itself."""
    joined: int
    """How many there would be if those of one kind were joined: the same field of each sample, or like shapes."""
    shared_bytes: int
    """Of its tensors, which go through shared memory; the largest batch that was looked at."""


def room_needed(shared_bytes: int, depth: int) -> int:
    """Shared memory for the batches that are asked for at once, and the one that the script works on."""
    return shared_bytes * (depth + 1)


@dataclass(frozen=True)
class WatchedLoader:
    """One of the loaders of a watched script."""

    kind: str
    """`DataLoader`, or the class of what was iterated."""
    data: str
    """Class of its data set."""
    num_samples: int | None
    """Of the data set; None where it has no length."""
    batch_size: int | None
    workers: int
    prefetch: int
    """Batches that each worker prepares ahead."""
    num_iterators: int
    """Epochs, those that were not finished too."""
    num_batches: int
    seconds: WatchedSeconds
    phase: str | None = None
    """`train` or `evaluate`, as a trainer's callback told; None without one."""
    iterated_at: tuple[str, ...] | None = None
    """Where the script first iterated it (`train.py:41`), then where that was called from, and so on, a few places of
    the script's own; None where none is known, and in runs that did not store it."""
    index_s: float | None = None
    """Mean seconds in which its sampler gives the indices of a batch, without the first one of an epoch; None where it
    has none, and in runs that did not store it."""
    delivered: WatchedDelivery | None = None
    """What its workers deliver; None without workers that tell it, and in runs that did not store it."""
    by_worker: tuple[int, ...] = ()
    """Batches that each worker gave; empty where that is not known."""


@dataclass(frozen=True)
class WatchedEpoch:
    """One iterator of a loader, in seconds of the script's thread."""

    opening: float
    first: float
    """Waiting for its first batch."""
    wait: float
    step: float
    after: float
    """From its end until the script turned to another one."""
    num_batches: int
    sampler: float | None = None
    """Of `opening`: the sampler's own start, until it gave the indices of the first batches. None in runs that did not
    store it, as the two below."""
    stop: float | None = None
    """Of `wait`: the call of next() that ended it, in which workers that do not stay are stopped."""
    first_made: float | None = None
    """Seconds that the first batch took in its worker; None where that is not known."""
    first_round: float | None = None
    """Of `wait`: for the first batch of each other worker."""

    @property
    def seconds(self) -> float:
        """Without what came behind its end."""
        return self.opening + self.first + self.wait + self.step


@dataclass(frozen=True)
class WatchedTransform:
    """One of a data set's transforms, in the batches in which they were timed."""

    name: str
    seconds: float
    num_calls: int


@dataclass(frozen=True)
class WatchedSettings:
    """How a DataLoader is set up, and what its workers told besides their spans."""

    persistent: bool
    pin_memory: bool
    collate: str
    """Name of its collate function, or class."""
    sampler: str
    """Class of its sampler, with the module."""
    iterable: bool
    """The data set has an order of its own, of which each worker takes a part."""
    forked: bool
    """Its workers are forked from the script."""
    num_made: int = 1
    """How many such loaders the script made; fewer than epochs: it iterates one several times."""
    transforms: tuple[WatchedTransform, ...] = ()
    num_timed: int = 0
    """Batches in which they were timed."""
    timed_s: float = 0.0
    """What these took in their workers."""
    worker_torch_threads: int | None = None
    """Threads that PyTorch uses in a worker."""
    worker_threads: int | None = None
    """Threads that a worker's process has."""
    draws_random: bool | None = None
    """Whether making a batch moved the random state of its process; None where nobody looked."""
    in_order: bool = True
    """Batches come in the order of their indices."""
    same_random: tuple[str, ...] = ()
    """Sources of random numbers that draw the same ones in several workers; of data sets with `__getitem__`."""
    repeats: float | None = None
    """From how many workers a sample comes in an epoch, in the mean; None where that is not known."""


@dataclass(frozen=True)
class WatchedMemory:
    """Memory at one time."""

    batch: int
    """How many of the loader's batches had been taken."""
    epoch: int
    """Number of its iterator, from 1."""
    script_bytes: int
    """Resident; shared pages count."""
    workers_bytes: int
    """Private: pages that no other process shares, of those workers that are counted."""
    num_workers: int


@dataclass(frozen=True)
class WatchedShared:
    """The shared memory that workers hand batches over in (/dev/shm)."""

    size_bytes: int
    least_free_bytes: int
    """The least that was free at any reading."""


@dataclass(frozen=True)
class WatchedAffinity:
    """Processors that a watched script's processes are allowed."""

    script: int
    workers: int | None
    """All workers together; None without workers."""
    machine: int
    """Processors of the machine, or of the container's cpuset."""

    @property
    def allowed(self) -> int:
        """Processors of those that prepare batches."""
        return self.script if self.workers is None else self.workers


@dataclass(frozen=True)
class WatchedApplied:
    """Arguments of the DataLoader that `--apply` set. What followed is in the run's trials."""

    change: Change
    epoch: int
    """The first epoch with them, from 1."""
    epochs: tuple[WatchedEpoch, ...]
    """Those that followed."""
    loader: WatchedLoader | None = None
    """The loader as it was changed, which is none of the script's others; None where no batch followed, and in runs
    that did not store it."""


@dataclass(frozen=True)
class ShadowRead:
    """One sample, read by a process of its own (watching/shadow.py)."""

    cold_ns: int
    """The first time, without waiting for a processor."""
    warm_ns: int
    """At once again, with the same random state."""
    warm_cpu_ns: int
    """Processor time of that: the rest was waiting, for a storage that no memory spares, or for something else."""
    read_bytes: int
    """That it asked for the first time (`rchar` of proc(5))."""
    num_files: int
    """That Python opened for it."""
    num_evicted: int
    """Of those: dropped from memory afterwards. The others were there before, or are large."""
    in_memory_before: float | None
    """The part of those files that was in memory before; None where it opened none, or that is not told."""


@dataclass(frozen=True)
class WatchedShadow:
    """What a shadow reader read beside the script."""

    reads: tuple[ShadowRead, ...]
    start_s: float
    """Starting it held up the script for so long."""
    stopped_by: str
    """Why it read no more."""


@dataclass(frozen=True)
class WatchCost:
    """What the watch itself took, of the thread that takes the batches unless stated."""

    stamp_s: float
    """Of one batch, on this machine: two stamps and what is kept of them, in a loop of nothing else."""
    stamps_s: float
    """Of all batches of all loaders; of those made without workers with `lane_s`."""
    lane_s: float
    """Of one batch, in the process that makes it: six readings."""
    windows_s: float
    """Readings at the ends of windows."""
    delays_s: float = 0.0
    """Known delays that were put into steps."""
    events_s: float = 0.0
    """Recording events on the device's stream, and asking for them."""
    num_writes: int = 0
    """How often the run was stored while it went on."""
    writes_cpu_s: float = 0.0
    """Processor time of that, of a thread beside the script's: what it can have taken from the script's at most."""
    longest_write_s: float = 0.0
    """From the beginning of one to its end."""
    write_problem: str | None = None
    """Why it could not be stored, the last time that it could not."""
    sampling_cpu_s: float = 0.0
    """Processor time of the process that samples the threads: what it can have taken from the script's at most."""
    line_s: float = 0.0
    """Drawing the line on the terminal, and the processor time of judging for it, by a thread beside the script's."""


@dataclass(frozen=True)
class WatchedFacts:
    """What was seen of a script that is not ours (watching/)."""

    script: str
    loaders: tuple[WatchedLoader, ...]
    """The one that the verdict is about first: most of the time went to its batches."""
    wall_s: float
    before_s: float
    """Until the first iterator was made."""
    probes: str
    num_bursts: int
    """How often the script was held until the loader's queue was full."""
    paused_s: float
    """How long that took in all."""
    no_burst: str | None
    """Why there were none, where they were wanted."""
    no_spans: str | None
    """Why the workers' own times are not known; None where they are."""
    uses_cuda: bool
    """The script used CUDA, whose work goes on behind the host's stamps; see `device_stamped`."""
    consumer_cpu_s: float | None = None
    """Processor time a step of the thread that takes the batches; None where unknown."""
    device_stamped: bool = False
    """The device itself told when each step was done (devices/step_events.py)."""
    no_device_stamps: str | None = None
    """Why it did not, where the script used one."""
    shadow: WatchedShadow | None = None
    """None where none was asked for, or none could be; see `no_shadow`."""
    no_shadow: str | None = None
    """Why its samples tell nothing, where it was wanted."""
    no_doses: str | None = None
    """Why known delays tell nothing, where they were wanted."""
    rested_s: float = 0.0
    """For which the workers began no batch behind bursts, while the script worked on those that were ready."""
    so_far_s: float | None = None
    """The script went on when this was written, so long after its start; None where it had ended."""
    cost: WatchCost | None = None
    """None in runs that did not store it."""

    settings: WatchedSettings | None = None
    """Of the first loader; None where it is no DataLoader, and in runs that did not store it."""
    epochs: tuple[WatchedEpoch, ...] = ()
    """Of the first loader, the first MOST_EPOCHS; empty in runs that did not store them."""
    memory: tuple[WatchedMemory, ...] = ()
    """Of the first loader's batches."""
    shared: WatchedShared | None = None
    torch_threads: int | None = None
    """Threads that PyTorch uses in the script's own process."""
    available_memory_bytes: int | None = None
    """What this machine could still give when the script ended."""
    page_s: float | None = None
    """CPU seconds of taking a page of memory and giving it back, here; None where malloc is not glibc's, where it keeps
    freed memory already, and in runs that did not store it."""
    optimizer_steps: int | None = None
    """As a trainer's callback counted them; None without one."""
    thread: str | None = None
    """Name of the script's thread that took the batches, where it was not the main one: all is about that one."""
    applied: WatchedApplied | None = None
    not_applied: str | None = None
    """Why `--apply` set nothing; None where it did, or was not asked for."""
    stores: tuple[str, ...] = ()
    """Address and port of those that most of what the first loader reads comes from, over TCP (`10.0.0.5:9000`); empty
    where it reads files, where that is unknown, and in runs that did not store it."""
    affinity: WatchedAffinity | None = None
    """None in runs that did not store it."""
    no_samples: str | None = None
    """Why it is not known what the threads did; None where it is, and in runs that did not store it."""

    @property
    def own_s(self) -> float | None:
        """What the watch took of the script's time at most: stamps, windows, bursts with the workers' rest, delays,
        storing, the line on the terminal."""
        cost = self.cost
        if cost is None:
            return None
        started_s = 0.0 if self.shadow is None else self.shadow.start_s
        return (
            started_s
            + cost.stamps_s
            + cost.events_s
            + cost.windows_s
            + self.paused_s
            + self.rested_s
            + cost.delays_s
            + cost.writes_cpu_s
            + cost.line_s
            + cost.sampling_cpu_s
        )


MOST_EPOCHS = 1000
"""Whose times are kept."""


@dataclass(frozen=True)
class RoundFacts:
    """How the measurement proceeded."""

    arms: tuple[Arm, ...]
    """The arms of a round, in order."""
    num_rounds: int
    stopped_by: Literal[
        "decided", "ci_target", "duration", "steps", "max_bytes", "measured_once", "ended", "interrupted"
    ]
    """`interrupted`: the run did not come to its end, and what was measured until then is kept."""


@dataclass(frozen=True)
class Facts:
    """What one process found out besides its segments."""

    device: DeviceFacts
    workload: WorkloadFacts
    loader: LoaderFacts
    cache: CacheFacts
    storage: StorageFacts
    startup: StartupFacts
    failures: FailureFacts
    rounds: RoundFacts
    copy: CopyFacts = field(default_factory=CopyFacts)
    prep_probe: PrepProbe | None = None
    """None where preparation took too little of a step to matter."""
    peak_memory_bytes: int | None = None
    """Peak memory of the device while the arms ran."""
    loop_overhead_s: float | None = None
    """Seconds a step that the loop's own stamps and events take on this device."""
    tracing_s: float | None = None
    """Seconds of the run that the kernel trace took."""
    so_far_s: float | None = None
    """Seconds, between windows, in which the windows so far were judged for the screen; None in runs that did not store
    it."""
    watched: WatchedFacts | None = None
    """None for a run of our own loop."""
    overtime_s: float | None = None
    """Seconds that work which could not be cut short took beyond `duration_s`, as was said before it began."""
    first_answer_s: float | None = None
    """From the start of the measuring process until the windows so far named a cause; None where none did, nobody
    looked, or an older version measured."""
    decided_s: float | None = None
    """The same until they decided the run."""


@dataclass
class RankRecording:
    """What a rank of several measured beside its arms."""

    place: RankPlace
    clocks: tuple[RankClock, ...]
    """At the begin and at the end."""
    joint: list[Segment] = field(default_factory=list)
    """Windows of `real` whose every step ended with an all-reduce of all ranks; `done_ns` is the rank's own arrival."""
    num_local: int | None = None
    """Ranks of a watched script that share this machine; None where the launcher does not tell, and of other runs."""


COLLECTION_FIELDS = ("begin_ns", "end_ns", "generation", "place")
"""Columns of a table of collections."""


@dataclass(frozen=True)
class Collections:
    """When Python's collector of cycles held up a watched script for long."""

    pauses: Table
    """[N, len(COLLECTION_FIELDS)]; `place` is a position in `places`, -1 where no line of the script's is known."""
    places: tuple[tuple[str, int, str], ...]
    """File, line and function of the script's innermost line meanwhile."""


@dataclass
class Recording:
    """Everything that one process measured."""

    segments: list[Segment]
    facts: Facts
    caveats: list[Caveat] = field(default_factory=list)
    rank: RankRecording | None = None
    """None for a run of one process."""
    samples: ThreadSamples | None = None
    """What the threads of a watched script did at random times; None where `no_samples` of its facts says why, and in
    runs that did not store it."""
    collections: Collections | None = None
    """None where no collection was long, and in runs that did not store it."""

    def of(self, arm: Arm) -> list[Segment]:
        """The segments of one arm, in the order in which they were measured."""
        return [segment for segment in self.segments if segment.arm == arm]


# -- runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine, by NVML."""

    name: str
    memory_total_bytes: int
    driver: str
    cuda_driver: str
    """The newest CUDA that the driver can run."""


@dataclass(frozen=True)
class Environment:
    """The machine, as far as it may change a number. No host or user name, no serial number, no user's folder."""

    python: str
    kernel: str
    architecture: str
    cpu_model: str | None
    cpus_online: int | None
    cpus_usable: int
    """CPUs allowed by affinity and cgroup quota."""
    cpu_limit_reason: str | None
    cpu_governor: str | None
    memory_limit_bytes: int | None
    memory_limit_source: str
    transparent_huge_pages: str | None
    shm_size_bytes: int | None
    open_files_limit: int | None
    memlock_limit_bytes: int | None
    container: str | None
    packages: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    gpus_reason: str | None
    """Why the GPUs are not known."""
    variables: Mapping[str, str]
    """Environment variables that change results, without folders and device serial numbers."""


@dataclass(frozen=True)
class Failure:
    """Why something did not end well."""

    kind: str
    """Class of the error."""
    message: str


@dataclass
class Trial:
    """One turn of checking the run's advice: the case with a change, or the case itself, with `real` alone."""

    change: Change
    """Empty for the case itself."""
    case: Case
    turn: int
    recording: Recording | None
    failure: Failure | None = None


@dataclass
class Run:
    """One case as it was run: what was asked, what was recorded, how it ended. Stored whole and loaded whole."""

    run_id: str
    case: Case
    status: Status
    started_at: str
    """UTC, ISO 8601."""
    wall_s: float
    environment: Environment | None
    """None where an older version stored none."""
    recording: Recording | None = None
    series: list[Series] = field(default_factory=list)
    caveats: list[Caveat] = field(default_factory=list)
    """Caveats of the supervisor; the recording has its own."""
    failure: Failure | None = None
    sampling_cpu_s: float | None = None
    """CPU time of the sampling thread; None where nothing was sampled."""
    trials: list[Trial] = field(default_factory=list)
    """What `--verify` measured."""
    not_verified: str | None = None
    """Why the advice could not be run; None where it was, or was not asked for."""
    tag: str | None = None
    """A name that the user gave it, to find it by."""
