"""The folders of results that are shown. All is made up, in round numbers, but for the runs of `measured`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from pictures import write_tree

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.studies import judge
from loaderbench.cases.options import Price
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import SCHEMA, Failure, ImageFailure, Run, WatchedApplied, WatchedSeconds
from loaderbench.recording.forecast import Memory
from loaderbench.recording.model_io import CopiesFacts, IoFacts
from loaderbench.recording.model_memory import BatchMemoryFacts, MeasuredMemory, ModelFitFacts, ModelMemoryFacts
from loaderbench.recording.model_size import BatchFacts, KnownStep, StepRound
from loaderbench.recording.model_split import DroppedMember, KnownTimes, MemberFacts, MovedPart
from loaderbench.recording.offload_study import OffloadSetting, ResultCheck, SettingFacts
from loaderbench.recording.record import Advice, Estimate, GapShare, Range, RunRecord, SlowFile, SlowFolder, Tail
from loaderbench.recording.split_times import Split, SplitTime
from loaderbench.recording.store import RUNS_FOLDER, RunFolder, Store, StudyFolder
from loaderbench.recording.studies import (
    CompareFacts,
    Final,
    Left,
    ModeFacts,
    PrecisionFacts,
    SelfTestFacts,
    StudyFacts,
    StudyKind,
    StudyRecord,
    SweepFacts,
    TuneFacts,
    TuneScreen,
)
from loaderbench.recording.whatif import Limit, RanksThen, WhatifAsked, WhatifFacts
from loaderbench.reporting import words
from loaderbench.studies.measure import judged
from tests import ledger_records as ledgers
from tests import offload_facts as offloads
from tests import split_facts as splits
from tests.analysis import test_forecast as forecasts
from tests.analysis import test_layer_rows as layers
from tests.analysis import test_memory as memories
from tests.analysis import test_ranks as ranks
from tests.analysis import test_sizing as sizes
from tests.analysis.test_trace_gaps import EVENTS
from tests.attach_facts import QUIET, attached, job
from tests.capacity_facts import au_look, capacity_facts, of_storage
from tests.convert_schema1 import convert
from tests.made import CASE, make_case, make_device, make_environment
from tests.precision_facts import MODEL, numbers, timing
from tests.reporting import example_records as examples
from tests.selftest import test_selftest as selftests
from tests.watched_facts import epoch, run_of, segment, watched_facts

STARTED_AT = "2026-01-02T03:04:05.006+00:00"
MIB = 2**20
SCHEMA1 = Path(__file__).parents[1] / "data" / "schema1"


# -- studies without runs --------------------------------------------------------------------------------

FULL = of_storage([1, 2, 4, 8, 16, 12, 10, 11])
CAPACITIES = {
    "capacity": capacity_facts(*FULL),
    "capacity-no-more-tried": capacity_facts(*of_storage([1, 2]), max_ranks=2),
    "capacity-latency": capacity_facts(au_look(1, 0.5), au_look(2, 0.5), storage=4000.0),
    "capacity-unfinished": capacity_facts(*of_storage([1, 2])),
    "capacity-nothing": capacity_facts(),
    "capacity-failed": capacity_facts(*of_storage([1, 2]), failure=Failure("CaseFailed", "rank 3 of 4: killed")),
    "capacity-interrupted": capacity_facts(*of_storage([1]), interrupted=True),
}

FITS = SettingFacts(10, None, offloads.CURVE[0].ledger, offloads.CURVE[3].turns, peak_live_bytes=90 * MIB)


def _checked(check: ResultCheck | None, **known: Any) -> Any:
    return offloads.study(settings=(*offloads.CURVE[:3], replace(offloads.CURVE[3], check=check)), **known)


OFFLOADS = {
    "offload": offloads.study(),
    "offload-threshold": offloads.study(settings=offloads.CURVE[:3]),
    "offload-inference": offloads.study(step=replace(offloads.STEP, mode="infer")),
    "offload-on-host": offloads.study(on_host=True),
    "offload-fits": offloads.study(without=FITS),
    "offload-replay": offloads.study(
        settings=(offloads.replayed(0.03, 0), offloads.replayed(0.011, None)), batch_one=None,
        not_measured="no model is run", assumptions=("a step takes 10 ms (assumed)",),
    ),
    "offload-one-setting": offloads.study(is_study=False, batch_one=None, settings=offloads.CURVE[1:2]),
    "offload-one-setting-fits": offloads.study(is_study=False, without=FITS, settings=offloads.CURVE[1:2]),
    "offload-unhooked": offloads.study(unhooked=("layer Swish keeps tensors",)),
    "offload-batch-one-too-large": offloads.study(
        batch_one=SettingFacts(1, None, offloads.ONE.ledger, failure=offloads.TOO_LARGE)
    ),
    "offload-planned": offloads.study(planned_bytes=90 * MIB),
    "offload-equal": _checked(ResultCheck(10, 5, 0.0, None)),
    "offload-equal-batch-one": _checked(ResultCheck(1, 5, 0.0, None)),
    "offload-alike": _checked(ResultCheck(10, 5, 3e-7, 1e-7)),
    "offload-refused": _checked(ResultCheck(10, 5, 0.5, 0.0)),
    "offload-not-compared": _checked(None, not_compared="no time"),
    "offload-interrupted": offloads.study(interrupted=True),
}  # fmt: skip

WHOLE = Split((16, 0), 0.10)
FEW = np.full(5, 0.06)
MEMBERS = splits.split_facts().members
WITH_EMULATED = (MEMBERS[0], MemberFacts("emulated:toy", None, KnownTimes("published", "a table of figures", 1e9)))
SPLITS = {
    "split": splits.split_facts(),
    "split-slower": splits.split_facts(turns=splits.turns_of(np.full(8, 0.2), np.full(8, 0.21), np.full(8, 0.1))),
    "split-disagrees": splits.split_facts(
        turns=splits.turns_of(np.full(10, 0.05), np.full(10, 0.09), np.full(10, 0.11))
    ),
    "split-either-alone": splits.split_facts(
        times=(SplitTime("cpu:1", 16, 0.10, 0.09, 0.11, 6), SplitTime("cuda:0", 16, 0.16, 0.10, 0.20, 6))
    ),
    "split-left-out": splits.split_facts(num_left_out=1),
    "split-close-outputs": splits.split_facts(check=replace(splits.split_facts().check, neighbours=1e-6)),  # type: ignore[type-var]
    "split-alone-is-best": splits.split_facts(
        searches=(replace(splits.SEARCH, exact=WHOLE, greedy=WHOLE),), chosen=WHOLE,
        turns=replace(splits.turns_of(np.empty(0), np.empty(0), np.full(8, 0.1)), sizes=(16, 0)),
    ),
    "split-moved": splits.split_facts(
        moved=(MovedPart(1, 9, "9 images need more"), MovedPart(1, 7, "7 images need more than the device's 1 GB"))
    ),
    "split-dropped": splits.split_facts(
        dropped=(DroppedMember("cuda:1", "the model needs more than the device's 1 GB"),)
    ),
    "split-failed": splits.split_facts(
        failure=Failure("CaseFailed", "cuda:0 (member 2 of 2): the measuring process was killed by SIGKILL"),
        interrupted=True,
    ),
    "split-few-turns": splits.split_facts(turns=splits.turns_of(FEW, FEW, 4 * FEW)),
    "split-alone-not-run": splits.split_facts(turns=splits.turns_of(FEW[:1], FEW[:1], np.empty(0)), interrupted=True),
    "split-emulated": splits.split_facts(members=WITH_EMULATED),
    "split-emulated-without-a-part": splits.split_facts(
        members=WITH_EMULATED, chosen=WHOLE, searches=(replace(splits.SEARCH, exact=WHOLE),)
    ),
    "split-nothing": splits.split_facts(searches=(), chosen=None, turns=None, interrupted=True),
    "split-times": splits.split_facts(
        times=(
            splits.TIMES[0],
            replace(splits.TIMES[1], seconds=None, low=None, high=None, outcome="out_of_memory", message="too small"),
            replace(splits.TIMES[2], beside=(), low=None, high=None, num_turns=None, origin="set by hand"),
        )
    ),
}  # fmt: skip

THREE = (sizes.batch(1, 0.01), sizes.batch(2, 0.0125), sizes.batch(4, 0.02))
SIZE = sizes.facts(
    *THREE, sizes.out_of_memory(8), target_per_s=5000.0, latency_s=0.5, stopped_by="memory", feed=sizes.FEED,
    mean_file_bytes=110_000.0, mean_file_source="run", percentile=99.9,
)  # fmt: skip


def _rounds(*step_s: float, num: int) -> tuple[StepRound, ...]:
    return tuple(StepRound(np.full(num, one)) for one in step_s)


SIZES = {
    "size": replace(SIZE, latency_s=None),
    "size-latency-met": replace(SIZE, percentile=99.0),
    "size-percentile-not-known": SIZE,
    "size-one-device": replace(SIZE, latency_s=None, target_per_s=100.0),
    "size-latency-bound": replace(SIZE, latency_s=0.015, percentile=99.0),
    "size-latency-not-met": replace(SIZE, latency_s=0.001, percentile=99.0),
    "size-latency-not-known": replace(SIZE, latency_s=0.001),
    "size-no-target": replace(SIZE, target_per_s=None, percentile=99.0),
    "size-time-used-up": replace(SIZE, latency_s=None, stopped_by="duration"),
    "size-nothing-fits": replace(SIZE, batches=(sizes.out_of_memory(1),)),
    "size-beyond-the-limit": sizes.facts(
        sizes.batch(2, 0.02), replace(sizes.batch(4, 0.036), rounds=_rounds(0.030, 0.036, 0.042, num=700)),
        latency_s=0.025,
    ),
    "size-interval": sizes.facts(
        replace(THREE[0], rounds=_rounds(0.009, 0.010, 0.011, num=40)), target_per_s=1000.0
    ),
    "size-other-feed": replace(SIZE, feed=replace(sizes.FEED, input_size=224, named=False)),
    "size-no-feed": sizes.facts(*THREE, target_per_s=5.0, no_feed="no run is stored"),
    "size-no-cpu-times": replace(SIZE, feed=replace(sizes.FEED, cpu_s_per_sample=None, no_cpu_s="the run has none")),
    "size-few-steps": sizes.facts(
        sizes.batch(1, 0.01, num_steps=30), sizes.batch(2, 0.01, num_steps=20), target_per_s=1.0
    ),
    "size-on-cpu": sizes.facts(
        *THREE, target_per_s=1.0, device=make_device(emulated=False, on_host_cpus=True), device_name="cpu"
    ),
    "size-known": sizes.facts(
        BatchFacts(64, "ok", known=KnownStep(0.0162, "measured", "CUDA events")), target_per_s=20_000.0,
        stopped_by="known",
    ),
}  # fmt: skip

HERE = make_environment()
ASKED = forecasts.Asked(1050, 10, val_images=200, val_every=5, checkpoint_every=2)
SOURCE = forecasts.source(
    cold=forecasts.steps(0.5, 0.02, "measured", "run", forecasts.Starts((1.5, 0.9, 0.9), (2.0, 0.9, 0.9))),
    warm=forecasts.steps(0.2, 0.01, "memory_arm", "run", forecasts.Starts((5.0, 0.4, 0.6), (9.0, 0.7, 0.5))),
    process_s=2.0, open_s=1.0, build_s=0.5, first_steps_s=0.25, environment=HERE,
)  # fmt: skip
VALIDATION = forecasts.source(
    mode="infer", cold=forecasts.steps(0.3, 0.0, "measured", "v"), warm=forecasts.steps(0.1, 0.0, "measured", "v"),
    environment=HERE,
)  # fmt: skip


def _forecast(asked: Any = ASKED, source: Any = SOURCE, **changes: Any) -> Any:
    return forecasts.facts(asked, source, **{"environment": HERE, **changes})


FORECASTS = {
    "forecast": _forecast(validation=VALIDATION, checkpoints=forecasts.CheckpointTimes(1, (1.0, 2.0, 3.0))),
    "forecast-one-epoch": _forecast(forecasts.Asked(1000, 1)),
    "forecast-memory-alone": _forecast(forecasts.Asked(1000, 4), replace(SOURCE, cold=None)),
    "forecast-little-memory": _forecast(memory=Memory(400_000, "test")),
    "forecast-checked": ledgers.forecast_study(
        [ledgers.checked(Range(1.0, 0.9, 1.1), 1.05), ledgers.checked(Range(0.4, 0.35, 0.5), 0.6, "warm")],
        (Range(3.0, 2.8, 3.3), 3.4),
    ).facts,
}

LATE = ranks.one_late(3, 1)
RANKS = {
    "ranks": ranks.facts(LATE, read=0.002 + LATE),
    "ranks-alone": ranks.facts(LATE, read=0.002 + LATE, joint=False),
    "ranks-nodes": ranks.facts(ranks.one_late(4, 3), nodes=["a", "a", "b", "b"]),
    "ranks-device": ranks.facts(ranks.none(4), work=ranks.WORK + ranks.one_late(4, 3)),
    "ranks-even": ranks.facts(ranks.none(3)),
    "ranks-few-steps": ranks.facts(ranks.none(3)[:, :6]),
}

BF16 = ModeFacts("bf16", "ok", None, timing(step_s=0.05, num_bytes=400 * MIB), numbers([7.0, 6.1], [2.0, 1.1]))
LAYERS = replace(layers.facts(), environment=HERE)
MODELS = {
    "layers": LAYERS,
    "layers-interrupted": replace(LAYERS, status="interrupted"),
    "layers-failed": replace(LAYERS, status="failed", times=None, failure=Failure("CaseFailed", "it broke")),
    "memory": ModelMemoryFacts(
        ledgers.STEP, 0, True, HERE, make_device(name="a device"), None,
        batches=tuple(
            BatchMemoryFacts(
                size, memories.trace(size, weights=MIB, activation=MIB // 10, workspace=MIB // 2), None, "ok",
                MeasuredMemory(measured * MIB, 2 * measured * MIB, 900 * MIB, 3),
            )
            for size, measured in ((1, 3), (16, 7))
        ),
    ),
    "memory-not-measured": ModelMemoryFacts(
        ledgers.STEP, 0, True, HERE, None, "the device computes nothing",
        batches=(BatchMemoryFacts(1, memories.trace(1), None, "skipped"),),
    ),
    "memory-failed": ModelMemoryFacts(
        ledgers.STEP, 0, False, HERE, None, None,
        batches=(
            BatchMemoryFacts(
                1, None, Failure("CaseFailed", "it cannot be traced"), "failed", None,
                Failure("OutOfMemory", "does not fit"),
            ),
        ),
        interrupted=True,
    ),
    "fit": ModelFitFacts(
        ledgers.STEP, 0, True, HERE, None, 8 * MIB, "--memory", 8 * MIB, "prediction",
        tuple(memories.trace(size, weights=MIB, activation=MIB // 100, workspace=MIB) for size in (50, 100)), None,
        "the device computes nothing", 4096,
    ),
    "fit-nothing": ledgers.fit_study(None, None).facts,
    "io": IoFacts(
        "resnet50", "fp32", "cuda:0", 224, 3, 0, HERE, make_device(name="a device", emulated=False),
        batches=(
            CopiesFacts(1, 602_112, 4_000, np.full(8, 1e-4), np.full(8, 1e-5)),
            CopiesFacts(128, 77_070_336, 512_000, np.linspace(0.0059, 0.0061, 8), np.full(8, 7e-5)),
            CopiesFacts(256, failure=Failure("OutOfMemory", "does not fit")),
        ),
        num_batches=3,
    ),
    "io-interrupted": IoFacts("resnet50", "fp32", "cpu", 224, 3, 0, HERE, num_batches=9),
    "precision": PrecisionFacts(
        MODEL, "train", "cpu", 2, 4, 64, 0, HERE, device=make_device(kind="cpu", name="a CPU", emulated=False),
        modes=(
            ModeFacts("fp32", "ok", None, timing(step_s=0.1, num_bytes=800 * MIB), numbers([7.0, 6.0], [2.0, 1.0])),
            BF16,
            ModeFacts("fp16", "skipped", Failure("UnavailableError", "this device lacks it")),
        ),
        repeat=numbers([7.0, 6.01], [2.0, 1.01]),
    ),
    "precision-without-fp32": PrecisionFacts(
        MODEL, "train", "cpu", 2, 4, 64, 0, HERE,
        modes=(
            ModeFacts("fp32", "failed", Failure("OutOfMemory", "does not fit")),
            BF16,
        ),
    ),
}  # fmt: skip

STEP_S = Estimate(0.08, 0.076, 0.084, "s", 12, "replay")
WHATIF = WhatifFacts(
    source_id="20260101-000000-000-run", case=CASE, environment=HERE, asked=WhatifAsked(workers=8, prefetch=4),
    samples_per_step=64.0, now_s=STEP_S, then_s=Estimate(0.041, 0.037, 0.0455, "s", 12, "replay"),
    gain=Estimate(1.95, 1.75, 2.17, "ratio", 12, "replay"),
    limit=Limit(
        "storage", (), {"storage": Estimate(1.4, 1.3, 1.51, "ratio", 12, "replay"),
        "prep": Estimate(1.02, 1.0, 1.05, "ratio", 12, "replay")},
    ),
    residual=0.012, held_out=True,
    assumed=(Reason("whatif_workers", {"cpus": 8.0}), Reason("whatif_readers_probed", {"rate": 5e8})),
    wanted=CASE.changed(workers=8, prefetch=4),
)  # fmt: skip
NO_CASE = {"wanted": "no run can be measured that is exactly this, so the ledger will not score it"}
WHATIFS = {
    "whatif": WHATIF,
    "whatif-ranks": replace(
        WHATIF, asked=WhatifAsked(storage="2GB/s", ranks=64), wanted=None, missing=NO_CASE,
        gain=Estimate(0.9, 0.82, 0.98, "ratio", 12, "replay"), then_s=Estimate(0.089, 0.081, 0.098, "s", 12, "replay"),
        ranks=RanksThen(64, STEP_S, Estimate(0.1, 0.06, 0.14, "fraction", 12, "replay")),
        assumed=(
            Reason("whatif_ranks"), Reason("whatif_rate", {"rate": 2e9}),
            Reason("whatif_ranks_share", {"rate": 2e9 / 64}),
        ),
    ),
    "whatif-device": replace(
        WHATIF, asked=WhatifAsked(device="emulated:a100"), limit=Limit("mixed", ("storage", "prep"), {}, STEP_S),
        assumed=(
            Reason(
                "whatif_device", {"device_name": "NVIDIA A100", "step_s": 0.07, "batch_size": 64, "label": "published"}
            ),
            Reason("whatif_issue", {"issue_s": 0.004}),
        ),
        wanted=CASE.changed(device="emulated:y"),
    ),
    "whatif-unexplained": replace(
        WHATIF, residual=0.31, held_out=False, limit=Limit("undetermined", (), {}),
        then_s=Estimate(0.041, None, None, "s", 1, "replay"), gain=Estimate(1.95, None, None, "ratio", 1, "replay"),
    ),
}  # fmt: skip

READS = [("file", "nfs_wait", 0.040), ("running", "", 0.004)]
SLEEPS = [("sleep", "", 0.010)]
SLOW = job(READS, SLEEPS, part={"running": "step"})
FED = job([("running", "", 0.004)], [("sleep", "", 0.03)], pid=4343, command="python other.py", rank=1, world=2)
STUCK = job(
    [], [("file", "rpc_wait_bit_killable", 1.0)], workers=0, uses=QUIET, consumer_waited_s=431.0, pid=4444,
    command="python stuck.py",
)  # fmt: skip
ATTACHED: Mapping[str, StudyFacts] = {
    "attach": attached(SLOW, price=Price(2.5, "$", True)),
    "attach-all": attached(
        replace(SLOW, rank=0, world=2), FED, STUCK, asked="all jobs", price=Price(2.5, "$", True),
        refused=("PID 4545: Permission denied",),
    ),
    "attach-stuck": attached(STUCK, asked="PID 4444"),
    "attach-few": attached(job(READS, SLEEPS, looks=20), interrupted=True),
}  # fmt: skip

OF_KIND: Mapping[StudyKind, Mapping[str, StudyFacts]] = {
    "capacity": CAPACITIES,
    "model_offload": OFFLOADS,
    "model_split": SPLITS,
    "model_size": SIZES,
    "forecast": FORECASTS,
    "ranks": RANKS,
    "model_layers": {name: one for name, one in MODELS.items() if name.startswith("layers")},
    "model_memory": {name: one for name, one in MODELS.items() if name.startswith("memory")},
    "model_fit": {name: one for name, one in MODELS.items() if name.startswith("fit")},
    "model_io": {name: one for name, one in MODELS.items() if name.startswith("io")},
    "precision": {name: one for name, one in MODELS.items() if name.startswith("precision")},
    "whatif": WHATIFS,
    "attach": ATTACHED,
}
"""Kind → name → facts of a study without runs; the first of each kind is the plain one."""


# -- runs ------------------------------------------------------------------------------------------------


def run_id(number: int, name: str) -> str:
    return f"20260101-000000-{number:03d}-{name}"


def _gaps() -> RunRecord:
    by_class = {"data_stall": GapShare(1.0, 0.3), "launch": GapShare(1.0, 0.1), "other": GapShare(0.0, 0.0)}
    gap = examples.kernel_gap(by_class, total_fraction=0.4, count_per_step=31.4, p50_s=2.5e-6)
    return examples.with_gaps(examples.measured(bottleneck="launch"), gap)


def _cold() -> RunRecord:
    record = examples.measured(cache="cold", bottleneck="storage")
    tail = Tail(0.7, 0.4, 0.001, True, (SlowFile("class a/x.jpg", 0.4, 2),), "class a", 0.9)
    storage = replace(
        examples.storage_of(record), cold_proven=True, cold_proof="bytes", tail=tail,
        slow_folder=SlowFolder("class a", 0.2, 0.95, 5.25),
    )  # fmt: skip
    verdict = examples.verdict_of(record)
    advice = (Advice("slow_files_elsewhere", "storage", details={"folder": "class a", "files": ["class a/x.jpg"]}),)
    return replace(record, storage=storage, verdict=replace(verdict, advice=(*advice, *verdict.advice)), tag="nightly")


def _with_storage(cache: str, **figures: Any) -> RunRecord:
    record = examples.measured(cache=cache)
    return replace(record, storage=replace(examples.storage_of(record), **figures))


def _verified() -> RunRecord:
    record = examples.measured()
    verdict = examples.verdict_of(record)
    first, second = verdict.advice
    advice = (
        replace(first, verified=True, measured_speedup=examples.estimate(1.28)),
        replace(second, verified=True, not_verified="no complete step within a turn"),
    )
    return replace(record, verdict=replace(verdict, advice=advice))


def _bare() -> RunRecord:
    names = ("throughput", "time_to_first_batch_s", "accelerator_utilization_fraction", "storage", "cpu", "stages")
    return replace(examples.measured(), **dict.fromkeys(names))


def _started() -> RunRecord:
    record = examples.measured()
    assert record.cpu is not None
    cpu = replace(record.cpu, workers_pss_bytes=410e6)
    return replace(record, cpu=cpu, start_s={"imports": 2.13, "ranks": 0.0, "device": 9.04, "first_step": 0.4})


def _failed() -> RunRecord:
    failures = (ImageFailure("class a/x.jpg", "broken"),)
    return replace(examples.ended_badly(), failure=Failure("CaseFailed", "cannot read it"), failures=failures)


RECORDS: Mapping[str, RunRecord] = {
    "run": examples.measured(),
    "run-heavy": examples.heavy(),
    "run-bare": _bare(),
    "run-started": _started(),
    "run-gaps": _gaps(),
    "run-cold": _cold(),
    "run-verified": _verified(),
    "run-mixed": examples.summed_up(
        examples.measured(bottleneck="mixed"), "Mixed: storage and prep bound it together."
    ),
    "run-undetermined": examples.measured(bottleneck="undetermined"),
    "run-compute": examples.measured(bottleneck="compute"),
    "run-failed": _failed(),
    "run-skipped": examples.ended_badly("skipped"),
    "run-interrupted": examples.ended_badly("interrupted"),
    "run-cold-resident": _with_storage("cold", cold_proven=True, cold_proof="residency"),
    "run-idle": _with_storage("warm", idle_proof="local"),
}
"""Records without facts."""


def _watched() -> Mapping[str, Run]:
    slow, quick, step = np.full(200, 40.0), np.full(200, 4.0), np.full(200, 10.0)
    plain = watched_facts()
    (main,) = plain.loaders
    before = replace(main, num_iterators=1, num_batches=100, seconds=WatchedSeconds(0.1, 0.1, 3.0, 1.0, 0.0, 0.0))
    spent = WatchedSeconds(0.2, 0.2, 0.4, 3.6, 0.0, 0.0)
    behind = replace(main, workers=4, num_iterators=2, num_batches=200, seconds=spent)
    epochs = tuple(epoch(0.1, 0.1, wait, 1.0) for wait in (3.0, 0.4, 0.4))
    return {
        "watched-waits": run_of(segment(slow, step, 2, read_part=0.2, collate_part=0.1), 2),
        "watched-fed": run_of(segment(quick, step, 4, read_part=0.2, collate_part=0.1), 4),
        "watched-serial": run_of(segment(slow, step, 0, read_part=0.6), 0),
        "watched-applied": run_of(
            segment(slow, step, 2, read_part=0.2), 2, loaders=(before,), epochs=epochs,
            applied=WatchedApplied({"workers": 4}, 2, (), behind),
        ),
    }  # fmt: skip


WATCHED = _watched()
"""Runs of watched scripts, with their facts."""
RUN_IDS = {
    name: run_id(number, name)
    for names, begin in ((RECORDS, 0), (WATCHED, 100))
    for number, name in enumerate(names, begin)
}
"""Name → id of a run in `runs`: a further one comes last and changes no other's."""
MEASURED = tuple(sorted(one.name for one in SCHEMA1.glob("*-w[0-9]-*")))
"""The runs of `measured`."""
OLDER = next(run for run in MEASURED if "serial" in run)
"""The run of `older` that older rules judged otherwise."""


