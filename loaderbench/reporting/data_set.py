"""A data set as text: what `dataset scan` found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderbench.cases.traits import format_names
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import Console, make_console, print_bullets, print_rows

if TYPE_CHECKING:
    from loaderbench.images.scan import DatasetScan

MOST_SIZES = 5
MOST_BROKEN = 20


def print_scan(scan: DatasetScan, console: Console | None = None) -> None:
    """Print a data set as `dataset scan` found it."""
    console, found = console or make_console(), fmt.cleaned(scan)
    system = found.file_system
    sizes = [
        f"{shape['width']}x{shape['height']} ({shape['num_images']:,})" for shape in found.resolutions[:MOST_SIZES]
    ]
    others = ", ".join(f"{count:,} {suffix or 'without suffix'}" for suffix, count in found.other_suffixes.items())
    behind = f" on {system.device}" if system.device else ""
    formats = ", ".join(f"{format_names([kind])} {count:,}" for kind, count in found.formats.items())
    rows = [
        ("images", f"{found.num_images:,} in {found.num_classes:,} folders"),
        ("formats", formats or fmt.NOT_MEASURED),
        ("bytes", f"{fmt.size(found.total_bytes)}, mean {fmt.size(found.mean_bytes)}"),
        ("per pixel", f"{fmt.number(found.bytes_per_pixel)} bytes"),
        ("progressive", fmt.percent(found.progressive_fraction)),
        ("sizes", ", ".join(sizes) or fmt.NOT_MEASURED),
        ("storage", f"{system.type} {system.source}{behind}"),
        ("other files", others or "none"),
        ("broken", f"{len(found.broken):,}"),
    ]
    if found.variants:
        rows.append(("variants", ", ".join(map(str, found.variants))))
    print_rows(console, rows)
    print_bullets(
        console,
        "Broken files",
        [f"{path.removeprefix(f'{found.root}/')}: {reason}" for path, reason in found.broken[:MOST_BROKEN]],
    )
