"""A torch.profiler trace as text: busy and idle time of its device, and the gaps between its kernels."""

from __future__ import annotations

from loaderbench.analysis.trace_gaps import KernelsPerStep, TraceGap, TraceGaps
from loaderbench.recording.record import GapHistogram
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import BAR_WIDTH, Console, make_console, print_bullets, print_caveats, print_rows

NAME_WIDTH = 60
"""Characters shown of a kernel's name: names of C++ templates are very long."""


def print_gaps(summary: TraceGaps, console: Console | None = None) -> None:
    """Print busy and idle time of a trace's device."""
    console, summary = console or make_console(), fmt.cleaned(summary)
    gaps, waiting = summary.gaps, summary.idle_in_data_wait_s
    device = (
        f"{summary.device}: {summary.num_activities:,} kernels, copies and memsets on {summary.num_streams} streams, "
        f"of {summary.num_events:,} events"
    )
    waited = "" if waiting is None else f", {fmt.duration(waiting)} of it while the host waited for data"
    rows = [
        ("device", device),
        ("window", fmt.duration(summary.window_s)),
        ("busy", fmt.percent(summary.busy_fraction, decimals=2) + _collectives(summary)),
        ("idle", fmt.duration(summary.idle_s) + waited),
        ("gaps", f"{gaps.count:,}, p50 {fmt.duration(gaps.p50_s)}, p95 {fmt.duration(gaps.p95_s)}"),
        ("kernels/step", _kernels(summary.kernels_per_step)),
    ]
    print_rows(console, rows)
    print_bullets(console, "Gaps by length", _histogram(gaps.histogram))
    largest = [_gap(gap) for gap in gaps.largest]
    print_bullets(console, "Largest gaps (step, kernel before → kernel after)", largest)
    print_caveats(console, summary.caveats)


def _collectives(summary: TraceGaps) -> str:
    """How much of the busy time is work, and how much only collectives; "" without any."""
    if not summary.num_collectives:
        return ""
    works, waits = fmt.percent(summary.works_fraction, decimals=2), fmt.percent(summary.collective_fraction, decimals=2)
    return f": works {works}, waits in collectives {waits} ({summary.num_collectives:,} kernels)"


def _kernels(steps: KernelsPerStep | None) -> str:
    if steps is None:
        return fmt.NOT_MEASURED
    steady = "steady" if steps.steady else "not steady"
    return (
        f"{fmt.number(steps.median)} ({steps.least:,} to {steps.most:,} in {steps.num_steps} steps): "
        f"{steady}; {steps.num_outside:,} outside the steps"
    )


def _gap(gap: TraceGap) -> str:
    step = "" if gap.step is None else f", step {gap.step}"
    between = f"{gap.before[:NAME_WIDTH]} → {gap.after[:NAME_WIDTH]}"
    return f"{fmt.duration(gap.duration_s)} at {fmt.duration(gap.begin_s)}{step}: {between}"


def _histogram(histogram: GapHistogram) -> list[str]:
    """A line for each bin from the first to the last that holds a gap."""
    edges, counts = histogram.edges_s, histogram.counts
    used = [number for number, count in enumerate(counts) if count]
    if not used:
        return []
    lines = []
    for number in range(used[0], used[-1] + 1):
        below = number < len(edges)
        label = f"{'<' if below else '≥'} {fmt.duration(edges[number] if below else edges[-1])}"
        bar = "█" * round(BAR_WIDTH * counts[number] / max(counts))
        lines.append(f"{label:>10}  {bar:<{BAR_WIDTH}} {counts[number]:,}")
    return lines
