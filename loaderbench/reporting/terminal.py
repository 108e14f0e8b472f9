"""Run records as text: readable in 80 columns, plain where it is not a terminal.

Everything printed is a rich `Text`, which knows no markup: a data set named `[red]` prints as it is named.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loaderbench.recording.store import StoredRun
from loaderbench.reporting import format as fmt
from loaderbench.reporting.format import CAUSES, MISSING, NOT_MEASURED, Record, part

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

BAR_WIDTH = 24
NAME_WIDTH = 60
"""Characters shown of a kernel's name; C++ templates fill pages."""
STYLES = {
    "compute": "green",
    "launch": "yellow",
    "transfer": "cyan",
    "prep": "dark_orange",
    "contention": "red",
    "storage": "magenta",
    "failed": "bold red",
    "crashed": "red",
    "unreadable": "red",
    "skipped": "dim",
    "interrupted": "yellow",
    "running": "cyan",
}


def make_console(stderr: bool = False) -> Console:
    """A console that never fails for a character its encoding lacks. rich obeys NO_COLOR and a missing terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Console(file=stream, highlight=False)


def _text(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(content, style=style)


def _rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Name and value lines, long values wrapped under themselves."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=12)
    table.add_column()
    for name, value in rows:
        table.add_row(_text(name, "dim"), _text(value))
    console.print(table)


def _bullets(console: Console, title: str, items: Sequence[str]) -> None:
    from rich.padding import Padding

    if not items:
        return
    console.print()
    console.print(_text(title, "bold"))
    for item in items:
        console.print(Padding(_text(item), (0, 0, 0, 2)))


def print_run(record: Record, console: Console | None = None) -> None:
    """One run: the verdict first, then what it rests on, then what to know before trusting it."""
    console = console or make_console()
    case = record["case"]
    word, sentence = fmt.headline(record)
    style = f"bold {STYLES.get(fmt.outcome(record), '')}"
    console.print(_text(word, style).append(sentence, style="bold" if word else style))
    asked = [fmt.resolution(record), fmt.row_label(record, [record]), *fmt.common_settings([record])]
    console.print(_text(" · ".join(asked)))
    if part(record, "throughput") is not None or part(record, "step_time_s") is not None:
        console.print()
        _rows(console, _figures(record))
        _print_shares(record, console)
        console.print()
        _rows(console, _stages_and_capacities(record))
    _bullets(console, "Evidence", [fmt.clean(item) for item in part(record, "verdict", "evidence") or []])
    advice = part(record, "verdict", "advice") or []
    _bullets(console, "What to try next", [f"{number}. {_advice(one)}" for number, one in enumerate(advice, 1)])
    _print_verification(advice, console)
    _bullets(console, "Caveats", [fmt.clean(f"{one['code']}: {one['message']}") for one in record.get("caveats") or []])
    console.print()
    options = [
        f"{key}={value}"
        for name in ("loader_options", "decoder_options")
        for key, value in (case.get(name) or {}).items()
    ]
    _rows(console, [("options", fmt.clean(" ".join(options)))] * bool(options) + [("run", fmt.clean(record["run_id"]))])


def _advice(one: dict[str, Any]) -> str:
    gain, most = one.get("predicted_speedup"), one.get("at_most")
    if gain is not None:
        return fmt.clean(one["action"]) + f" – predicted: {fmt.speedup(gain)}"
    return fmt.clean(one["action"]) + ("" if most is None else f" – at most {most['value']:.2f}×")


def _print_verification(advice: Sequence[Mapping[str, Any]], console: Console) -> None:
    """What was predicted against what `--verify` measured; nothing where it was not asked for."""
    from rich.table import Table

    verified = [(number, one) for number, one in enumerate(advice, 1) if "measured_speedup" in one]
    if not verified:
        return
    console.print()
    table = Table(box=None, pad_edge=False, title=_text("Advice, run", "bold"), title_justify="left")
    table.add_column("advice", overflow="fold")
    for name in ("predicted", "measured", "error"):
        table.add_column(name, justify="right")
    for number, one in verified:
        change = " ".join(
            f"{name}={fmt.clean(str(value))}" for name, value in one["change"].items() if value not in ({}, None)
        )
        measured = one["measured_speedup"]
        off = None if measured is None else one["predicted_speedup"]["value"] / measured["value"] - 1
        table.add_row(
            _text(f"{number}. {change}"),
            _text(fmt.speedup(one["predicted_speedup"])),
            _text(fmt.speedup(measured)),
            _text("" if off is None else f"{off:+.0%}"),
        )
    console.print(table)
    for number, one in verified:
        if one.get("not_verified"):
            console.print(_text(f"{number}. not run: {fmt.clean(one['not_verified'])}"))


def _figures(record: Record) -> list[tuple[str, str]]:
    step = record.get("step_time_s") or {}
    first = record.get("time_to_first_batch_s")
    utilization = record.get("accelerator_utilization_fraction")
    unit = "" if record.get("throughput") is None else " images/s"
    quantiles = " · ".join(f"{name} {fmt.duration(step.get(name))}" for name in ("p50", "p95", "p99"))
    return [
        ("throughput", fmt.plus_minus(record.get("throughput")) + unit),
        ("step", f"{fmt.duration(step['mean'])} ({quantiles})" if step.get("mean") is not None else NOT_MEASURED),
        ("AU", fmt.percent(utilization) if utilization is not None else NOT_MEASURED),
        ("first batch", fmt.duration(first) if first is not None else NOT_MEASURED),
    ]


def _print_shares(record: Record, console: Console) -> None:
    """The step's time by cause, with a bar each."""
    from rich.table import Table

    console.print()
    console.print(_text("Where a step's time goes", "bold"))
    if record.get("shares") is None:
        console.print(_text(f"  {NOT_MEASURED}"))
        return
    block = "█" if console.encoding.lower().startswith("utf") else "#"
    mean_s = part(record, "step_time_s", "mean")
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for cause in CAUSES:
        estimate = part(record, "shares", cause)
        if estimate is None:
            table.add_row(_text(f"  {cause}"), "", "", "", _text(NOT_MEASURED, "dim"))
            continue
        fraction = estimate["value"]
        spread = fmt.percent_interval(estimate)
        table.add_row(
            _text(f"  {cause}"),
            _text(fmt.percent(fraction, decimals=1)),
            _text(f"({spread})" if spread else "", "dim"),
            _text(fmt.duration(fraction * mean_s) if mean_s is not None else ""),
            _text(block * round(min(max(fraction, 0.0), 1.0) * BAR_WIDTH), STYLES.get(cause, "")),
        )
    console.print(table)


