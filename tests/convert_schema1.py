"""Converts a folder of results: what was stored with schema 1 becomes schema 2, judged by today's rules.

    python -m tests.convert_schema1 RESULTS NEW_FOLDER

RESULTS stays as it is, and what has today's schema is copied. What cannot be converted is named, left out, and makes
the exit code 1. No figure is invented: what such runs lack is None, and the caveat `facts_missing` names it.

Schema 1 kept `case.json`, `recording.json` with `arrays.npz` (facts as free dictionaries), and `run.json`, which alone
held the environment, the sampling's cost and the supervisor's caveats.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loaderbench import plain
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.cases.traits import LoaderTraits
from loaderbench.errors import LoaderbenchError
from loaderbench.findings.caveats import CAVEATS
from loaderbench.plain import JsonObject
from loaderbench.recording.caveats import Caveat, Reason
from loaderbench.recording.facts import (
    SCHEMA,
    CacheFacts,
    CeilingProbe,
    CopyFacts,
    DeviceFacts,
    Environment,
    Facts,
    Failure,
    FailureFacts,
    HeldSteps,
    ImageFailure,
    LoaderFacts,
    PrepProbe,
    RamCopyFacts,
    Recording,
    RoundFacts,
    Run,
    Segment,
    Series,
    StartupFacts,
    StorageFacts,
    StorageWindow,
    TraceFacts,
    TraceWitness,
    WorkloadFacts,
)
from loaderbench.recording.files import ARRAYS_FILE, FACTS_FILE, parsed, read_bytes
from loaderbench.recording.store import (
    COMPARISON_FILE,
    RECORD_FILE,
    STUDY_FILE,
    STUDY_FILES,
    RunFolder,
    Store,
    StudyFolder,
)
from loaderbench.recording.studies import (
    CompareFacts,
    SameFiles,
    StudyFacts,
    StudyKind,
    StudyRecord,
    SweepFacts,
)
from loaderbench.recording.tables import open_tables
from loaderbench.studies.again import as_stored, findings_of, records_of
from loaderbench.studies.measure import judged

OLD_SCHEMA = 1
RECORDING_FILE = "recording.json"
FROM_SUPERVISOR = ("sampler_missing", "sampler_failed", "nvml_device_order", "nvml_field_missing")
"""Caveats in a record of schema 1 that do not follow from judging the facts."""
WITNESSES = {
    "pieces of the virtual timeline": "pieces",
    "operators of an untraced step found in the trace": "operators_found",
    "kernels and copies, by an untraced step's operators": "operators",
    "kernels, by CUDA's launch calls": "launch_calls",
}
DEVICE_FIELDS = ("kind", "name", "emulated", "overlap", "memory_bytes")
WORKLOAD_FIELDS = ("model", "mode", "precision", "emulated", "num_parameters", "optimizer")
TRAITS_FILE = Path(__file__).parent / "data" / "schema1" / "traits.json"
"""Traits of the loaders at the time of schema 1: its runs did not store them."""


@dataclass(frozen=True)
class _Traits:
    loaders: Mapping[str, LoaderTraits]


def case_from(value: JsonObject) -> Case:
    """A case of schema 1. Runs from before overlap and kernel traces existed had neither. Raises PlainError."""
    return Case.from_json({"overlap": False, "kernels": False, **value})


def _text(caveat: Mapping[str, Any]) -> Caveat:
    """A caveat that was stored as a sentence."""
    message = str(caveat["message"])
    if caveat["code"] in [row.code for row in CAVEATS]:
        return Caveat(caveat["code"], {"reason": message}, message=message)
    return Caveat("facts_missing", {"names": [message]}, message=message)


def _split(value: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields of these names, and all others under `details`."""
    known = {name: value[name] for name in names if name in value}
    return {**known, "details": {name: item for name, item in value.items() if name not in names}}


# -- the facts -------------------------------------------------------------------------------------------


def load_run(folder: Path) -> Run:
    """The run in `folder`, which was stored with schema 1.

    Raises:
        OSError, ValueError, KeyError, TypeError: its files are missing or damaged.
    """
    case = case_from(parsed(read_bytes(folder / "case.json")))
    record: dict[str, Any] = {}
    if (folder / "run.json").exists():
        record = parsed(read_bytes(folder / "run.json"))
    recording, series = None, []
    missing: list[str] = []
    if (folder / RECORDING_FILE).exists():
        stored = parsed(read_bytes(folder / RECORDING_FILE))
        with open_tables(folder / ARRAYS_FILE) as arrays:
            recording, missing = _recording(stored, case.feed.loader, arrays)
            series = [
                Series(**channel, t_ns=arrays[f"series{number}_t_ns"], value=arrays[f"series{number}_value"])
                for number, channel in enumerate(stored["series"])
            ]
    environment = record.get("environment")
    fraction, wall_s = record.get("sampling_cpu_fraction"), float(record.get("wall_s") or 0.0)
    if not record:
        missing += ["environment", "sampling cost", "the supervisor's caveats"]
    if any("measured_speedup" in advice for advice in (record.get("verdict") or {}).get("advice") or ()):
        missing.append("what --verify measured")
    caveats = [_text(one) for one in record.get("caveats") or () if one["code"] in FROM_SUPERVISOR]
    if missing:
        caveats.append(Caveat("facts_missing", {"names": [*missing]}))
    failure = record.get("failure")
    return Run(
        run_id=folder.name,
        case=case,
        status=record.get("status", "ok"),
        started_at=record.get("started_at", ""),
        wall_s=wall_s,
        environment=plain.from_json(Environment, environment) if environment else None,
        recording=recording,
        series=series,
        caveats=caveats,
        failure=None if failure is None else Failure(failure["kind"], failure["message"]),
        sampling_cpu_s=None if fraction is None else fraction * wall_s,
    )


