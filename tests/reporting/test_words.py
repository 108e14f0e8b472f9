"""The sentences of a verdict: what limits a run, and what supports that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast, get_args

import pytest

from loaderbench.analysis import advice as advising
from loaderbench.analysis.verdict import REMOVABLE
from loaderbench.findings.table import FINDINGS
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import Percentiles
from loaderbench.recording.record import (
    CAUSES,
    Advice,
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
from loaderbench.reporting import words
from loaderbench.reporting.evidence import leading_evidence
from tests.made import make_estimate
from tests.reporting import example_records as examples


def test_two_changes_at_once_are_said_with_the_figures_of_each() -> None:
    class Predictions:
        memory_helps = True

        def predict(self, change: object) -> object:
            return examples.estimate(2.0)

    alone = advising.Action("prep", "more_workers", {"workers": 8}, examples.estimate(1.5), {"now": 2})
    (both,) = advising._together(cast(advising.Predictions, Predictions()), [alone])
    text = words.action(Advice(both.code, both.cause, both.change, details=both.details or {}), examples.measured())
    assert text == (
        "do both: add workers: --workers 8 (now 2; more gives < 3 %), and keep the data in memory: --cache warm"
    )


def test_every_cause_has_a_name() -> None:
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
        Reason("too_few_steps", FINDINGS["too_few_steps"].examples[0]),
        Reason("witnesses_disagree", FINDINGS["witnesses_disagree"].examples[0]),
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