def _stages_and_capacities(record: Record) -> list[tuple[str, str]]:
    capacities = record.get("capacities") or {}
    removed = part(record, "verdict", "speedup_if_removed") or {}
    stages = record.get("stages") or {}
    rows = [
        ("if removed", " · ".join(f"{fmt.clean(k)} {fmt.speedup(v)}" for k, v in removed.items()) or NOT_MEASURED),
        (
            "alone",
            " · ".join(f"{name} {fmt.number(fmt.value_of(capacities[name]))}" for name in capacities) + " images/s"
            if capacities
            else NOT_MEASURED,
        ),
        ("per image", " · ".join(f"{fmt.clean(k)} {fmt.duration(v)}" for k, v in stages.items()) or NOT_MEASURED),
        ("storage", _storage(record)),
        ("CPU", _cpu(record)),
        ("kernel gaps", _kernel_gaps(record)),
    ]
    overhead = record.get("overhead_fraction")
    rows.append(("overhead", f"{overhead * 100:.1f} % of a step" if overhead is not None else NOT_MEASURED))
    return rows


def _storage(record: Record) -> str:
    storage = record.get("storage")
    if storage is None:
        return NOT_MEASURED
    proof = ""
    if storage.get("cache_state") == "cold":
        proof = {True: "cold proven", False: "cold not proven", None: ""}[storage.get("cold_proven")]
    read, expected = storage.get("bytes_read"), storage.get("expected_bytes")
    moved = f"{fmt.size(read)} read" if read is not None else f"bytes read {NOT_MEASURED}"
    before, after = (part(storage, "residency_fraction", when) for when in ("before", "after"))
    parts = [
        fmt.clean(storage.get("cache_state") or ""),
        proof,
        moved + (f" of {fmt.size(expected)} asked for" if expected is not None else ""),
        f"{fmt.size(storage['bandwidth_bytes_per_s'], '/s')}"
        if storage.get("bandwidth_bytes_per_s") is not None
        else "",
        f"ceiling {fmt.size(storage['ceiling_bytes_per_s'], '/s')}{_rising(storage)}"
        if storage.get("ceiling_bytes_per_s") is not None
        else "",
        f"resident {fmt.percent(before)} → {fmt.percent(after)}" if before is not None or after is not None else "",
        fmt.clean(storage.get("source") or ""),
    ]
    return " · ".join(text for text in parts if text)


