"""How figures, names and settings of runs are worded, on every kind of output."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, get_args

from loaderbench.analysis.statistics import SCALES, UNBOUNDED
from loaderbench.cases.case import Case
from loaderbench.cases.inputs import words_of
from loaderbench.findings.figures import is_wide
from loaderbench.findings.row import Severity
from loaderbench.printable import clean as clean
from loaderbench.printable import memory_size
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.lines import RunLine
from loaderbench.recording.record import Advice, Estimate, Range, RunRecord
from loaderbench.reporting import words

if TYPE_CHECKING:
    from loaderbench.recording.model_memory import OfModel

NOT_MEASURED = "not measured"
MISSING = "–"

T = TypeVar("T")


class OfImages(Protocol):
    """What takes square images, or other inputs."""

    @property
    def channels(self) -> int: ...
    @property
    def input_size(self) -> int | None: ...
    @property
    def inputs(self) -> str | None: ...


class OfCase(Protocol):
    """Anything that belongs to one case: a record, a row, a knee."""

    @property
    def case(self) -> Case: ...


CaseT = TypeVar("CaseT", bound=OfCase)


# -- text from outside -----------------------------------------------------------------------------------


def cleaned(value: T) -> T:
    """A dataclass, or a plain value, with every text in it cleaned.

    Code that shows a record, a study or a comparison calls this first, so that no unclean text can reach the output.
    """
    return cast(T, _cleaned(value))


def _cleaned(value: object) -> object:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_cleaned, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        given: dict[str, Any] = {name: _cleaned(getattr(value, name)) for name in fields}
        return dataclasses.replace(value, **given)
    return value


# -- figures ---------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    """Rounded to `digits` significant digits, never more than whole units: 15,713 · 104 · 61.2 · 0.0081."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def day(moment: str) -> str:
    """`24 November 2026` of a time by ISO 8601; the text itself where it is none."""
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{found.day} {MONTHS[found.month - 1]} {found.year}"


def span(begin: str, end: str) -> str:
    """`24 November 2026, 02:40 to 02:42 UTC`; both days where they differ."""
    try:
        first, last = (datetime.fromisoformat(one).astimezone(UTC) for one in (begin, end))
    except ValueError:
        return begin
    from_, to = (f"{one:%H:%M}" for one in (first, last))
    if first.date() != last.date():
        return f"{day(first.isoformat())} to {day(last.isoformat())}"
    return f"{day(first.isoformat())}, {from_}{'' if to == from_ else f' to {to}'} UTC"


def duration(seconds: float | None) -> str:
    """1.84 s · 104 ms · 110 µs"""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= scale:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds / 1e-6 if abs(seconds) >= 1e-10 else 0.0)} µs"


def size(num_bytes: float | None, per: str = "") -> str:
    """Decimal units: 2.90 GB"""
    if num_bytes is None or not math.isfinite(num_bytes):
        return MISSING
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(num_bytes) >= scale:
            return f"{number(num_bytes / scale)} {unit}{per}"
    return f"{num_bytes:.0f} B{per}"


def memory(num_bytes: float | None) -> str:
    """Binary units, as memory is sold: 97.5 MiB"""
    return MISSING if num_bytes is None or not math.isfinite(num_bytes) else memory_size(num_bytes)


def percent(fraction: float | None, sign: str = " %", decimals: int = 0) -> str:
    """31 %"""
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    text = f"{fraction * 100:.{decimals}f}"
    return (text.removeprefix("-") if float(text) == 0 else text) + sign


def value_of(estimate: Estimate | None) -> float | None:
    """An estimate's value, None where it was not measured."""
    return None if estimate is None else estimate.value


def is_unbounded(estimate: Estimate) -> bool:
    """Whether the interval has a low end, and no upper one that says anything; older records have one of up to 1,000
    times the value."""
    if estimate.low is None:
        return False
    return estimate.high is None or (estimate.unit in SCALES and estimate.high > UNBOUNDED * estimate.value)


