"""The record of a simulated run: complete, valid, reproducible, each null explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import CacheState
from loaderbench.plain import JsonObject, to_json
from loaderbench.recording.facts import (
    STEP,
    CacheFacts,
    ColdRead,
    CopyFacts,
    Failure,
    Run,
    StorageFacts,
    StorageKind,
    StorageWindow,
)
from loaderbench.recording.record import Estimate, RunRecord, Verdict
from loaderbench.reporting.words import worded
from loaderbench.running.read_times import read_times
from tests.analysis.simulate import ARMS, Pipeline, run
from tests.analysis.test_kernels import steady, without
from tests.analysis.test_latency import readers_at_work
from tests.made import make_case, make_facts, make_loader, make_run, make_series
from tests.shipped_schema import shipped

CASE = make_case(cache="cold")


def simulated(pipeline: Pipeline, arms: tuple[Arm, ...] | None = None) -> Run:
    segments = [one for one in run(pipeline, arms=ARMS) if arms is None or one.arm in arms]
    facts = make_facts(
        cache=CacheFacts("cold", measured_once=False),
        copy=CopyFacts(batch_bytes=10_000_000, link_bytes_per_s=50e9),
        loader=make_loader(description={"loader": "simulated"}),
    )
    return make_run(CASE, segments, facts=facts)


def plain(record: RunRecord, not_finite: list[str] | None = None) -> dict[str, Any]:
    """The record as it is stored."""
    return cast(JsonObject, to_json(record, not_finite))


def valid(record: RunRecord) -> RunRecord:
    """The record, which follows the schema and holds only finite figures."""
    not_finite: list[str] = []
    shipped().validate(plain(record, not_finite))
    assert not_finite == []
    return record


def codes(record: RunRecord) -> set[str]:
    return {caveat.code for caveat in record.caveats}


def said(record: RunRecord, code: str) -> str:
    """The words of the record's one caveat with this code."""
    (caveat,) = [caveat for caveat in worded(record).caveats if caveat.code == code]
    return caveat.message


def verdict_of(record: RunRecord) -> Verdict:
    """The verdict in words."""
    verdict = worded(record).verdict
    assert verdict is not None
    return verdict


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


@pytest.mark.parametrize("arms", [None, (Arm.REAL,), (Arm.DEVICE, Arm.HOST, Arm.REAL)])
def test_a_record_is_valid_and_the_same_twice(arms: tuple[Arm, ...] | None) -> None:
    first = valid(analyze(simulated(Pipeline(read=0.001, decode=0.1), arms)))
    second = analyze(simulated(Pipeline(read=0.001, decode=0.1), arms))
    assert plain(first) == plain(second)
    valid(worded(first))


def test_what_was_not_measured_is_null_with_a_reason() -> None:
    record = analyze(simulated(Pipeline(read=0.001, decode=0.1), (Arm.REAL,)))
    assert record.accelerator_utilization_fraction is None
    assert record.capacities is not None and record.capacities["storage"] is None
    expected = {"arms_not_measured", "kernel_gap_not_measured", "device_memory_not_measured", "cpu_not_measured"}
    assert expected <= codes(record)


def test_what_a_storage_gives_alone_is_not_told_where_fetch_missed_its_standstills() -> None:
    given = simulated(Pipeline(read=0.2, decode=0.01, device=0.020))
    assert given.recording is not None
    assert (analyze(given).capacities or {})["storage"] is not None
    for arm, stall in ((Arm.REAL, (2.7, 0.8)), (Arm.FETCH, None)):
        for number, one in enumerate(given.recording.of(arm)):
            one.reads = read_times(readers_at_work(4, 8, stall=stall, begin=20.0 * number))
    record = valid(analyze(given))
    assert record.storage is not None and (record.storage.kind, record.storage.fetch_saw) == ("stalls", False)
    assert record.capacities is not None and record.capacities["storage"] is None
    assert "fetch_missed" in codes(record)


def with_trace(kernels: int = 100, lost: int = 0) -> Run:
    """A simulated run, behind its arms a scripted trace: half of each step idle, kernels of 3 ns every 5."""
    given = simulated(Pipeline(read=0.001, decode=0.1))
    assert given.recording is not None
    given.recording.segments.append(without(steady(kernels), 2, lost))
    return given