def _kernel_gaps(record: Record) -> str:
    gap = part(record, "device", "kernel_gap")
    if gap is None:
        return NOT_MEASURED
    by_class = [
        f"{fmt.clean(name)} {fmt.percent(one['fraction'], decimals=1)}"
        for name, one in gap["by_class"].items()
        if one["count_per_step"]
    ]
    parts = [
        f"{fmt.percent(gap['total_fraction'], decimals=1)} of the step in {gap['count_per_step']:.0f} gaps",
        *by_class,
        f"half of them below {fmt.duration(gap['p50_s'])}" if gap["p50_s"] is not None else "",
    ]
    return " · ".join(text for text in parts if text)


def _rising(storage: Record) -> str:
    ceiling = storage.get("ceiling") or {}
    if not ceiling:
        return ""
    readers = f" at {ceiling['readers']} readers" if ceiling.get("readers") else ""
    return readers + (", still rising" if ceiling.get("still_rising") else "")


def _cpu(record: Record) -> str:
    busy, each, resident = (
        part(record, "cpu", name) for name in ("busy_fraction", "seconds_per_sample", "workers_rss_bytes")
    )
    parts = [
        f"{fmt.percent(busy)} busy" if busy is not None else "",
        f"{fmt.duration(each)} per image" if each is not None else "",
        f"workers hold {fmt.size(resident)}" if resident is not None else "",
    ]
    return " · ".join(text for text in parts if text) or NOT_MEASURED


def print_table(records: Sequence[Record], console: Console | None = None) -> None:
    """All runs of a sweep, a row each, small resolutions first; then a sentence for each resolution."""
    console = console or make_console()
    if not records:
        console.print(_text("no runs"))
        return
    console.print(_text(" · ".join(fmt.common_settings(records)), "bold"))
    table = _plain_table()
    for title, justify in (
        ("res", "right"),
        ("loader", "left"),
        ("images/s", "right"),
        ("ms/step", "right"),
        ("AU", "right"),
        ("stor", "right"),
        ("prep", "right"),
        ("xfer", "right"),
        ("lnch", "right"),
        ("comp", "right"),
        ("verdict", "left"),
    ):
        table.add_column(title, justify=justify, no_wrap=title != "loader", overflow="fold")  # type: ignore[arg-type]
    for name, group in fmt.by_resolution(records):
        for record in group:
            table.add_row(*_sweep_row(record, records, name if record is group[0] else ""))
        table.add_section()
    console.print(table)
    console.print(
        _text(
            "AU, stor(age), prep (contention included), xfer (transfer), l(au)nch, comp(ute) in % of the step; "
            f"{MISSING} {NOT_MEASURED}",
            "dim",
        )
    )
    console.print()
    for name, group in fmt.by_resolution(records):
        console.print(_resolution_sentence(name, group, records))
    bad = [record for record in records if record["status"] != "ok"]
    _bullets(
        console,
        "Not measured",
        [
            f"{fmt.resolution(one)} {fmt.row_label(one, records)}, {fmt.outcome(one)}: {fmt.sentence(one)}"
            for one in bad
        ],
    )
    _bullets(
        console,
        "Caveats",
        [
            f"{code}: {message} ({count} of {len(records)} runs)"
            for code, message, count in fmt.grouped_caveats(records)
        ],
    )


def _plain_table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")


