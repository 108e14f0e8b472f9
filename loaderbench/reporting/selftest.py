"""The self-test as text: which verdicts were right, and the errors of its figures."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.analysis.selftest import confusion
from loaderbench.recording.studies import AlikeOutcome, SelfTest, SelfTestFacts
from loaderbench.reporting import format as fmt
from loaderbench.reporting.result import Column, Result, Table, names_and_values
from loaderbench.reporting.shown import Shown


def verdicts(result: SelfTest) -> Table:
    """Truth in rows, verdicts in columns."""
    counts = confusion(result.cases)
    names = list(next(iter(counts.values()), {}))
    columns = [Column("truth \\ verdict", left=True)]
    columns += [Column("undet." if name == "undetermined" else name) for name in names]
    rows = [(truth, *(row[name] or "." for name in names)) for truth, row in counts.items()]
    return Table("Verdicts", columns, rows)


def figures(result: SelfTest) -> list[tuple[str, str]]:
    """How right they were, by name."""
    mean, p95 = (fmt.percent(error, decimals=1) for error in (result.share_error.mean, result.share_error.p95))
    right = f"{fmt.percent(result.accuracy_fraction)} of {result.num_clear_cases} cases worth 1.25× or more"
    if result.num_others_first:
        right += f"; {result.num_others_first} of them named contention, which cost about as much, before the cause"
    return [
        ("right", right),
        ("confident wrong", str(result.confident_wrong)),
        ("undetermined", fmt.percent(result.undetermined_fraction)),
        ("kind, culprit", f"named in {fmt.percent(result.detail_fraction)} of those judged right that have one"),
        ("share error", f"mean {mean}, p95 {p95}"),
        ("gain error", f"median {fmt.percent(result.speedup_error_median, decimals=1)}"),
        ("false positives", f"{fmt.percent(result.null_false_positive_fraction)} of the runs without a cause"),
        ("null loader", f"AU {fmt.percent(result.null_loader_au_fraction, decimals=1)}"),
        ("own overhead", fmt.percent(result.overhead_fraction, decimals=2)),
        ("arms alike", _alike(result.alike)),
        ("failed", str(len(result.failed))),
        ("skipped", str(len(result.skipped))),
    ]


def _alike(outcomes: Sequence[AlikeOutcome]) -> str:
    if not outcomes:
        return "not measured"
    num = sum(one.alike is True for one in outcomes)
    return f"{num} of {len(outcomes)}: preparing an image from memory takes the same CPU time as from storage (± 2 %)"


def _unlike(outcome: AlikeOutcome) -> str:
    ratio = outcome.ratio
    from_memory, from_storage = outcome.minor_faults
    return (
        f"{outcome.name}: from memory {ratio.value:.2f}× ({ratio.low:.2f} – {ratio.high:.2f}) the CPU time; "
        f"{from_memory:.0f} page faults an image for {from_storage:.0f}"
    )


class ShownSelfTest(Shown[SelfTestFacts, SelfTest]):
    """Shows a self-test."""

    is_paged = False

    def about(self, facts: SelfTestFacts) -> str:
        return facts.device

    def result(self, facts: SelfTestFacts, found: SelfTest) -> Result:
        return Result(
            title="Self-test",
            settings=[facts.device],
            answer=[f"{fmt.percent(found.accuracy_fraction)} of {found.num_clear_cases} verdicts right"],
            tables=[verdicts(found), names_and_values("Figures", figures(found))],
            sections=[
                ("Arms that are not alike", [_unlike(one) for one in found.alike if one.alike is False]),
                ("Arms measured too roughly", [_unlike(one) for one in found.alike if one.alike is None]),
                ("Failed", [f"{left.name}: {left.reason}" for left in found.failed]),
                ("Skipped", [f"{left.name}: {left.reason}" for left in found.skipped]),
            ],
        )