def plus_minus(estimate: Estimate | None) -> str:
    """914 ± 18; both ends where the interval is wider than the value"""
    if estimate is None:
        return NOT_MEASURED
    if is_unbounded(estimate):
        return f"{number(estimate.value)} ({number(estimate.low)} – {words.NOT_BOUNDED})"
    width = estimate.half_width
    if width is not None and width < 1e-6 * abs(estimate.value):
        width = 0.0  # rounding of the arithmetic, not spread
    if width is not None and width > abs(estimate.value):
        return f"{number(estimate.value)} ({number(estimate.low)} – {number(estimate.high)})"
    return number(estimate.value) + ("" if width is None else f" ± {number(width, 2)}")


def plus_minus_percent(estimate: Estimate | None) -> str:
    """914 ±2%, for narrow columns; both ends where the interval is wider than the value"""
    if estimate is None:
        return MISSING
    if is_unbounded(estimate):
        return f"{number(estimate.value)} (≥ {number(estimate.low)})"
    width = estimate.half_width
    if width is None or not estimate.value:
        return number(estimate.value)
    percents = width / estimate.value * 100
    if percents > 100:
        return f"{number(estimate.value)} ({number(estimate.low)}–{number(estimate.high)})"
    return f"{number(estimate.value)} ±{percents:.0f}%"


def percent_interval(estimate: Estimate | None) -> str:
    """38.9–41.2, empty where there is no interval"""
    if estimate is None or estimate.half_width is None:
        return ""
    return f"{percent(estimate.low, '', 1)}–{percent(estimate.high, '', 1)}"


def speedup(estimate: Estimate | None) -> str:
    """1.60× (1.44–1.76)"""
    if estimate is None:
        return NOT_MEASURED
    if is_unbounded(estimate):
        return f"{estimate.value:.2f}× ({estimate.low:.2f}–{words.NOT_BOUNDED})"
    spread = "" if estimate.half_width is None else f" ({estimate.low:.2f}–{estimate.high:.2f})"
    return f"{estimate.value:.2f}×{spread}"


def with_interval(one: Estimate | Range, show: Callable[[float], str], to: str = "–") -> str:
    """1.84 s (1.70 s–1.98 s); the value alone where it has no interval."""
    if one.low is None or one.high is None:
        return show(one.value)
    return f"{show(one.value)} ({show(one.low)}{to}{show(one.high)})"


def ratio(estimate: Estimate | None) -> str:
    """`1.60× (1.44–1.76)` for a table."""
    return MISSING if estimate is None else speedup(estimate)


# -- runs ------------------------------------------------------------------------------------------------


def bytes_rate(rate: Estimate | Range) -> str:
    """`23.0 MB/s`, with its interval where that is wide: `23.0 MB/s (20.0 MB/s – 26.0 MB/s)`."""
    wide = rate.low is not None and rate.high is not None and is_wide(rate.value, rate.low, rate.high)
    return with_interval(rate if wide else Range(rate.value, None, None), lambda value: size(value, "/s"), " – ")


def prep_share(record: RunRecord) -> float | None:
    """Preparation and contention together, as the verdict counts them."""
    prep = record.share("prep")
    return None if prep is None else prep + (record.share("contention") or 0.0)


def outcome(record: RunRecord | RunLine) -> str:
    """One or two words: the bottleneck, or how the run ended."""
    if record.status != "ok":
        return record.status
    return MISSING if record.verdict is None else record.verdict.bottleneck


def sentence(record: RunRecord) -> str:
    """The verdict in a sentence, or why there is none."""
    if record.status != "ok":
        reason = record.failure.message if record.failure else "no reason was recorded"
        return clean(reason if record.verdict is None else f"{reason}; until then: {record.verdict.summary}")
    return clean(record.verdict.summary if record.verdict else "no verdict: the arms for it were not run")


def headline(record: RunRecord) -> tuple[str, str]:
    """(`prep: `, the sentence); the first is empty where the sentence itself begins with that word."""
    word, text = outcome(record), sentence(record)
    return ("" if text.lower().startswith(word) else f"{word}: "), text


def advice(one: Advice) -> str:
    """What to do, with what it is predicted to give, or at most can."""
    if one.predicted_speedup is not None:
        return clean(f"{one.action} – predicted: {speedup(one.predicted_speedup)}")
    return clean(one.action + ("" if one.at_most is None else f" – at most {one.at_most.value:.2f}×"))


def device_name(record: RunRecord) -> str:
    """The device's own name, else the one that was asked for."""
    return clean(record.device.name if record.device and record.device.name else record.case.step.device)