def test_a_whole_trace_fills_the_kernel_gaps() -> None:
    record = valid(analyze(with_trace()))
    assert record.device is not None
    gap, witnesses = record.device.kernel_gap, record.device.busy_witnesses
    assert gap is not None and witnesses is not None
    assert gap.busy_fraction == pytest.approx(100 * 3 / 1000)
    assert gap.count_per_step == 501 / 5  # 99 within each step, 6 around them
    assert witnesses.kernels == pytest.approx(0.3)
    assert any("100 per step, 70.0% of the time of 5 traced steps" in line for line in verdict_of(record).evidence)
    assert not {"kernel_gap_not_measured", "trace_incomplete"} & codes(record)


def test_a_trace_that_lost_kernels_gives_no_gaps() -> None:
    record = analyze(with_trace(lost=50))
    assert record.device is not None and record.device.kernel_gap is None
    words = said(record, "trace_incomplete")
    assert "1 of 5 steps" in words and "(range 50 to 100)" in words


def test_nvml_is_held_against_the_kernels_over_long_windows_alone() -> None:
    given = with_trace()
    assert given.recording is not None
    given.series.append(make_series("gpu_utilization_fraction", [0.4] * 600))
    for number, one in enumerate(given.recording.segments):
        one.opened_ns, one.closed_ns = number * 10**9, number * 10**9 + 5 * 10**9

    def nvml(record: RunRecord) -> float | None:
        assert record.device is not None and record.device.busy_witnesses is not None
        return record.device.busy_witnesses.nvml

    assert nvml(analyze(given)) is None
    for one in given.recording.segments:
        one.closed_ns += 10**9
    record = analyze(given)
    assert nvml(record) == pytest.approx(0.4)
    words = said(record, "busy_witnesses_disagree")
    assert "30.0%" in words and "nvml 40.0%" in words


def test_stages_of_a_loader_that_counts_batches_are_seconds_of_a_thread() -> None:
    """10 batches of 64 images on 2 threads: 640 ms in the decoder of both, 64 ms in the reader of one."""
    given = simulated(Pipeline(read=0.001, decode=0.1))
    assert given.recording is not None
    real = given.recording.of(Arm.REAL)
    for one in given.recording.segments:
        one.spans = None
    for number, one in enumerate(real):
        counted = {"read": (10, 64_000_000), "decode": (10, 640_000_000), "resize": (0, 0)}
        one.stage_times = counted if number == 0 else dict.fromkeys(counted, (0, 0))
    record = analyze(given)
    assert record.stages == pytest.approx({"read": 0.0001, "decode": 0.002})

    loader = replace(given.recording.facts.loader, no_stage_times="no C compiler")
    given.recording.facts = replace(given.recording.facts, loader=loader)
    for one in real:
        one.stage_times = None
    record = analyze(given)
    assert record.stages is None
    assert "no C compiler" in said(record, "stages_not_measured")


def test_the_record_tells_which_libraries_were_loaded() -> None:
    given = simulated(Pipeline(read=0.001, decode=0.1))
    recording = given.recording
    assert recording is not None

    def described(description: JsonObject | None) -> RunRecord:
        recording.facts = replace(recording.facts, loader=make_loader(description=description))
        return analyze(given)

    assert described(None).loader is None  # stored by a version that kept none
    libraries: JsonObject = {
        "loader": "torch DataLoader",
        "decoder": {"library": "pillow-simd", "version": "12.1.1.post0"},
    }
    assert valid(described(libraries)).loader == libraries