# -- studies of runs -------------------------------------------------------------------------------------


def _raced() -> list[RunRecord]:
    return [
        examples.measured(
            run_id=run_id(number, f"1024-{name}"), loader=name, resolution=1024, dataset="/data/photos/1024", real_ms=ms
        )
        for number, (name, ms) in enumerate((("threaded", 40.0), ("multiprocess", 80.0)), 300)
    ]


def _tune(raced: Sequence[RunRecord]) -> TuneFacts:
    other = raced[1].case.changed(loader="dali", decoder=None)
    return TuneFacts(
        raced[1].case, num_settings=9, budget_s=60.0, spent_s=50.0, num_rungs=1, trials=(),
        finals=tuple(Final(one.case, (one.run_id,), one is raced[1]) for one in raced),
        screens=(TuneScreen(other, None, "not installed"), TuneScreen(raced[0].case, 1500.0)),
        untried=({"loader": "serial", "workers": 0},),
    )  # fmt: skip


def _sweep() -> list[RunRecord]:
    return [replace(one, run_id=run_id(200 + number, "sweep")) for number, one in enumerate(examples.sweep())]


def _selftest() -> tuple[SelfTestFacts, list[RunRecord]]:
    found = {
        "prep": (selftests.record("prep", gain=1.9, prep=0.4, contention=0.05, compute=0.5), (0.040, 0.020)),
        "storage": (selftests.record("prep", gain=1.5, storage=0.3), (0.040, 0.020)),
        "transfer": (selftests.record("undetermined", compute=1.0), (0.0202, 0.020)),
    }
    ran = tuple(
        selftests.scenario(cause, *times, run_id=run_id(400 + number, cause))
        for number, (cause, (_, times)) in enumerate(found.items())
    )
    facts = SelfTestFacts(
        True, "cpu", 5, ran, skipped=(Left("nfs-storage", "it needs root"),),
        failed=(Left("serial-compute", "it took more than 60 s"),),
    )  # fmt: skip
    return facts, [replace(record, run_id=one.run_id) for one, (record, _) in zip(ran, found.values(), strict=True)]