def _sweep_row(record: Record, records: Sequence[Record], name: str) -> list[Text]:
    mean_s = part(record, "step_time_s", "mean")
    storage, transfer, launch, compute = (
        fmt.value_of(part(record, "shares", cause)) for cause in ("storage", "transfer", "launch", "compute")
    )
    fractions = [
        record.get("accelerator_utilization_fraction"), storage, fmt.prep_share(record), transfer, launch, compute
    ]  # fmt: skip
    verdict = fmt.outcome(record)
    return [
        _text(name),
        _text(fmt.row_label(record, records)),
        _text(fmt.plus_minus_percent(record.get("throughput"))),
        _text(fmt.number(None if mean_s is None else mean_s * 1e3)),
        *(_text(fmt.percent(fraction, sign="")) for fraction in fractions),
        _text(verdict, STYLES.get(verdict, "")),
    ]


def _resolution_sentence(name: str, group: Sequence[Record], records: Sequence[Record]) -> Text:
    measured = [record for record in group if record.get("throughput") is not None]
    if not measured:
        return _text(f"{name}: {NOT_MEASURED}")
    fastest = max(measured, key=lambda record: float(record["throughput"]["value"]))
    head = _text(f"{name}: ", "bold")
    who = "" if len(measured) == 1 else f"fastest is {fmt.row_label(fastest, records)}. "
    return head.append(f"{who}{fmt.sentence(fastest)}", style="not bold")


