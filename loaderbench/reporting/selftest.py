"""The self-test as text: which verdicts were right, and the errors of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from loaderbench.analysis.selftest import confusion
from loaderbench.recording.studies import AlikeOutcome, SelfTest, SelfTestFacts
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import make_console, plain_table, print_bullets, print_rows, styled
from loaderbench.reporting.shown import Shown

if TYPE_CHECKING:
    from rich.console import Console


def print_selftest(
    result: SelfTest, confusion: Mapping[str, Mapping[str, int]], console: Console | None = None
) -> None:
    """Print the confusion matrix (truth in rows, verdicts in columns: analysis/selftest.py) and the figures."""
    console, result = console or make_console(), fmt.cleaned(result)
    table = plain_table()
    table.add_column("truth \\ verdict", no_wrap=True)
    columns = list(next(iter(confusion.values()), {}))
    for name in columns:
        table.add_column("undet." if name == "undetermined" else name, justify="right", no_wrap=True)
    for truth, row in confusion.items():
        table.add_row(styled(truth), *(str(row[name]) if row[name] else "." for name in columns))
    console.print(table)
    console.print()
    mean, p95 = (fmt.percent(error, decimals=1) for error in (result.share_error.mean, result.share_error.p95))
    right = f"{fmt.percent(result.accuracy_fraction)} of {result.num_clear_cases} cases worth 1.25× or more"
    if result.num_others_first:
        right += f"; {result.num_others_first} of them named contention, which cost about as much, before the cause"
    rows = [
        ("right", right),
        ("confident wrong", str(result.confident_wrong)),
        ("undetermined", fmt.percent(result.undetermined_fraction)),
        ("kind, culprit", f"told in {fmt.percent(result.detail_fraction)} of those judged right that have one"),
        ("share error", f"mean {mean}, p95 {p95}"),
        ("gain error", f"median {fmt.percent(result.speedup_error_median, decimals=1)}"),
        ("false positives", f"{fmt.percent(result.null_false_positive_fraction)} of the runs without a cause"),
        ("null loader", f"AU {fmt.percent(result.null_loader_au_fraction, decimals=1)}"),
        ("own overhead", fmt.percent(result.overhead_fraction, decimals=2)),
        ("arms alike", _alike(result.alike)),
        ("failed", str(len(result.failed))),
        ("skipped", str(len(result.skipped))),
    ]
    print_rows(console, rows)
    print_bullets(console, "Arms that are not alike", [_unlike(one) for one in result.alike if one.alike is False])
    print_bullets(console, "Arms measured too roughly", [_unlike(one) for one in result.alike if one.alike is None])
    print_bullets(console, "Failed", [f"{left.name}: {left.reason}" for left in result.failed])
    print_bullets(console, "Skipped", [f"{left.name}: {left.reason}" for left in result.skipped])


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

    def about(self, facts: SelfTestFacts) -> str:
        return facts.device

    def print_found(self, found: SelfTest, console: Console) -> None:
        print_selftest(found, confusion(found.cases), console)

    def sentence(self, found: SelfTest) -> str:
        return f"{fmt.percent(found.accuracy_fraction)} of {found.num_clear_cases} verdicts right"