# -- the folders -----------------------------------------------------------------------------------------


def keep_record(root: Path, record: RunRecord) -> None:
    folder = root / record.run_id
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(record.case.to_json()))
    RunFolder(record.run_id, folder, record.started_at).write_record(words.worded(record))


def keep_run(root: Path, run: Run) -> None:
    """With its facts."""
    folder = RunFolder(run.run_id, root / run.run_id, run.started_at)
    folder.path.mkdir(parents=True)
    folder.write_case(run.case)
    folder.write_record(judged(folder.write_run(run)))


def keep_study(
    root: Path, name: str, kind: StudyKind, facts: StudyFacts, runs: Sequence[RunRecord] = (), *, own: bool = False
) -> None:
    """A study with its runs: in its own folder, or beside it."""
    for record in runs:
        keep_record(root / name / RUNS_FOLDER if own else root, record)
    ids = tuple(record.run_id for record in runs)
    findings = judge(facts, {record.run_id: record for record in runs})
    own_ids, ids = (ids, ()) if own else ((), ids)
    record = StudyRecord(SCHEMA, RULES_VERSION, name, kind, STARTED_AT, facts, findings, ids, own_ids)
    StudyFolder(name, root / name, STARTED_AT).write(record)


def make_runs(root: Path) -> None:
    """Runs alone."""
    for name, record in RECORDS.items():
        keep_record(root, replace(record, run_id=RUN_IDS[name]))
    for name, run in WATCHED.items():
        keep_run(root, replace(run, run_id=RUN_IDS[name]))