# -- cases -----------------------------------------------------------------------------------------------


def resolution(case: Case) -> str:
    """The stored resolution; `stored` for a tree without variants."""
    return str(case.subject.resolution or "stored")


def workload(case: Case) -> str:
    """resnet50 training"""
    return clean(f"{case.step.model} {'training' if case.step.mode == 'train' else 'inference'}")


def loader_name(case: Case) -> str:
    """multiprocess 8w"""
    return clean(f"{case.feed.loader} {case.feed.workers}w" if case.feed.workers else case.feed.loader)


def of_model(found: OfModel) -> list[str]:
    """resnet50, train, amp-bf16, sgd, 3×224×224"""
    optimizer = [] if found.optimizer is None else [found.optimizer]
    return [found.model, found.mode, found.precision, *optimizer, image_shape(found)]


def image_shape(of: OfImages) -> str:
    """3×224×224"""
    if of.inputs is not None:
        return words_of(of.inputs)
    return f"{of.channels}×{of.input_size}×{of.input_size}"


def by_resolution(items: Iterable[CaseT]) -> list[tuple[str, list[CaseT]]]:
    """Records or rows grouped by stored resolution, small ones first; the order within a group is kept."""
    groups: dict[int, list[CaseT]] = {}
    for item in items:
        groups.setdefault(item.case.subject.resolution or 0, []).append(item)
    return [(resolution(group[0].case), group) for _, group in sorted(groups.items())]


@dataclass(frozen=True)
class _Setting:
    """A field of a case, and how its value is shown."""

    pattern: str
    of: Callable[[Case], object]

    def shown(self, case: Case) -> str:
        """The value in words; empty where there is nothing to show."""
        value = self.of(case)
        if value is None:
            value = "full" if self.pattern.startswith("input") else ""
        if isinstance(value, Mapping):
            value = " ".join(f"{key}={item}" for key, item in value.items())
        return clean(self.pattern.format(value)) if value != "" else ""

    def varies(self, cases: Sequence[Case]) -> bool:
        return any(self.of(case) != self.of(cases[0]) for case in cases)

    def follows_loader(self, cases: Sequence[Case]) -> bool:
        """Whether each loader has a single value of this setting."""
        pairs = {(case.feed.loader, self.of(case)) for case in cases}
        return len(pairs) == len({loader for loader, _ in pairs})


def _known(text: str) -> str:
    """Nothing of what a watched script does not tell."""
    return "" if text == "unknown" else text


_DEVICE = _Setting("{}", lambda case: case.step.device)
_DECODER = _Setting("{}", lambda case: case.feed.decoder)
_OUTPUT = _Setting("{}", lambda case: case.feed.output)
_PREFETCH = _Setting("prefetch {}", lambda case: case.feed.prefetch)
_DECODE_SCALE = _Setting("decode scale {}", lambda case: case.feed.decode_scale)
_COMMON = (
    _Setting("{}", lambda case: case.subject.dataset_name),
    _Setting("{}", lambda case: case.step.model),
    _Setting("{}", lambda case: _known(case.step.mode)),
    _Setting("{}", lambda case: _known(case.step.precision)),
    _Setting("input {}", lambda case: case.step.input_size if _known(case.step.mode) else ""),
    _Setting("batch {}", lambda case: case.step.batch_size),
    _Setting("cache {}", lambda case: case.subject.cache),
    _DECODER,
)
_QUIET = (
    _DEVICE,
    _PREFETCH,
    _Setting("buffer {} of the run", lambda case: case.feed.buffer_ratio),
    _DECODE_SCALE,
    _OUTPUT,
    _Setting("{}", lambda case: case.feed.loader_options),
    _Setting("{}", lambda case: case.feed.decoder_options),
    _Setting("loss scale {}", lambda case: case.step.loss_scale),
    _Setting("seed {}", lambda case: case.effort.seed),
    _Setting("repeat {}", lambda case: case.effort.repeat),
)
"""Shown only where the runs differ in them."""
_FOLLOWING = ((_DECODER, "decoders"), (_OUTPUT, "outputs"), (_DECODE_SCALE, "decode scale"))
"""Settings whose default depends on the loader: if each loader has a single value, it is shown once, not per row."""


