"""Made-up cases, facts, segments and records: everything is filled in, and a test names only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case, Feed, Step, Subject
from loaderbench.plugins import LOADERS
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import (
    SCHEMA,
    CacheFacts,
    CeilingProbe,
    CeilingStage,
    DecoderProbe,
    DeviceFacts,
    Environment,
    Facts,
    Failure,
    FailureFacts,
    LoaderFacts,
    PrepProbe,
    Recording,
    RoundFacts,
    Run,
    Segment,
    Series,
    StartupFacts,
    Status,
    StorageFacts,
    Table,
    WorkloadFacts,
)
from loaderbench.recording.record import Estimate, RunRecord

CASE = Case(
    Subject(dataset="/data/256", dataset_name="data", resolution=256),
    Feed(loader="multiprocess", decoder="pillow", workers=2),
    Step(model="resnet50", mode="train", precision="fp32", device="emulated:x", batch_size=64, input_size=224),
)
STARTED_AT = "2026-01-01T00:00:00+00:00"


def make_case(**fields: Any) -> Case:
    """CASE with these fields set anew, whichever part holds them. Raises TypeError for one that no part has."""
    return CASE.changed(**fields)


def make_environment(cpus_usable: int = 2, **facts: Any) -> Environment:
    """A machine of which little is known."""
    known = Environment(
        python="3.12.3", kernel="6.1.0", architecture="x86_64", cpu_model="made up", cpus_online=cpus_usable,
        cpus_usable=cpus_usable, cpu_limit_reason=None, cpu_governor=None, memory_limit_bytes=None,
        memory_limit_source="none", transparent_huge_pages=None, shm_size_bytes=None, open_files_limit=None,
        memlock_limit_bytes=None, container=None, packages={}, gpus=(), gpus_reason="made up", variables={},
    )  # fmt: skip
    return replace(known, **facts)


def make_device(**facts: Any) -> DeviceFacts:
    return replace(DeviceFacts(kind="emulated", name="emulated device", emulated=True), **facts)


def make_loader(**facts: Any) -> LoaderFacts:
    """A loader that reads and decodes files, and leaves the copy to the loop: the one of CASE."""
    known = {name: plugin.traits for name, plugin in LOADERS.built_in.items()}
    others = {name: traits for name, traits in known.items() if traits.handover is not None}
    loader = LoaderFacts(True, owns_transfer=False, traits=known[CASE.feed.loader], alternatives=others)
    return replace(loader, **facts)


def make_facts(**parts: Any) -> Facts:
    """What a process found out besides its segments."""
    facts = Facts(
        device=make_device(),
        workload=WorkloadFacts("resnet50", "train", "fp32"),
        loader=make_loader(),
        cache=CacheFacts("as-is", measured_once=False),
        storage=StorageFacts(num_images=1000, image_bytes=35_000_000, source="test", reason=None),
        startup=StartupFacts({Arm.REAL: 0.5}),
        failures=FailureFacts(),
        rounds=RoundFacts((), 3, "duration"),
        loop_overhead_s=1e-5,
    )
    return replace(facts, **parts)


def make_segment(arm: Arm, steps: Table, spans: Table | None = None, **facts: Any) -> Segment:
    """A window whose first row is the warm-up."""
    given = {"round": 0, "num_warmup": 1, "steady": True, "opened_ns": 0, "closed_ns": 0, **facts}
    return Segment(arm=arm, steps=steps, spans=spans, **given)


def make_series(name: str, values: Sequence[float], *, every_ns: int = 10**8, **facts: Any) -> Series:
    """A gauge that was read at even times from 0 on."""
    t_ns = np.arange(len(values), dtype=np.int64) * every_ns
    series = Series(name, "fraction", "gauge", "made up", t_ns, np.asarray(values, dtype=np.float64))
    return replace(series, **facts)


def make_run(
    case: Case = CASE, segments: Sequence[Segment] | None = (), *, status: Status = "ok", facts: Facts | None = None,
    caveats: Sequence[Caveat] = (), cpus_usable: int = 2, **fields: Any,
) -> Run:  # fmt: skip
    """A run of these segments; None: it recorded nothing. `caveats` are the recording's. The loader's traits are those
    of the case's."""
    recording = None
    if segments is not None:
        facts = facts or make_facts()
        loader = replace(facts.loader, traits=LOADERS.find(case.feed.loader).traits)
        recording = Recording(list(segments), replace(facts, loader=loader), list(caveats))
    run = Run("r", case, status, STARTED_AT, 60.0, make_environment(cpus_usable), recording)
    return replace(run, **fields)


def make_estimate(value: float, half_width: float = 0.0, *, unit: str = "samples/s", n: int = 12) -> Estimate:
    """A figure known to ± `half_width` of itself."""
    return Estimate(value, value * (1 - half_width), value * (1 + half_width), unit, n, "made up")


def make_record(case: Case = CASE, *, status: Status = "ok", **figures: Any) -> RunRecord:
    """The record of a run that measured nothing but what is given."""
    record = RunRecord(
        schema=SCHEMA, rules_version=RULES_VERSION, run_id="r", status=status, failure=None, case=case,
        environment=make_environment(), started_at=STARTED_AT, wall_s=60.0,
    )  # fmt: skip
    if status != "ok":
        record = replace(record, failure=Failure("CaseFailed", "it broke"))
    return replace(record, **figures)


def make_stage(readers: int, rate: float, *, seconds: float = 0.8, **changes: Any) -> CeilingStage:
    """A stage of the storage probe at a steady `rate` bytes/s."""
    num_bytes = int(rate * seconds)
    stage = CeilingStage(
        readers=readers, bytes=num_bytes, seconds=seconds, files=100, file_s=None,
        slices_bytes=(num_bytes // 8,) * 8, slice_s=seconds / 8, method="O_DIRECT", user_cpu_s=0.01, moved=None,
    )  # fmt: skip
    return replace(stage, **changes)


def make_probe(*stages: CeilingStage, **facts: Any) -> CeilingProbe:
    return replace(CeilingProbe(stages, "max_readers", None, 1000), **facts)


def rates_probe(*rates: float, **stage: Any) -> CeilingProbe:
    """Stages of 1, 2, 4 … readers at these bytes/s."""
    return make_probe(*(make_stage(1 << number, rate, **stage) for number, rate in enumerate(rates)))


NOTHING = {"shared": 0.0, "private": 0.0, "reused": 0.0}


def make_prep_probe(num_cpus: int = 2, **image_s: float) -> PrepProbe:
    """Decoders that take so many seconds an image, on a machine whose processors do not slow each other."""
    decoders = {
        name: DecoderProbe((seconds,) * 8, all_cpus_image_s=seconds, all_cpus_rate=1e9)
        for name, seconds in image_s.items()
    }
    return PrepProbe(num_cpus, decoders, {"float32": NOTHING, "uint8": NOTHING})