def _recording(stored: Mapping[str, Any], loader: str, arrays: Mapping[str, Any]) -> tuple[Recording, list[str]]:
    """The recording, and the names of facts that its version did not keep."""
    facts = stored["facts"]
    segments = [_segment(number, value, arrays) for number, value in enumerate(stored["segments"])]
    caveats = [_text(one) for one in stored["caveats"]]
    caveats += [
        Caveat(code, {"reason": message}, message=message) for code, message in facts["cache"].get("caveats", ())
    ]
    if facts.get("no_kernels"):
        caveats.append(Caveat("kernel_gap_not_measured", {"why": "reason", "reason": facts["no_kernels"]}))
    optional = {
        "image_bytes": "bytes of the data set",
        "loop_overhead_s": "cost of the loop",
        "batch_bytes": "bytes of a batch",
        "peak_memory_bytes": "peak of the device's memory",
    }
    missing = [words for name, words in optional.items() if name not in facts]
    if facts["loader"].get("description") is None:
        missing.append("the loader's libraries")
    return Recording(segments, _facts(facts, loader), caveats), missing


def _facts(facts: Mapping[str, Any], name: str) -> Facts:
    device, cache, loader = facts["device"], facts["cache"], facts["loader"]
    ceiling, probe, ram = facts.get("ceiling"), facts.get("prep_probe"), facts.get("ram")
    traits = plain.from_json(_Traits, json.loads(TRAITS_FILE.read_bytes())).loaders
    build_s = {Arm(name.removeprefix("build_s_")): value for name, value in facts.items() if name.startswith("build_s")}
    return Facts(
        device=DeviceFacts(
            **_split(device, DEVICE_FIELDS),
            copies=device["kind"] != "cpu",
            on_host_cpus=device["kind"] == "cpu",
            has_counters=device["kind"] == "cuda",
        ),
        workload=plain.from_json(WorkloadFacts, _split(facts["workload"], WORKLOAD_FIELDS)),
        loader=LoaderFacts(
            loader["decodes"], loader["owns_transfer"], traits.get(name, LoaderTraits("threads")),
            loader.get("num_readers"), loader.get("description"), loader.get("no_stage_times"),
            {each: one for each, one in traits.items() if one.handover},
        ),
        cache=CacheFacts(**{name: value for name, value in cache.items() if name != "caveats"}),
        storage=StorageFacts(
            num_images=facts["num_images"],
            image_bytes=facts.get("image_bytes"),
            source=facts["storage_source"],
            reason=facts["storage_reason"],
            ram_copy=None if ram is None else plain.from_json(RamCopyFacts, {"memory_holds_all": None, **ram}),
            ceiling=None if ceiling is None else plain.from_json(CeilingProbe, ceiling),
        ),
        startup=StartupFacts(build_s),
        failures=FailureFacts(
            facts["num_failures"], tuple(ImageFailure(path, reason) for path, reason in facts["failures"])
        ),
        rounds=RoundFacts(tuple(Arm(name) for name in facts["arms"]), facts["num_rounds"], facts["stopped_by"]),
        copy=CopyFacts(facts.get("batch_bytes"), facts.get("pinned"), facts.get("link_bytes_per_s")),
        prep_probe=None if probe is None else plain.from_json(PrepProbe, probe),
        peak_memory_bytes=facts.get("peak_memory_bytes"),
        loop_overhead_s=facts.get("loop_overhead_s"),
        tracing_s=facts.get("tracing_s"),
    )  # fmt: skip


def _segment(number: int, value: Mapping[str, Any], arrays: Mapping[str, Any]) -> Segment:
    facts = value["facts"]
    stages = facts.get("stage_times")
    storage = None
    if "expected_bytes" in facts:
        storage = StorageWindow(
            facts["moved"], facts["expected_bytes"], facts.get("requested_bytes"), facts["residency_before"],
            facts["residency_after"],
        )  # fmt: skip
    return Segment(
        arm=Arm(value["arm"]),
        round=value["round"],
        num_warmup=value["num_warmup"],
        steady=value["steady"],
        steps=arrays[f"segment{number}_steps"],
        spans=arrays.get(f"segment{number}_spans"),
        phases=arrays.get(f"segment{number}_phases"),
        kernels=arrays.get(f"segment{number}_kernels"),
        opened_ns=facts["opened_ns"],
        closed_ns=facts["closed_ns"],
        wall_s=facts.get("wall_s"),
        first_batch_s=facts.get("first_batch_s"),
        num_drained=facts.get("num_drained"),
        consumer_cpu_s=facts.get("consumer_cpu_s"),
        stage_times=None if stages is None else {name: (times[0], times[1]) for name, times in stages.items()},
        clock_drift_ns=facts.get("clock_drift_ns"),
        first_batch=facts.get("first_batch", 0),
        held=HeldSteps(tuple(facts["held_busy_ns"]), tuple(facts["held_issue_ns"]))
        if facts.get("held_busy_ns")
        else None,
        storage=storage,
        trace=_trace(facts["trace"]) if "trace" in facts else None,
    )