def common_settings(records: Sequence[RunRecord]) -> list[str]:
    """What all records share, and each loader's decoder and output where these follow from the loader."""
    cases = [record.case for record in records]
    common = [setting.shown(cases[0]) for setting in _COMMON if not setting.varies(cases)]
    if not _DEVICE.varies(cases):
        common.append(device_name(with_device(records)))
    for setting, word in _FOLLOWING:
        if setting.varies(cases) and setting.follows_loader(cases):
            pairs = dict.fromkeys((case.feed.loader, setting.of(case)) for case in cases)
            common.append(f"{word}: " + ", ".join(f"{clean(a)} {clean(b)}" for a, b in pairs if b))
    return [text for text in common if text]


def with_device(records: Sequence[RunRecord]) -> RunRecord:
    """The first record that has its device's name (a failed run lacks it); else the first record."""
    return next((record for record in records if record.device and record.device.name), records[0])


class RowLabels:
    """What sets each of several records or rows apart from the others, in a few words."""

    def __init__(self, items: Iterable[OfCase]) -> None:
        cases = [item.case for item in items]
        following = [setting for setting, _ in _FOLLOWING if setting.follows_loader(cases)]
        self._apart = [
            setting
            for setting in (*_COMMON, *_QUIET)
            if setting.varies(cases) and not any(setting is other for other in following)
        ]

    def of(self, case: Case) -> str:
        """The loader, its workers and whatever else sets this case apart."""
        # With a buffer that is a fraction of the run the prefetch follows from the workers.
        follows = _PREFETCH if case.feed.buffer_ratio is not None else None
        apart = [setting.shown(case) for setting in self._apart if setting is not follows]
        return " ".join([loader_name(case), *(text for text in apart if text)])

    def without_workers(self, case: Case) -> str:
        """The label shared by all cases that differ from this one only in workers."""
        return self.of(case.changed(workers=0))


def failure_lines(records: Sequence[RunRecord], labels: RowLabels) -> list[str]:
    """`512 dali 8w, 1024 dali 8w, failed: worker 3 was killed by signal 9`: each reason once, with its cases."""
    by_reason: dict[str, list[str]] = {}
    for record in records:
        if record.status != "ok":
            case = f"{resolution(record.case)} {labels.of(record.case)}"
            by_reason.setdefault(f"{outcome(record)}: {sentence(record)}", []).append(case)
    return [f"{', '.join(cases)}, {reason}" for reason, cases in by_reason.items()]


def ended_line(record: RunRecord) -> str:
    """`photos/512 threaded+libjpeg w2 b64: 862 ±9% images/s, prep`: a case of a sweep as it ends."""
    setting = record.case.title.rpartition(" ")[0]  # without the device, which a sweep has in common
    return clean(f"{setting}: {plus_minus_percent(record.throughput)} images/s, {outcome(record)}")


def short_name(run_id: str) -> str:
    """The start of a run's or study's name up to its time, which is nearly always unique."""
    return "-".join(run_id.split("-")[:3])


# -- caveats ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaveatLine:
    """One caveat of several runs."""

    code: str
    severity: Severity
    text: str
    num_runs: int


def grouped_caveats(records: Iterable[RunRecord]) -> list[CaveatLine]:
    """Each caveat of the records, once, in order of appearance.

    Caveats of one code whose texts differ only in figures count as one; the first run's text is shown.
    """
    first: dict[tuple[str, str], tuple[Caveat, str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for record in records:
        seen = set()
        for caveat in record.caveats:
            text = clean(caveat.text())
            key = (caveat.code, re.sub(r"\d+(\.\d+)?", "#", text))
            first.setdefault(key, (caveat, text))
            if key not in seen:
                counts[key] = counts.get(key, 0) + 1
            seen.add(key)
    return [
        CaveatLine(
            caveat.code,
            caveat.severity,
            text if counts[key] == 1 or key[1] == text else f"{text} (figures differ)",
            counts[key],
        )
        for key, (caveat, text) in first.items()
    ]


def by_severity(caveats: Sequence[CaveatLine]) -> list[tuple[Severity, list[CaveatLine]]]:
    """What changes the verdict first; severities without a caveat are left out."""
    severities: tuple[Severity, ...] = get_args(Severity)
    groups = [(severity, [caveat for caveat in caveats if caveat.severity == severity]) for severity in severities]
    return [(severity, group) for severity, group in groups if group]