EXPLAINED_BY = {
    "accelerator_utilization": {"arms_not_measured"},
    "capacities": {"arms_not_measured", "loader_owns_transfer", "no_files", "fetch_missed"},
    "contention": {"contention_not_measured"},
    "cpu": {"cpu_not_measured"},
    "device.busy_fraction": {"launch_not_measured", "arms_not_measured"},
    "device.busy_witnesses": {"kernel_gap_not_measured", "trace_incomplete"},
    "device.kernel_gap": {"kernel_gap_not_measured", "trace_incomplete"},
    "device.memory_bytes": {"device_memory_not_measured"},
    "device.memory_peak_bytes": {"device_memory_not_measured"},
    "device.nvml": {"nvml_not_measured", "emulated_device"},
    "ingestion_rate": {"arms_not_measured"},
    "loader_rate": {"arms_not_measured"},
    "overhead_fraction": {"overhead_not_measured"},
    "sampling_cpu_fraction": {"overhead_not_measured"},
    "shares.launch": {"arms_not_measured", "launch_not_measured"},
    "shares": {"arms_not_measured", "loader_owns_transfer"},
    "stages": {"stages_not_measured"},
    "storage.bytes_read": {"storage_bytes_unknown"},
    "storage.bandwidth_bytes_per_s": {"storage_bytes_unknown"},
    "storage.reads_per_s": {"storage_bytes_unknown"},
    "storage.moved_fraction": {"storage_bytes_unknown"},
    "storage.ceiling": {"ceiling_not_measured"},
    "storage.reads": {"reads_not_timed"},
    "storage.residency_fraction": {"residency_unknown"},
    "storage": {"no_files"},
    "transfer": {"arms_not_measured", "loader_owns_transfer", "no_transfer"},
    "verdict.speedup_if_removed.launch": {"arms_not_measured", "launch_not_measured"},
    "verdict.speedup_if_removed.contention": {"contention_not_measured"},
    "verdict.waiting_for_data": {"arms_not_measured"},
    "verdict.speedup_if_removed": {"arms_not_measured", "loader_owns_transfer"},
}
"""Null figures, by the longest of these that begins their place, and the caveats of which one must be there."""
MAY_BE_NULL = {
    "tag", "price", "verdict.cause_detail", "verdict.by_model",
    "failure", "verdict.joint_speedup", "storage.nfs", "storage.cold_proof", "storage.cold_read_ratio",
    "storage.idle_proof", "storage.others_read_bytes", "storage.kind", "storage.latency_of", "storage.tail",
    "storage.stalls", "storage.fetch_saw", "storage.slow_folder", "transfer.pinned", "device.held_issue_s", "short_run",
    "watched",
    "storage_by_shadow", "storage_by_processors", "timing.asked_s", "timing.decided_s", "timing.first_answer_s",
    "rate_change",
}  # fmt: skip
"""Null says something itself: no failure; no joint gain because one cause is named; other storage than NFS; no proof
(`cold_not_proven` says so), no time of a cold read, nobody else on the disk; no kind of slowness that is
clear, no slow files, no stalls; pinning that means nothing; no step that
was held back; no short runs and no price asked for; a cause that needs or has no finer name; no stage that
the model can leave out; a rate that did not change;
a run of our own loop; a run that nobody asked whether it is decided."""


def nulls(found: Any, where: str = "") -> Iterator[str]:
    if found is None:
        yield where
    elif isinstance(found, Mapping):
        for name, item in found.items():
            yield from nulls(item, f"{where}.{name}" if where else name)


def unknown_bytes(run: Run) -> None:
    for one in run.recording.segments if run.recording else ():
        assert one.storage is not None
        one.storage = replace(one.storage, moved=None, residency_before=None, residency_after=None)


def no_busy_time(run: Run) -> None:
    for one in run.recording.segments if run.recording else ():
        one.steps[:, STEP["busy_ns"]] = -1


def no_spans(run: Run) -> None:
    for one in run.recording.segments if run.recording else ():
        one.spans = None


def nothing(run: Run) -> None:
    """As it was simulated."""


@pytest.mark.parametrize("spoil", [nothing, unknown_bytes, no_busy_time, no_spans])
@pytest.mark.parametrize(
    "arms",
    [
        None,
        (Arm.REAL,),
        (Arm.DEVICE, Arm.REAL),
        (Arm.DEVICE, Arm.HOST, Arm.REAL),
        (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL),
    ],
)
def test_each_null_figure_has_a_caveat(arms: tuple[Arm, ...] | None, spoil: Callable[[Run], None]) -> None:
    spoiled = simulated(Pipeline(read=0.001, decode=0.1, copy=0.001), arms)
    spoil(spoiled)
    judged = valid(analyze(spoiled))
    record = plain(judged)
    del record["case"]  # what was asked, where null is a value
    del record["environment"]  # what the machine does not tell
    unexplained = []
    for place in set(nulls(record)) - MAY_BE_NULL:
        prefixes = [name for name in EXPLAINED_BY if place.startswith(name)]
        assert prefixes, f"{place} is null, and nobody said what explains it"
        if not EXPLAINED_BY[max(prefixes, key=len)] & codes(judged):
            unexplained.append(place)
    assert unexplained == []