OF_RUNS: Mapping[StudyKind, Sequence[str]] = {
    "sweep": ("sweep",), "tune": ("tune",), "selftest": ("selftest",), "compare": ("compare",),
}  # fmt: skip
LATER: Sequence[StudyKind] = ("attach",)
"""Kinds that came after those with runs: their days change no other's."""
STUDY_IDS = {
    name: f"202601{day:02d}-0304{number:02d}-000-{name}"
    for day, named in enumerate(
        [
            *(named for kind, named in OF_KIND.items() if kind not in LATER),
            *OF_RUNS.values(),
            *(OF_KIND[kind] for kind in LATER),
        ],
        2,
    )
    for number, name in enumerate(named)
}
"""Name → id. A kind has a day, so that a further study changes no other's."""


KINDS = (*(next(iter(named)) for named in OF_KIND.values()), *(name for names in OF_RUNS.values() for name in names))
"""A plain study of each kind, by its name."""


def make_studies(kinds: Path, variants: Path) -> None:
    """A study of every kind with its runs, and apart from them what else may become of studies."""
    for kind, named in OF_KIND.items():
        for name, facts in named.items():
            keep_study(kinds if name in KINDS else variants, STUDY_IDS[name], kind, facts)
    swept, raced, (score, scored) = _sweep(), _raced(), _selftest()
    keep_study(kinds, STUDY_IDS["sweep"], "sweep", SweepFacts(len(swept)), swept)
    keep_study(kinds, STUDY_IDS["tune"], "tune", _tune(raced), raced)
    keep_study(kinds, STUDY_IDS["selftest"], "selftest", score, scored, own=True)
    compared = [one for side in examples.nvme_and_nfs().values() for one in side]
    notes = (Reason("as_is_for_cold", {"path": "/mnt/nfs"}), Reason("warm_does_not_fit", {"bytes": 2 * 10**12}))
    facts = CompareFacts({"a": "nvme", "b": "nfs"}, num_cases=8, notes=notes)
    keep_study(kinds, STUDY_IDS["compare"], "compare", facts, compared)