def _trace(trace: Mapping[str, Any]) -> TraceFacts:
    witnesses = [
        plain.from_json(TraceWitness, {**witness, "name": WITNESSES[witness["name"]]}) for witness in trace["witnesses"]
    ]
    return TraceFacts(
        trace["source"], trace["clock"]["drift_ns"], trace["clock"]["uncertainty_ns"], trace["graph_launches"],
        tuple(witnesses),
    )  # fmt: skip


# -- studies ---------------------------------------------------------------------------------------------


def study_from(value: Mapping[str, Any]) -> StudyRecord:
    """A sweep of schema 1. It is judged again from its runs; its stored findings are dropped."""
    runs = tuple(value["runs"])
    return _study(value["study_id"], "sweep", value["started_at"], SweepFacts(len(runs)), runs)


def comparison_from(value: Mapping[str, Any]) -> StudyRecord:
    """A comparison of schema 1. It is judged again from its runs; its stored findings are dropped."""
    runs = tuple(run for pair in value["pairs"] for side in ("a", "b") for run in pair[side]["runs"])
    facts = CompareFacts(
        labels=value["labels"],
        num_cases=value["num_cases"],
        same_files=plain.from_json(SameFiles, value["same_files"]),
        notes=tuple(Reason("note", {"text": note}) for note in value["notes"]),
    )
    return _study(value["comparison_id"], "compare", value["started_at"], facts, runs)


def _study(study_id: str, kind: StudyKind, started_at: str, facts: StudyFacts, runs: tuple[str, ...]) -> StudyRecord:
    return StudyRecord(SCHEMA, RULES_VERSION, study_id, kind, started_at, facts, None, runs)


# -- a folder of results ---------------------------------------------------------------------------------


def convert_run(folder: Path, out: Path) -> None:
    """Raises as `load_run`, and NotStored."""
    run = load_run(folder)
    target = RunFolder(folder.name, out / folder.name, run.started_at)
    target.path.mkdir()
    target.write_case(run.case)
    target.write_record(judged(target.write_run(run)))


def convert_study(folder: Path, out: Path) -> None:
    """Its runs are converted before. Raises OSError, ValueError, KeyError, TypeError, LoaderbenchError."""
    is_comparison = (folder / COMPARISON_FILE).exists()
    stored = parsed(read_bytes(folder / (COMPARISON_FILE if is_comparison else STUDY_FILE)))
    study = comparison_from(stored) if is_comparison else study_from(stored)
    findings = findings_of(study, records_of(study, Store(out)))
    target = StudyFolder(folder.name, out / folder.name, study.started_at)
    target.write(replace(study, findings=as_stored(findings)))


def schema_of(folder: Path) -> int | None:
    """None where the folder tells none."""
    for name in (COMPARISON_FILE, STUDY_FILE, FACTS_FILE, RECORD_FILE):
        if (folder / name).exists():
            schema: int = parsed(read_bytes(folder / name))["schema"]
            return schema
    return OLD_SCHEMA if (folder / RECORDING_FILE).exists() else None


def convert(results: Path, out: Path) -> list[str]:
    """Convert all of `results` into the new folder `out`. Returns what could not be converted, a line each."""
    out.mkdir(parents=True)
    problems = []
    folders = [path for path in sorted(results.iterdir()) if path.is_dir()]
    for folder in sorted(folders, key=lambda path: any((path / name).exists() for name in STUDY_FILES)):
        try:
            if schema_of(folder) != OLD_SCHEMA:
                shutil.copytree(folder, out / folder.name, symlinks=True)
            elif any((folder / name).exists() for name in STUDY_FILES):
                convert_study(folder, out)
            else:
                convert_run(folder, out)
        except (OSError, ValueError, KeyError, TypeError, LoaderbenchError) as error:
            shutil.rmtree(out / folder.name, ignore_errors=True)
            problems.append(f"{folder.name}: {error!r}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("new_folder", type=Path)
    arguments = parser.parse_args()
    if not arguments.results.is_dir() or arguments.new_folder.exists():
        parser.error("RESULTS is a folder, and NEW_FOLDER none yet")
    problems = convert(arguments.results, arguments.new_folder)
    print(*(f"left out: {problem}" for problem in problems), sep="\n", end="\n" * bool(problems), file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