@pytest.mark.parametrize(("moved", "resident", "state"), [(0.5, 0.4, "as-is"), (0.02, 0.5, "warm"), (1.0, 0.0, "cold")])
def test_a_cold_arm_that_the_page_cache_served_is_what_it_was(moved: float, resident: float, state: str) -> None:
    given = simulated(Pipeline(read=0.4, decode=0.01))
    assert given.recording is not None
    for segment in given.recording.of(Arm.REAL):
        assert segment.storage is not None
        expected = segment.storage.expected_bytes
        counted = {"read_bytes": int(moved * expected), "reads": 1}
        segment.storage = StorageWindow(counted, expected, None, resident, 0.0)

    record = analyze(given)

    assert record.storage is not None
    assert record.storage.cache_state == state
    assert record.storage.cold_proven is (state == "cold")
    verdict = verdict_of(record)
    assert verdict.bottleneck == ("storage" if state == "cold" else "undetermined")
    if state != "cold":
        assert f"{moved:.0%} of its bytes from the storage" in verdict.summary


def test_unmeasured_shares_are_null_and_not_zero() -> None:
    record = analyze(simulated(Pipeline(read=0.001, decode=0.1), (Arm.DEVICE, Arm.HOST, Arm.REAL)))
    assert record.shares is not None
    assert record.shares["storage"] is None
    assert record.shares["prep"] is None
    assert value(record.shares["transfer"]) == pytest.approx(0.0, abs=1e-9)
    # they were not told apart, but what both together cost is known: 50.5 ms a step, 30 without either
    assert record.verdict is not None
    assert record.verdict.bottleneck == "mixed" and record.verdict.joint == ("storage", "prep")
    assert value(record.verdict.joint_speedup) == pytest.approx(50.5 / 30, rel=0.02)
    assert [reason.code for reason in record.verdict.reasons] == ["not_separated"]
    assert record.verdict.reasons[0].details["arms"] == ["fetch", "ram"]
    assert record.verdict.speedup_if_removed["storage"] is None
    assert record.verdict.speedup_if_removed["prep"] is None


def test_throughput_is_samples_over_time() -> None:
    record = analyze(simulated(Pipeline(device=0.030, read=0.002, decode=0.198, workers=2)))
    assert value(record.throughput) == pytest.approx(64 / 0.1, rel=0.02)
    assert value(record.ingestion_rate) == pytest.approx(64 / 0.030, rel=1e-6)
    assert value(record.loader_rate) == pytest.approx(64 / 0.1, rel=0.02)
    assert record.storage is not None and record.storage.cold_proven is True


def test_the_copy_is_split_into_what_shows_and_what_does_not() -> None:
    # given a copy of 12 ms beside steps of 10 ms
    given = simulated(Pipeline(device=0.010, copy=0.012, decode=0.001, overlap=True))
    record = analyze(given)
    copy = record.transfer
    assert copy is not None
    assert (copy.bytes_per_step, copy.ceiling_bytes_per_s) == (10_000_000, 50e9)
    assert copy.copy_s == pytest.approx(0.012) and copy.link_bytes_per_s == pytest.approx(10e6 / 0.012)
    assert copy.exposed_s == pytest.approx(0.002, rel=0.02) and copy.hidden_s == pytest.approx(0.010, rel=0.02)
    assert any("12.00 ms, 2.00 ms of it exposed; 0.8 GB/s" in line for line in verdict_of(record).evidence)


def test_a_failed_run_keeps_its_reason_and_no_figures() -> None:
    failed = make_run(CASE, None, status="failed", failure=Failure("CaseFailed", "the disk is gone"))
    record = valid(analyze(failed))
    assert record.failure == Failure("CaseFailed", "the disk is gone")
    assert record.throughput is None