def make_predictions(root: Path) -> None:
    """What a ledger lists: gains, epochs, a training, memory and largest batches, good ones and bad ones."""
    for number, run in enumerate(
        (
            ledgers.verified_run(ledgers.gain(1.5, 1.4, 1.6, 1.45)),
            ledgers.verified_run(ledgers.gain(2.0, 1.8, 2.2, 1.2), case=make_case(loader="serial", workers=0)),
        )
    ):
        keep_record(root, replace(run, run_id=run_id(number, "verified")))
    mib = ledgers.MIB
    studies = (
        ledgers.memory_study(
            ledgers.batch_memory(8, 100 * mib, 101 * mib), ledgers.batch_memory(16, 190 * mib, 250 * mib)
        ),
        ledgers.fit_study(100, 101),
        ledgers.fit_study(64, 48),
        ledgers.forecast_study(
            [ledgers.checked(Range(1.0, 0.9, 1.1), 1.05), ledgers.checked(Range(0.4, 0.35, 0.5), 0.6, "warm")],
            (Range(3.0, 2.8, 3.3), 3.4),
        ),
        ledgers.whatif_study(0.041, 0.037, 0.0455),
    )
    measured = ledgers.measured_run(0.044)
    keep_record(root, replace(measured, run_id=run_id(2, "measured")))
    for number, study in enumerate(studies):
        name = run_id(500 + number, study.kind)
        StudyFolder(name, root / name, STARTED_AT).write(replace(study, study_id=name))


