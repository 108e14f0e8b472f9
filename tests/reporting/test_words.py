"""Words for every code: each is put into a sentence with the details that its makers give, and asks for no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest

import loaderbench
from loaderbench.analysis import advice as advising
from loaderbench.analysis.verdict import REMOVABLE
from loaderbench.cases.case import flags, loader_arguments
from loaderbench.plain import Json, type_hints
from loaderbench.recording.caveats import SEVERITIES, Caveat, Reason
from loaderbench.recording.facts import Percentiles, TraceWitness
from loaderbench.recording.record import (
    CAUSES,
    Advice,
    AdviceCode,
    Bottleneck,
    ContentionBy,
    ContentionFigures,
    Estimate,
    ReadFigures,
    SlowFile,
    Stalls,
    StorageFigures,
    Tail,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting import watched_words, words
from loaderbench.reporting.evidence import leading_evidence
from tests.made import make_estimate
from tests.reporting import example_records as examples

PACKAGE = Path(loaderbench.__file__).parent
Details = dict[str, Json]

REASONS: Mapping[str, Sequence[Details]] = {
    # analysis/record.py
    "served_by_page_cache": [
        {"moved_fraction": 0.4, "resident_before": 0.1},
        {"moved_fraction": None, "resident_before": 0.6},
    ],
    "read_as_fast_as_memory": [{"ratio": 2.4}],
    "device_not_stamped": [{"reason": None}, {"reason": "an error of CUDA"}],
    # analysis/verdict.py
    "witnesses_disagree": [{"by_arms": 0.4, "by_timeline": 0.1}],
    "arms_out_of_order": [{"faster": "ram", "faster_s": 0.01, "slower": "host", "slower_s": 0.02}],
    "too_few_steps": [{"steps": 6, "wanted": 30, "seconds": 41.2}],
    "gain_not_measured": [{"cause": "transfer", "most": 1.4}, {"cause": "transfer", "most": float("inf")}],
    "gain_uncertain": [{"cause": "prep", "low": 0.9, "high": 2.0}],
    "may_be_faster": [{"cause": "prep and storage", "high": 1.4}],
    "cannot_be_told_apart": [{"causes": ["prep", "storage"]}],
    "not_separated": [
        {"causes": ["storage", "prep"], "arms": ["ram", "fetch"]},
        {"causes": ["storage", "prep"], "arms": []},
    ],
    "threads_in_step": [{"part": 0.5, "most": 2.0}],
    "delays_disagree": [{"response": 0.1, "expected": [0.8, 1.0]}, {"response": 0.1, "expected": [1.0, 1.0]}],
    "feeding_uncertain": [{"low": 0.7, "high": 0.99}],
    "consumer_not_separated": [{}],
    "storage_was_idle": [{}],
    "none_alone": [{}],
    "stalls_missed": [{"part": 0.2, "seen": 0.0}],
    "nothing_read": [{"causes": ["storage", "prep"]}],
}
FAULTS: Mapping[str, Sequence[Details]] = {
    # analysis/kernels.py
    "no_complete_step": [{}],
    "steps_without_kernel": [{"num_steps": 20, "num": 3}],
    "steps_differ": [{"num_steps": 20, "num": 3, "allowed": 5.0, "median": 100.0, "least": 10, "most": 120}],
    "graphs_count_as_one": [{"median": 4.0, "graphs": 2.0}],
    "count_off": [
        {"witness": name, "counted": 90.0, "expected": 100.0, "at_least": at_least}
        for name in get_args(type_hints(TraceWitness)["name"])
        for at_least in (False, True)
    ],
    "clocks_do_not_fit": [{"fraction": 0.2}],
}
NOTES: Mapping[str, Sequence[Details]] = {
    # studies/compare.py; tests/convert_schema1.py for notes that were stored as sentences
    "as_is_for_cold": [{"path": "/mnt/nfs"}],
    "warm_too_large_for_max_bytes": [{"bytes": 2_000_000_000}],
    "warm_does_not_fit": [{"bytes": 2_000_000_000}],
    "note": [{"text": "warm is left out"}],
}
CAVEATS: Mapping[str, Sequence[Details]] = {
    # running/
    "eviction_failed": [{"fraction": 0.2}],
    "residency_unknown": [{"reason": "no mincore"}, {"reason": None}],
    "warm_not_locked": [{"reason": "RLIMIT_MEMLOCK is 8 MB"}],
    "warm_drifted": [{"fraction": 0.8}],
    "short_runs_not_measured": [{}],
    "link_not_measured": [{"reason": "out of memory"}],
    "kernel_gap_not_measured": [
        *({"why": why} for why in ("not_asked", "no_real_step", "measured_once", "max_bytes", "older_version")),
        {"why": "steps_too_long", "step_s": 12.0},
        {"why": "failed", "reason": "OSError: no"},
        {"why": "reason", "reason": "as it was stored"},
    ],
    # samplers/
    "sampler_failed": [{"channels": ["gpu_power_w"], "error": "OSError: gone"}],
    "watched_script": [{}],
    "watched_so_far": [{"seconds": 600.0}],
    "not_written_so_far": [{"reason": "no space left"}],
    "no_bursts": [{"reason": "it has no workers"}],
    "no_delays": [{"reason": "too few batches"}],
    "no_shadow": [{"reason": "its samples have no numbers"}],
    "shadow_differs": [{"shadow": 0.8, "spans": 0.1}],
    "spans_unknown": [{"reason": "its workers were not forked"}],
    "sampler_missing": [{"reason": "the run-queue delay is not counted"}],
    "nvml_device_order": [{"num_models": 2}],
    "nvml_field_missing": [{"reason": "gpu_power_w (NVML) is not supported"}],
    # analysis/
    "real_not_measured": [{}],
    "witnesses_disagree": REASONS["witnesses_disagree"],
    "trace_incomplete": [
        {"faults": [{"code": code, "details": details} for code, given in FAULTS.items() for details in given]}
    ],
    "trace_not_steady": [{"arms": ["traced", "untraced"]}],
    "loader_owns_transfer": [{}],
    "no_files": [{}],
    "arms_not_measured": [
        {"arms": ["ram"], "why": why} for why in ("not_asked", "measured_once", "not_allowed")
    ],
    "launch_not_measured": [{}],
    "no_transfer": [{"why": "took_no_time"}, {"why": "nothing_copied"}],
    "emulated_device": [{"name": "emulated H200"}],
    "issue_unknown": [{}],
    "busy_witnesses_disagree": [{"kernels": 0.5, "others": {"nvml": 0.9, "gpm": 0.8, "events_at_most": 0.4}}],
    "busy_not_cross_checked": [{}],
    "nvml_not_measured": [{}],
    "device_memory_not_measured": [{"kind": "cpu"}],
    "storage_bytes_unknown": [{"reason": "on overlay nothing counts"}, {"reason": None}],
    "cold_not_proven": [
        {"moved_fraction": 0.4, "resident_before": 0.1}, {"moved_fraction": None, "resident_before": 0.1},
    ],
    "cold_by_residency": [{"read_ratio": 18.0}],
    "disk_shared": [{"bytes": 2_000_000}],
    "reads_not_timed": [{}],
    "fetch_missed": [{}],
    "ceiling_not_measured": [
        {"why": "not_asked"}, {"why": "error", "reason": "EIO"}, {"why": "from_cache"},
        {"why": "ended", "stopped_by": "deadline"},
    ],
    "ceiling_still_rising": [{"readers": 32, "stopped_by": "max_readers"}],
    "ceiling_probe_limited": [{}],
    "max_bytes_reached": [{"max_bytes": 1000}],
    "ended_early": [{"rounds": 2}],
    "ram_subset": [{"num": 100, "of": 1000}],
    "buffer_not_full": [{}],
    "short_run": [{"steps": 12, "buffer_batches": 4}],
    "took_longer": [
        {"seconds": 52.2, "beyond": 37.2, "why": ["evicting takes about 33 s"]},
        {"seconds": 31.0, "beyond": 16.0, "why": []},
    ],
    "preparation_differs": [
        {"arm": "ram", "other": "real", "ratio": 1.18, "low": 1.16, "high": 1.2, "more_faults": 383.0},
        {"arm": "prep", "other": "free", "ratio": 0.9, "low": 0.88, "high": 0.92, "more_faults": -12.4},
    ],
    "queue_not_steady": [{"arms": ["ram", "real"]}],
    "ci_target_missed": [
        {"half_width": 0.1, "target": 0.03, "stopped_by": "duration"},
        {"half_width": None, "target": 0.03, "stopped_by": "duration"},
    ],
    "cpu_contention": [{"fraction": 0.2}],
    "contention_not_measured": [{}],
    "stages_not_measured": [{"reason": "its stages are C++"}, {"reason": None}],
    "worker_memory_not_measured": [{"reason": "its workers are threads"}, {"reason": None}],
    "cpu_not_measured": [{"names": ["busy_fraction", "workers_rss_bytes"]}],
    "overhead_not_measured": [{}],
    "first_batch_not_measured": [{}],
    "images_failed": [{"num": 3}],
    "activities_unusable": [{"num": 12}],
    "steps_not_annotated": [{"why": "no_step_ranges"}, {"why": "no_host_calls"}],
    # studies/, analysis/precision.py
    "fp32_not_measured": [{}],
    "fp32_repeat_not_measured": [{"reason": "out of memory"}],
    "memory_is_rss": [{}],
    "layers_do_not_sum": [{"ratio": 0.91, "low": 0.88, "high": 0.94}, {"ratio": 0.91, "low": None, "high": None}],
    "issuing_takes_longer": [{"ratio": 1.45}],
    "stopwatch_takes_time": [{"ratio": 1.08, "low": 1.06, "high": 1.11}],
    "layers_hold_gaps": [{"num": 12, "share": 0.31}],
    "process_memory_not_measured": [{"reason": "the driver does not tell"}],
    # recording/
    "facts_missing": [{"names": ["bytes of a batch"]}],
    "not_finite": [{"places": ["throughput.low"]}],
}  # fmt: skip
WATCHED_NOTES: Mapping[str, Sequence[Details]] = {
    "memory_grows": [{"of": "script", "bytes": 2e8, "batches": 1000}, {"of": "workers", "bytes": 2e8, "batches": 1000}],
    "in_turn": [{"workers": 4, "wait_s": 0.04}],
    "taking_over": [{"each_s": 0.03, "step_s": 0.04}],
    "of_a_thread": [{"thread": "Thread-1 (read)"}],
    "threads": [
        {"workers": 4, "each": 4, "own": 0, "cpus": 8, "starved": None},
        {"workers": 4, "each": 1, "own": 8, "cpus": 8, "starved": 0.3},
    ],
    "shared_memory": [{"size": 67108864, "free_bytes": 1000000}],
    "first_epoch": [{"first_s": 0.04, "later_s": 0.01}, {"first_s": 0.01, "later_s": 0.04}],
    "of_many_ranks": [{"rank": 1, "ranks": 4, "node": "node7"}],
}
WATCHED_ADVICE: Mapping[str, Sequence[tuple[Any, Details]]] = {
    "num_workers": [
        ({"workers": 8}, {"now": 2, "cpus": 16}), ({"workers": 2}, {"now": 8, "cpus": 2}),
        (None, {"now": 0, "cpus": 2}),
    ],
    "prefetch_factor": [({"prefetch": 8}, {"now": 2})],
    "persistent_workers": [
        ({"loader_options": {"persistent_workers": "True"}}, {"start_s": 0.4, "epoch_s": 9.0}),
    ],
    "keep_loader": [(None, {"start_s": 0.4, "epoch_s": 9.0})],
    "pin_memory": [({"loader_options": {"pin_memory": "True"}}, {})],
    "worker_threads": [(None, {"threads": 4, "workers": 2, "cpus": 2})],
    "cheaper_transform": [(None, {"name": "Resize", "part": 0.4})],
    "cheaper_collate": [(None, {"name": "pad", "part": 0.4})],
    "cheaper_samples": [(None, {"name": "Photos.__getitem__", "part": 0.4})],
    "cache_in_memory": [(None, {"bytes": 4e9, "available": 2e10})],
    "fewer_reads": [(None, {"bytes": 4e4}), (None, {})],
    "keep_memory": [(None, {"part": 0.3})],
}  # fmt: skip
ADVICE: Mapping[str, Sequence[tuple[Details | None, Details]]] = {
    # analysis/advice.py: code → (change, details)
    "faster_storage": [
        ({"cache": "warm"}, {}),
        (
            None,
            {
                "needs_bytes_per_s": 3e8,
                "gives_bytes_per_s": None,
                "gives_low": None,
                "gives_high": None,
                "readers": None,
                "still_rising": False,
            },
        ),
        (
            None,
            {
                "needs_bytes_per_s": 3e8,
                "gives_bytes_per_s": 1e8,
                "gives_low": 9e7,
                "gives_high": 1.1e8,
                "readers": 32,
                "still_rising": True,
            },
        ),
    ],
    "data_in_memory": [
        (
            {"cache": "warm"},
            {
                "needs_bytes_per_s": 1e8,
                "gives_bytes_per_s": 2e9,
                "gives_low": 1.9e9,
                "gives_high": 2.1e9,
                "readers": 4,
                "still_rising": False,
                "kind": None,
            },
        ),
        *[
            ({"cache": "warm"} if in_memory else None, {"kind": kind})
            for kind in ("stalls", "tail")
            for in_memory in (0, 1)
        ],
    ],
    "more_files_at_once": [({"loader": "multiprocess", "workers": 32}, {})],
    "more_prefetch": [({"prefetch": 8}, {"now": 2})],
    "fewer_opens": [(None, {})],
    "slow_files_elsewhere": [
        (None, {"folder": "n01", "files": ["n01/1.jpg"]}),
        (None, {"folder": None, "files": ["a"]}),
    ],
    "parallel_loader": [(None, {"workers": 8}), ({"loader": "multiprocess", "workers": 8}, {})],
    "more_workers": [(None, {"workers": 8, "now": 2}), ({"workers": 8}, {"now": 2})],
    "decode_in_threads": [({"loader": "threaded", "decoder": "turbojpeg", "output": "uint8", "workers": 8}, {})],
    "more_threads": [({"workers": 8}, {})],
    "other_decoder": [({"decoder": "turbojpeg", "decoder_options": {}, "decode_scale": None}, {})],
    "direct_samples": [({"loader_options": {"samples": "direct"}}, {})],
    "scaled_decode": [
        (
            {"decoder": "libjpeg", "decode_scale": "auto"},
            {"mean": 0.84, "most": 2.8, "scaled_fraction": 0.9, "num_samples": 19},
        ),
    ],
    "uint8_for_prep": [({"output": "uint8"}, {})],
    "smaller_images": [(None, {"resolution": 256})],
    "free_processors": [(None, {})],
    "fewer_workers": [({"workers": 2}, {"now": 8, "cpus": 2})],
    "fewer_threads": [(None, {"cpus": 2})],
    "stop_neighbours": [(None, {"cores": 1.04, "cpus": 2})],
    "raise_quota": [(None, {"quota": 0.7, "cpus": 2})],
    "less_steal": [(None, {"cores": 0.5, "cpus": 2})],
    "uint8_for_transfer": [({"output": "uint8"}, {})],
    "pinned_memory": [(None, {})],
    "larger_batch": [({"batch_size": 128}, {"now": 64})],
    "fewer_launches": [(None, {})],
    "prep_and_memory": [
        ({"decoder": "turbojpeg", "cache": "warm"}, {"of": "other_decoder"}),
        (
            {"decode_scale": "auto", "cache": "warm"},
            {"of": "scaled_decode", "mean": 0.84, "most": 2.8, "scaled_fraction": 0.9, "num_samples": 19},
        ),
    ],
    **WATCHED_ADVICE,
}


class Asked(Mapping[str, Json]):
    """Details that refuse a name which their maker does not give."""

    def __init__(self, details: Mapping[str, Json]) -> None:
        self._details = {
            name: [Asked.deep(item) for item in value] if isinstance(value, list) else value
            for name, value in details.items()
        }

    @staticmethod
    def deep(item: Json) -> Any:
        return {**item, "details": Asked(item["details"])} if isinstance(item, dict) and "details" in item else item

    def __getitem__(self, name: str) -> Json:
        assert name in self._details, f"the words ask for '{name}', which nobody gives"
        return cast(Json, self._details[name])

    def __contains__(self, name: object) -> bool:
        return name in self._details

    def __iter__(self) -> Iterator[str]:
        return iter(self._details)

    def __len__(self) -> int:
        return len(self._details)


def is_a_sentence(text: str) -> bool:
    return len(text) > 10 and "None" not in text and "nan" not in text and "inf×" not in text and "{" not in text


@pytest.mark.parametrize(
    ("known", "given"),
    [
        (words.REASONS, REASONS), (words.FAULTS, FAULTS), (words.NOTES, NOTES), (words.CAVEATS, CAVEATS),
        (watched_words.NOTES, WATCHED_NOTES),
        (SEVERITIES, CAVEATS), (words.ACTIONS, ADVICE), (dict.fromkeys(get_args(AdviceCode)), ADVICE),
    ],
)  # fmt: skip
def test_each_code_has_words_and_each_words_a_maker(
    known: Mapping[str, object], given: Mapping[str, Sequence[object]]
) -> None:
    assert set(known) == set(given)


@pytest.mark.parametrize(("code", "details"), [(code, one) for code, given in CAVEATS.items() for one in given])
def test_a_caveat_s_words_hold_what_its_maker_gives(code: str, details: Details) -> None:
    told = words.worded_caveat(Caveat(code, Asked(details)))
    assert is_a_sentence(told.message)
    assert words.sentence(told) == words.sentence(Caveat(code, details))
    assert words.sentence(told).startswith(f"{code}: {told.message}")
    assert told.hint in words.sentence(told)


def test_a_hint_says_what_to_do() -> None:
    assert set(words.HINTS) <= set(SEVERITIES)
    order = words.sentence(Caveat("nvml_device_order", {"num_models": 2}))
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in order


@pytest.mark.parametrize(
    ("table", "code", "details"),
    [
        (table, code, details)
        for table, makers in (
            (words.REASONS, REASONS),
            (words.FAULTS, FAULTS),
            (words.NOTES, NOTES),
            (watched_words.NOTES, WATCHED_NOTES),
        )
        for code, given in makers.items()
        for details in given
    ],
)
def test_a_reason_s_words_hold_what_its_maker_gives(table: Mapping[str, Any], code: str, details: Details) -> None:
    assert is_a_sentence(table[code](Asked(details)))


def test_all_figures_of_a_caveat_are_in_its_words() -> None:
    faults = words.sentence(Caveat("trace_incomplete", CAVEATS["trace_incomplete"][0]))
    assert all(words.FAULTS[code](details) in faults for code, given in FAULTS.items() for details in given)
    others = words.sentence(Caveat("busy_witnesses_disagree", CAVEATS["busy_witnesses_disagree"][0]))
    assert "nvml 90.0%, gpm 80.0%, events at most 40.0%" in others


@pytest.mark.parametrize(
    ("code", "change", "details"),
    [(code, change, details) for code, given in ADVICE.items() for change, details in given],
)
def test_what_to_do_holds_what_its_maker_gives(code: AdviceCode, change: Any, details: Details) -> None:
    text = words.action(Advice(code, "prep", change, details=Asked(details)), examples.measured())
    assert is_a_sentence(text)
    if code in WATCHED_ADVICE:
        assert loader_arguments(change or {}) in text
        return
    for name, value in (change or {}).items():
        assert flags({name: value}) in text


def test_two_changes_at_once_are_said_with_the_figures_of_each() -> None:
    class Predictor:
        memory_helps = True

        def predict(self, change: object) -> object:
            return examples.estimate(2.0)

    alone = advising.Action("prep", "more_workers", {"workers": 8}, examples.estimate(1.5), {"now": 2})
    (both,) = advising._together(cast(advising.Predictor, Predictor()), [alone])
    text = words.action(Advice(both.code, both.cause, both.change, details=both.details or {}), examples.measured())
    assert text == (
        "do both: add workers: --workers 8 (now 2; more gives < 3 %), and keep the data in memory: --cache warm"
    )


def test_every_witness_of_a_trace_and_every_cause_has_a_name() -> None:
    assert set(words.WITNESSES) == set(get_args(type_hints(TraceWitness)["name"]))
    assert set(words.NAMES) == {*CAUSES, *REMOVABLE}
    assert {*words.NAMES, "mixed", "undetermined"} == set(get_args(Bottleneck))


@pytest.mark.parametrize(
    ("storage", "prep", "joint", "said", "brief"),
    [
        (1.37, 1.37, 1.38, "storage or CPU preparation", "either storage or CPU preparation"),
        (1.37, 1.37, 1.38, "limits this run. Without either, it would be 1.37× faster; without both, no", "either"),
        (1.30, 1.40, 1.90, "each limit this run. Without one of them, it would be 1.30 to 1.40× faster; without both,",
         "storage and CPU preparation (decode, augment, collate), each in part, 1.9×"),
        (1.05, 1.02, 1.37,
         "limit this run together. Without both, it would be 1.37× faster; without one of them, at most 1.05×",
         "storage and CPU preparation (decode, augment, collate) together, 1.4×"),
        (None, 1.20, 1.37, "limit this run together. Without both, it would be 1.37× faster.", ") together, 1.4×"),
    ],
)  # fmt: skip
def test_several_causes_are_said_as_they_were_measured_in_brief_too(
    storage: float | None, prep: float, joint: float, said: str, brief: str
) -> None:
    record = examples.measured(bottleneck="mixed")
    gains = {"storage": storage, "prep": prep}
    alone = {
        cause: None if gain is None else replace(examples.estimate(gain), low=None) for cause, gain in gains.items()
    }
    verdict = replace(
        examples.verdict_of(record), reasons=(), joint=("storage", "prep"), speedup_if_removed=alone,
        joint_speedup=replace(examples.estimate(joint), low=None),
    )  # fmt: skip
    assert said in words.summary(replace(record, verdict=verdict))
    assert brief in words.in_brief(verdict)
    apart = replace(verdict, reasons=(Reason("not_separated", {"causes": ["storage", "prep"], "arms": ["ram"]}),))
    assert "or CPU preparation (decode, augment, collate), or several of them, 1." in words.in_brief(apart)


def test_a_single_cause_whose_own_gain_is_not_known_yet_is_said_alone() -> None:
    record = examples.measured(bottleneck="prep")
    verdict = replace(
        examples.verdict_of(record), joint=("prep",), speedup_if_removed={}, joint_speedup=examples.estimate(3.1),
        reasons=(Reason("not_separated", {"causes": ["prep"], "arms": ["fetch"]}),),
    )  # fmt: skip
    assert words.in_brief(verdict).startswith("CPU preparation (decode, augment, collate), 3.1")


# -- the makers --------------------------------------------------------------------------------------------


def made_in_the_package() -> list[tuple[str, str, str, set[str] | None]]:
    """(place, `Caveat` or `Reason`, code, the names of its details) of each that is made under its own code; None
    where the details are not written out there."""
    made = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
                continue
            code = node.args[0]
            if node.func.id not in ("Caveat", "Reason") or not isinstance(code, ast.Constant):
                continue
            names: set[str] | None = set()
            if len(node.args) > 1:
                given = node.args[1]
                whole = isinstance(given, ast.Dict) and all(key is not None for key in given.keys)
                names = {cast(ast.Constant, key).value for key in given.keys} if whole else None  # type: ignore[attr-defined]
            made.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", node.func.id, code.value, names))
    return made


def test_the_details_above_are_those_that_the_makers_give() -> None:
    made = made_in_the_package()
    assert len(made) > 50
    for place, kind, code, names in made:
        reasons = {**NOTES, **FAULTS, **REASONS, **WATCHED_NOTES}
        given = CAVEATS.get(code, ()) if kind == "Caveat" else reasons.get(code, ())
        assert given, f"{place} makes '{code}', which is not known here"
        if names is not None:
            assert names in [set(details) for details in given], f"{place} gives '{code}' other details: {names}"


def evidence_of(storage: StorageFigures, gain: float) -> str:
    record = examples.measured()
    assert record.verdict is not None
    gains = {**record.verdict.speedup_if_removed, "storage": make_estimate(gain, unit="ratio")}
    verdict = replace(record.verdict, speedup_if_removed=gains, joint=())
    return "\n".join(words.evidence(replace(record, storage=storage, verdict=verdict)))


def test_stalls_slow_files_and_slow_opens_are_said_where_the_storage_matters() -> None:
    plain = examples.storage_of(examples.measured())
    stands = replace(plain, kind="stalls", stalls=Stalls(4, 0.8, 2.7, True, 0.3), fetch_saw=False)
    said = evidence_of(stands, 1.4)
    assert "stalls for 800 ms every 2.70 s, which is 30% of the time (4 times in the windows of `real`)" in said
    assert "`fetch` saw too few" in said
    assert "stalls" not in evidence_of(stands, 1.0)
    one = SlowFile("n01/7.jpg", 0.4, 3)
    few = replace(plain, kind="tail", tail=Tail(0.7, 0.402, 0.0005, True, (one,), "n01", 0.9))
    said = evidence_of(few, 2.1)
    assert "the slowest 1 % of the reads take 70% of the read time, 402 ms each (a typical read takes 0.5 ms)" in said
    assert "90% of them are in n01; the same files are slow each time, such as n01/7.jpg" in said
    assert few.tail is not None
    assert "different files are slow each time" in evidence_of(
        replace(few, tail=replace(few.tail, same_files=False)), 2.1
    )
    assert "too few files were read twice" in evidence_of(replace(few, tail=replace(few.tail, same_files=None)), 2.1)
    times = Percentiles(0.007, 0.008, 0.009)
    late = replace(plain, kind="latency", latency_of="open", reads=ReadFigures(100, 0.007, 0.0005, times, times, 0.1))
    assert "reading a file takes 7.5 ms, and opening it is 7 ms of that: latency" in evidence_of(late, 1.5)


STALLS = {"kind": "stalls", "stalls": Stalls(4, 0.8, 2.7, True, 0.3)}
TAIL = {"kind": "tail", "tail": Tail(0.7, 0.402, 0.0005, True, (SlowFile("n01/7.jpg", 0.4, 3),))}
OPENS = {
    "kind": "latency", "latency_of": "open",
    "reads": ReadFigures(100, 0.007, 0.0005, Percentiles(0.007, 0.008, 0.009), Percentiles(0.1, 0.1, 0.1), 0.1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "said", "leading"),
    [
        (STALLS, "it stalls for 800 ms every 2.70 s", "the whole storage stalls"),
        (
            TAIL,
            "a few files are slow (the slowest 1 % take 402 ms each)",
            "the same files are slow each time, such as n01/7",
        ),
        (OPENS, "reading a file takes 7.5 ms, and opening it is 7 ms of that", "opening it is 7 ms"),
        ({"kind": "latency", "latency_of": "read"}, "each file has a high latency", None),
        ({"kind": "bandwidth"}, "its bandwidth is too low", None),
        ({"kind": None}, None, None),
    ],
)
def test_a_summary_and_a_screen_tell_what_makes_the_storage_slow(
    seen: dict[str, Any], said: str | None, leading: str | None
) -> None:
    record = examples.measured(bottleneck="storage")
    verdict = replace(
        examples.verdict_of(record), reasons=(), joint=(),
        speedup_if_removed={"storage": Estimate(1.14, 1.05, 1.2, "ratio", 9, "made up")},
    )  # fmt: skip
    record = replace(record, verdict=verdict, storage=replace(examples.storage_of(record), **seen))

    kind = "" if said is None else f": {said}"
    gain = "Without it, the run would be 1.14× faster (1.05 – 1.20)."
    assert words.summary(record) == f"Storage limits this run{kind}. {gain}"
    assert (leading or "") in leading_evidence(record)[0]
    prep = replace(record, verdict=replace(verdict, bottleneck="prep"))
    assert leading is None or leading not in "".join(leading_evidence(prep))
    either = replace(record, verdict=replace(verdict, bottleneck="mixed", joint=("storage", "prep")))
    assert (leading or "") in leading_evidence(either)[0]


def test_a_reason_s_words_hold_in_a_summary() -> None:
    record = examples.measured(bottleneck="undetermined")
    verdict = examples.verdict_of(record)
    reasons = (
        Reason("too_few_steps", REASONS["too_few_steps"][0]),
        Reason("witnesses_disagree", REASONS["witnesses_disagree"][0]),
    )
    told = words.worded(replace(record, verdict=replace(verdict, reasons=reasons)))
    assert examples.verdict_of(told).summary == (
        "Undetermined: the run is too short: `real` has only 6 steps. Use --steps 30 without --duration (measuring "
        "takes about 41 s). Two measurements of the data wait disagree: 40% of a step by comparing the arms, 10% by "
        "the timeline."
    )


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (
            "workers",
            "4 workers share 2 CPUs with the consumer of their batches. If the consumer had its own CPUs",
        ),
        ("own threads", "the model and the loader share 2 CPUs. If each had its own CPUs"),
        ("neighbours", "other processes use 1.02 of 2 CPUs. Without them"),
        ("quota", "a CPU quota allows 0.7 of 2 CPUs. Without the quota"),
        ("steal", "the hypervisor gives 0.40 of 2 CPUs to other guests. Without that"),
    ],
)
def test_contention_is_told_with_who_has_the_processors(by: ContentionBy, told: str) -> None:
    record = examples.measured(bottleneck="mixed")
    seen = ContentionFigures(by, 0.9, 0.8, 1.02, 0.4, 2, 0.7, throttled=True, others_fraction=1.0)
    verdict = replace(
        examples.verdict_of(record), bottleneck="contention", reasons=(),
        speedup_if_removed={"contention": Estimate(1.86, 1.7, 2.0, "ratio", 9, "made up")},
    )  # fmt: skip
    case = record.case.changed(workers=4)

    summary = words.summary(replace(record, verdict=verdict, contention=seen, case=case))

    assert summary.startswith(f"CPU contention limits this run: {told}, the run would be 1.86× faster")

    waits = "some task waits for a CPU 97% of the time (PSI)"
    assert waits not in "\n".join(words.evidence(replace(record, verdict=verdict, contention=seen)))
    held_up = replace(seen, pressure_fraction=0.97)
    assert waits in "\n".join(words.evidence(replace(record, verdict=verdict, contention=held_up)))


@pytest.mark.parametrize(
    ("gains", "beyond"),
    [
        ({"prep": 4.3}, " CPU preparation (decode, augment, collate): without both, it would be 4.30× faster"),
        ({"prep": 1.95}, ""),  # no more than contention alone
        ({"prep": 1.95, "transfer": 1.3}, " the copy to the device: without that cause alone, it would be 1.30×"),
        ({"storage": 1.05, "compute": 3.0}, ""),
        ({"storage": None}, ""),
    ],
)  # fmt: skip
def test_behind_contention_comes_what_is_worth_it_beyond(gains: dict[str, float | None], beyond: str) -> None:
    record = examples.measured(bottleneck="mixed")
    seen = ContentionFigures("neighbours", 0.9, 0.8, 0.92, 0.0, 2, None, throttled=False, others_fraction=1.0)
    known = {"contention": 1.86, **gains}
    verdict = replace(
        examples.verdict_of(record), bottleneck="contention", reasons=(), joint=(),
        speedup_if_removed={
            cause: None if gain is None else Estimate(gain, 0.95 * gain, 1.05 * gain, "ratio", 9, "made up")
            for cause, gain in known.items()
        },
    )  # fmt: skip
    said = words.summary(replace(record, verdict=verdict, contention=seen))
    assert said.startswith("CPU contention limits this run: other processes use 0.92 of 2 CPUs. Without them, ")
    assert beyond in said and ("Next comes" in said) == bool(beyond)


def test_an_end_that_is_not_bounded_is_said_in_words() -> None:
    rate = replace(examples.estimate(708.0, unit="samples/s"), low=275.0, high=None)
    gain = replace(examples.estimate(2.82), low=1.0, high=None)
    old = replace(rate, high=708_331.0)  # of a record made before such ends were null
    assert [fmt.plus_minus(one) for one in (rate, old)] == ["708 (275 – not bounded)"] * 2
    assert fmt.plus_minus_percent(rate) == "708 (≥ 275)"
    wide = replace(rate, high=1_500.0)
    assert fmt.plus_minus(wide) == "708 (275 – 1,500)" and fmt.plus_minus_percent(wide) == "708 (275–1,500)"
    assert fmt.speedup(gain) == fmt.ratio(gain) == "2.82× (1.00–not bounded)"