def test_witnesses_that_disagree_are_a_caveat_of_the_record() -> None:
    given = simulated(Pipeline(device=0.030, decode=0.010))
    assert given.recording is not None
    for one in given.recording.segments:
        if one.arm in (Arm.RAM, Arm.REAL):
            one.steps[:, STEP["done_ns"]] += np.arange(len(one.steps)) * 20_000_000
    record = analyze(given)
    assert verdict_of(record).bottleneck == "undetermined"
    (caveat,) = [caveat for caveat in record.caveats if caveat.code == "witnesses_disagree"]
    assert caveat.severity == "changes the verdict"
    assert "40% of a step by comparing the arms, 0% by the timeline" in said(record, "witnesses_disagree")


# -- what the storage did --------------------------------------------------------------------------------------


def stored(
    pipeline: Pipeline, kind: StorageKind, cache: CacheState, window: StorageWindow, ratio: float | None = None,
    arms: tuple[Arm, ...] | None = None,
) -> Run:  # fmt: skip
    """A simulated run on such a storage, each window of `real` as given."""
    given = simulated(pipeline, arms)
    assert given.recording is not None
    for segment in given.recording.of(Arm.REAL):
        segment.storage = window
    reads = () if ratio is None else (ColdRead(65_536, round(ratio * 1000), 1000),) * 3
    given.recording.facts = replace(
        given.recording.facts,
        cache=CacheFacts(cache, measured_once=False, cold_reads=reads),
        storage=StorageFacts(1000, 35_000_000, "made up", None, "made up", kind),
    )
    return replace(given, case=given.case.changed(cache=cache))


SLOW = Pipeline(read=0.4, decode=0.01)


@pytest.mark.parametrize(
    ("before", "after", "ratio", "proof"),
    [
        (0.0, 0.0, 18.0, "residency"),
        (0.0, 0.05, 18.0, "residency"),  # what was read ahead
        (0.0, 0.3, 18.0, None),
        (0.1, 0.0, 18.0, None),
        (None, None, 18.0, None),
        (0.0, 0.0, None, None),
    ],
)
def test_cold_is_proven_by_residency_where_nothing_counts_bytes(
    before: float | None, after: float | None, ratio: float | None, proof: str | None
) -> None:
    record = valid(analyze(stored(SLOW, "fuse", "cold", StorageWindow(None, 10**6, 0, before, after, 0), ratio)))
    assert record.storage is not None
    assert (record.storage.cold_proof, record.storage.cold_proven) == (proof, proof is not None)
    assert record.verdict is not None and record.verdict.bottleneck == "storage"
    assert ("cold_by_residency" in codes(record)) is (proof is not None)
    assert ("cold_not_proven" in codes(record)) is (proof is None)
    if proof is not None:
        assert "18× as long as from memory" in said(record, "cold_by_residency")


def test_reads_as_fast_as_memory_s_are_no_storage_s() -> None:
    """GPFS has a cache of its own beside the page cache; files of a DAX mount lie in memory."""
    record = valid(analyze(stored(SLOW, "unknown", "cold", StorageWindow(None, 10**6, 0, 0.0, 0.0, 0), 2.4)))
    assert record.storage is not None and not record.storage.cold_proven
    assert verdict_of(record).bottleneck == "undetermined"
    assert "took 2.4× as long to read as files in memory" in verdict_of(record).summary


def test_bytes_that_a_counter_saw_go_before_residency() -> None:
    half = StorageWindow({"read_bytes": 5 * 10**5, "rpcs": 9}, 10**6, 0, 0.0, 0.0, 0)
    record = analyze(stored(SLOW, "nfs", "cold", half, 18.0))
    assert record.storage is not None and record.storage.cold_proof is None and record.storage.cache_state == "as-is"