def print_list(
    runs: Sequence[StoredRun], console: Console | None = None, findings: Sequence[Mapping[str, Any]] = ()
) -> None:
    """The stored runs, a row each, oldest first. The name shown is enough for `loaderbench show`.

    `findings`: stored studies and comparisons.
    """
    console = console or make_console()
    if not runs and not findings:
        console.print(_text("no runs stored; measure one with `loaderbench run`"))
        return
    table = _plain_table()
    table.add_column("run", no_wrap=True)
    table.add_column("case")
    table.add_column("images/s", justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for run, name in zip(runs, short_names(runs), strict=True):
        record = run.record
        result = run.status if record is None else fmt.outcome(record)
        table.add_row(
            _text(fmt.clean(name)),
            _text(fmt.clean(run.title)),
            _text(fmt.plus_minus_percent(None if record is None else record.get("throughput"))),
            _text(result, STYLES.get(result, "")),
        )
    console.print(table)
    _bullets(
        console,
        "Studies and comparisons",
        [fmt.clean(one.get("study_id") or one.get("comparison_id") or "") for one in findings],
    )
    _bullets(
        console,
        "Without a result",
        [fmt.clean(f"{run.run_id}: {run.problem}") for run in runs if run.problem is not None],
    )


def short_names(runs: Sequence[StoredRun]) -> list[str]:
    """For each run the start of its name, up to its time where that is unique among `runs`, else all of it."""
    times = ["-".join(run.run_id.split("-")[:3]) for run in runs]
    return [
        time if sum(other.run_id.startswith(time) for other in runs) == 1 else run.run_id
        for run, time in zip(runs, times, strict=True)
    ]


def print_scan(scan: Record, console: Console | None = None) -> None:
    """A data set as `dataset scan` found it: `DatasetScan.to_json()`."""
    console = console or make_console()
    system = scan["file_system"]
    shapes = [f"{one['width']}x{one['height']} ({one['num_images']:,})" for one in scan["resolutions"][:5]]
    others = ", ".join(f"{count:,} {suffix or 'without suffix'}" for suffix, count in scan["other_suffixes"].items())
    behind = f" on {system['device']}" if system["device"] else ""
    rows = [
        ("images", f"{scan['num_images']:,} in {scan['num_classes']:,} folders"),
        ("bytes", f"{fmt.size(scan['total_bytes'])}, mean {fmt.size(scan['mean_bytes'])}"),
        ("per pixel", f"{fmt.number(scan['bytes_per_pixel'])} bytes"),
        ("progressive", fmt.percent(scan["progressive_fraction"])),
        ("sizes", ", ".join(shapes) or fmt.NOT_MEASURED),
        ("storage", f"{system['type']} {system['source']}{behind}"),
        ("other files", others or "none"),
        ("broken", f"{scan['num_broken']:,}"),
    ]
    if scan["variants"]:
        rows.append(("variants", ", ".join(str(side) for side in scan["variants"])))
    _rows(console, [(name, fmt.clean(value)) for name, value in rows])
    _bullets(console, "Broken files", [fmt.clean(f"{one['path']}: {one['reason']}") for one in scan["broken"][:20]])


def print_gaps(summary: Record, console: Console | None = None) -> None:
    """Busy and idle time of a trace's device: `analysis.trace_gaps.summarize`."""
    console = console or make_console()
    idle, steps = summary["gaps"], summary["kernels_per_step"]
    waiting = summary["idle_in_data_wait_s"]
    rows = [
        ("device", f"{summary['device']}: {summary['num_activities']:,} kernels, copies and memsets on "
                   f"{summary['num_streams']} streams, of {summary['num_events']:,} events"),
        ("window", fmt.duration(summary["window_s"])),
        ("busy", fmt.percent(summary["busy_fraction"], decimals=2)),
        ("idle", fmt.duration(summary["idle_s"])
                 + ("" if waiting is None else f", {fmt.duration(waiting)} of it while the host waited for data")),
        ("gaps", f"{idle['count']:,}, p50 {fmt.duration(idle['p50_s'])}, p95 {fmt.duration(idle['p95_s'])}"),
        ("kernels/step", NOT_MEASURED if steps is None else
            f"{fmt.number(steps['median'])} ({steps['least']:,} to {steps['most']:,} in {steps['num_steps']} steps): "
            f"{'steady' if steps['steady'] else 'not steady'}; {steps['num_outside']:,} outside of the steps"),
    ]  # fmt: skip
    _rows(console, rows)
    _bullets(console, "Gaps by length", _histogram(idle["histogram"]))
    largest = [
        f"{fmt.duration(one['duration_s'])} at {fmt.duration(one['begin_s'])}"
        f"{'' if one['step'] is None else ', step ' + str(one['step'])}: "
        f"{fmt.clean(one['before'])[:NAME_WIDTH]} → {fmt.clean(one['after'])[:NAME_WIDTH]}"
        for one in idle["largest"]
    ]
    _bullets(console, "Largest gaps (step, kernel before → kernel after)", largest)
    _bullets(console, "Caveats", [f"{one['code']}: {one['message']}" for one in summary["caveats"]])


def _histogram(histogram: Record) -> list[str]:
    """A line for each bin from the first to the last that holds a gap."""
    edges, counts = histogram["edges_s"], histogram["counts"]
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


def print_selftest(result: Record, confusion: dict[str, dict[str, int]], console: Console | None = None) -> None:
    """The confusion matrix (truth in rows, verdicts in columns) and the figures of SelfTest.to_json()."""
    console = console or make_console()
    table = _plain_table()
    table.add_column("truth \\ verdict", no_wrap=True)
    columns = list(next(iter(confusion.values()), {}))
    for name in columns:
        table.add_column("undet." if name == "undetermined" else name, justify="right", no_wrap=True)
    for truth, row in confusion.items():
        table.add_row(truth, *(str(row[name]) if row[name] else "." for name in columns))
    console.print(table)
    console.print()
    error = result["share_error"]
    mean, p95 = (fmt.percent(error[name], decimals=1) for name in ("mean", "p95"))
    _rows(
        console,
        [
            (
                "right",
                f"{fmt.percent(result['accuracy_fraction'])} of {result['num_clear_cases']} cases worth 1.25× or more",
            ),
            ("confident wrong", str(result["confident_wrong"])),
            ("undetermined", fmt.percent(result["undetermined_fraction"])),
            ("share error", f"mean {mean}, p95 {p95}"),
            ("gain error", f"median {fmt.percent(result['speedup_error_median'], decimals=1)}"),
            ("false positives", f"{fmt.percent(result['null_false_positive_fraction'])} of the runs without a cause"),
            ("null loader", f"AU {fmt.percent(result['null_loader_au_fraction'], decimals=1)}"),
            ("own overhead", fmt.percent(result["overhead_fraction"], decimals=2)),
            ("failed", str(len(result["failed"]))),
            ("skipped", str(len(result["skipped"]))),
        ],
    )
    _bullets(console, "Failed", [fmt.clean(f"{one['name']}: {one['reason']}") for one in result["failed"]])
    _bullets(console, "Skipped", [fmt.clean(f"{one['name']}: {one['reason']}") for one in result["skipped"]])


def print_precision(result: Record, console: Console | None = None) -> None:
    """PrecisionStudy.to_json(): time and memory of each mode, then how far its numbers stray from fp32's."""
    console = console or make_console()
    size, device = result["input_size"], result["device"]["name"]
    asked = [result["model"], result["mode"], f"{result['num_steps']} steps", f"batch {result['batch_size']}"]
    console.print(_text(fmt.clean(" · ".join([*asked, f"{size}×{size}", device])), "bold"))
    on_cpu = result["memory_of"] == "rss_growth_bytes"
    memory = {"RSS growth": "rss_growth_bytes"} if on_cpu else {
        "allocated": "allocated_bytes", "reserved": "reserved_bytes", "process": "process_bytes",
    }  # fmt: skip
    measured = [mode for mode in result["modes"] if mode["total_s"] is not None]
    table = _plain_table()
    table.add_column("precision", no_wrap=True)
    for title in ("total", "images/s", "speed-up", *memory, "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for mode in measured:
        ratio = mode["memory_ratio"]
        cells = [
            fmt.duration(mode["total_s"]),
            fmt.plus_minus_percent(mode["images_per_s"]),
            fmt.MISSING if mode["speedup"] is None else f"{mode['speedup']['value']:.2f}×",
            *(fmt.size(mode["memory"][name]) for name in memory.values()),
            fmt.MISSING if ratio is None else f"{ratio:.2f}×",
        ]
        table.add_row(_text(mode["precision"]), *(_text(cell) for cell in cells))
    console.print(table)
    console.print()
    _print_agreement([mode for mode in result["modes"] if mode["agreement"] is not None], result["mode"], console)
    bad = [mode for mode in result["modes"] if mode["status"] != "ok"]
    why = "ended by the user or the system"
    _bullets(
        console,
        "Not measured",
        [
            fmt.clean(f"{mode['precision']}, {mode['status']}: {(mode['failure'] or {'message': why})['message']}")
            for mode in bad
        ],
    )
    _bullets(console, "Caveats", [fmt.clean(f"{one['code']}: {one['message']}") for one in result["caveats"]])


def _print_agreement(modes: Sequence[Record], mode: str, console: Console) -> None:
    if not modes:
        return
    train = mode == "train"
    table = _plain_table()
    table.add_column("against fp32", no_wrap=True)
    titles = ("1st norm", "loss", "max", "norm", "max", "overflows", "scale") if train else (
        "logits off", "same class", "not finite",
    )  # fmt: skip
    for title in (*titles, "agrees"):
        table.add_column(title, justify="right", no_wrap=True)
    agrees = {True: "yes", False: "NO", None: fmt.MISSING}
    for one in modes:
        found = one["agreement"]
        if train:
            loss, norm, scale = found["loss_deviation"], found["gradient_norm_deviation"], one["loss_scale"]
            fractions = (norm["first"], loss["mean"], loss["max"], norm["mean"], norm["max"])
            cells = [
                *(_deviation(fraction) for fraction in fractions),
                str(found["num_overflow_steps"]),
                fmt.MISSING if scale in (None, 1.0) else scale if isinstance(scale, str) else f"{scale:g}",
            ]
        else:
            images = str(found["num_nonfinite_images"])
            cells = [_deviation(found["output_deviation"]), fmt.percent(found["top1_fraction"], decimals=1), images]
        name = f"{one['precision']} again" if one["precision"] == "fp32" else one["precision"]
        table.add_row(_text(name), *(_text(cell) for cell in (*cells, agrees[found["agrees"]])))
    console.print(table)
    if train:
        legend = (
            "Loss and gradient norm: mean and largest deviation over the run; 1st norm: of the first step. "
            "fp32 again: the same training rounded otherwise, so what training itself makes of the last bits."
        )
        console.print(_text(legend, "dim"))


def _deviation(fraction: float | None) -> str:
    """Two digits over many decades: 0.034 %, 12 %."""
    if fraction is None:
        return fmt.MISSING
    return "<0.001 %" if 0 < fraction < 1e-5 else f"{fmt.number(fraction * 100, 2)} %"