def make_damaged(root: Path) -> None:
    """A run that ended well, one whose process died, one whose record is cut off, one with nothing in it, one of a
    newer schema, a study that makes no sense and one that is cut off."""
    keep_record(root, replace(examples.measured(), run_id=run_id(0, "sound")))
    case = json.dumps(make_case().to_json())
    for number, (name, files) in enumerate(
        {
            "died": {"case.json": case},
            "cut-off": {"case.json": case, "run.json": '{"schema": 1, "stat'},
            "newer": {"case.json": case, "run.json": '{"schema": 99}'},
            "empty": {},
        }.items(),
        1,
    ):
        (root / run_id(number, name)).mkdir()
        for file, text in files.items():
            (root / run_id(number, name) / file).write_text(text)
    nonsense = offloads.study(without=replace(offloads.ONE, setting=OffloadSetting(0, float("nan"))))
    name = run_id(500, "nonsense")
    record = StudyRecord(SCHEMA, RULES_VERSION, name, "model_offload", STARTED_AT, nonsense, None)
    StudyFolder(name, root / name, STARTED_AT).write(record)
    (root / run_id(501, "cut-off")).mkdir()
    (root / run_id(501, "cut-off") / "study.json").write_text('{"schema"')


def make_older(root: Path, measured: Path) -> None:
    """Two measured runs, one of which older rules judged otherwise."""
    for name in [run for run in MEASURED if "serial" in run]:
        shutil.copytree(measured / name, root / name)
    record = Store(root).named(OLDER).record  # type: ignore[union-attr]
    assert record is not None and record.throughput is not None
    rate = replace(record.throughput, value=2 * record.throughput.value)
    old = replace(record, rules_version=1, throughput=rate, stages=None)
    RunFolder(OLDER, root / OLDER, record.started_at).write_record(old)


def make_all(folder: Path) -> None:
    """Every folder of results, of which `measured` has 14 runs, a sweep and a comparison; a trace, and a file that is
    none; a data set, its copy and an empty folder."""
    folder.mkdir()
    with mock.patch("os.fsync"):  # nothing here need survive a power cut
        assert convert(SCHEMA1, folder / "measured") == []
        make_runs(folder / "runs")
        make_studies(folder / "kinds", folder / "variants")
        make_predictions(folder / "predictions")
        make_damaged(folder / "damaged")
        make_older(folder / "older", folder / "measured")
    (folder / "trace.json").write_text(json.dumps({"traceEvents": EVENTS}))
    (folder / "no-trace.json").write_text("{}")
    (folder / "nothing-in-it").mkdir()
    grey = [np.full((160, 160, 3), 99, dtype=np.uint8)]
    for name in ("set", "copy"):
        for side in (96, 128):
            write_tree(folder / name / str(side), grey, [(side, side)] * 48)