def test_neighbours_reads_on_a_disk_are_not_the_run_s() -> None:
    disk = StorageWindow({"read_bytes": 3 * 10**6, "reads": 90, "io_ticks_ms": 9}, 10**6, 0, 0.0, 0.0, 10**6)
    record = valid(analyze(stored(SLOW, "local", "cold", disk)))
    storage, num = record.storage, 3  # windows
    assert storage is not None
    assert (storage.bytes_read, storage.others_read_bytes, storage.reads_per_s) == (num * 10**6, num * 2 * 10**6, None)
    assert (storage.cold_proof, storage.moved_fraction) == ("bytes", 1.0)
    assert "other programs read 6.0 MB" in said(record, "disk_shared")
    # nor are they in a warm run; over NFS nobody can tell them apart
    warm = replace(disk, residency_before=1.0, residency_after=1.0, process_read_bytes=0)
    idle = analyze(stored(SLOW, "local", "warm", warm)).storage
    nfs = analyze(stored(SLOW, "nfs", "cold", replace(disk, process_read_bytes=0))).storage
    assert idle is not None and (idle.bytes_read, idle.reads_per_s, idle.idle_proof) == (0, 0.0, "local")
    assert nfs is not None and (nfs.bytes_read, nfs.others_read_bytes) == (num * 3 * 10**6, None)


WHOLE = StorageWindow({"read_bytes": 0, "reads": 0}, 10**6, 10**6, 1.0, 1.0, 0)
DRIFTED = Pipeline(read=0.06, decode=0.1)
"""`real` is slower than `ram` by what a machine's drift may do to it."""


@pytest.mark.parametrize("arms", [None, tuple(arm for arm in ARMS if arm is not Arm.RAM)])
def test_a_storage_that_provably_had_nothing_to_do_has_no_share(arms: tuple[Arm, ...] | None) -> None:
    record = valid(analyze(stored(DRIFTED, "local", "warm", WHOLE, arms=arms)))
    assert record.storage is not None and record.storage.idle_proof == "local"
    assert record.shares is not None and record.shares["storage"] is not None and record.shares["prep"] is not None
    share = record.shares["storage"]
    assert (share.value, share.low, share.high) == (0, 0, 0)
    assert sum(value(one) for one in record.shares.values()) == pytest.approx(1, abs=1e-9)
    assert record.verdict is not None and record.verdict.bottleneck == "prep"
    assert value(record.verdict.speedup_if_removed["storage"]) == 1
    assert any("the storage share is 0 (proven)" in line for line in verdict_of(record).evidence)
    assert "arms_not_measured" not in codes(record)


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        ("fuse", WHOLE),  # each open reaches the daemon
        ("unknown", WHOLE),
        (None, WHOLE),  # stored before
        ("local", replace(WHOLE, process_read_bytes=4096)),  # an inode
        ("local", replace(WHOLE, process_read_bytes=None)),
        ("local", replace(WHOLE, residency_after=0.999)),
        ("local", replace(WHOLE, residency_before=None)),
        ("nfs", replace(WHOLE, moved={"read_bytes": 0, "rpcs": 3})),  # opens ask the server
    ],
)
def test_without_a_proof_the_arms_tell_the_storage_s_share(kind: StorageKind, window: StorageWindow) -> None:
    record = valid(analyze(stored(DRIFTED, kind, "warm", window)))
    assert record.storage is not None and record.storage.idle_proof is None
    assert record.shares is not None and value(record.shares["storage"]) > 0.2


def test_reads_of_a_cluster_s_processes_are_the_disk_s() -> None:
    """Ray's workers are not the run's: that its own processes read nothing proves nothing."""
    disk = replace(WHOLE, moved={"read_bytes": 10**6, "reads": 9})
    given = stored(DRIFTED, "local", "as-is", disk)
    assert given.recording is not None
    given = make_run(given.case.changed(loader="ray"), given.recording.segments, facts=given.recording.facts)
    storage = analyze(given).storage
    assert storage is not None
    assert (storage.idle_proof, storage.bytes_read) == (None, 3 * 10**6)


def test_an_nfs_client_that_asks_for_nothing_has_an_idle_storage() -> None:
    window = replace(WHOLE, moved={"read_bytes": 0, "rpcs": 0})
    record = analyze(stored(DRIFTED, "nfs", "warm", window))
    assert record.storage is not None and record.storage.idle_proof == "nfs"


def test_slow_opens_of_files_in_memory_are_storage() -> None:
    """FUSE, warm: no byte moves, and the daemon answers each open after 0.4 s a batch."""
    record = analyze(stored(SLOW, "fuse", "warm", replace(WHOLE, moved=None, process_read_bytes=0)))
    assert record.verdict is not None and record.verdict.bottleneck == "storage"
