"""What a study says beyond its single runs: times over serial, the knee in workers, where the bottleneck flips.

Everything is taken from the runs' records. Repeats of a case are one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loaderbench.analysis.comparison import PARITY, rate_of, ratio_of

Record = Mapping[str, Any]
Row = dict[str, Any]

NUM_STEPS = 100
"""Steps of the total time, unless `--steps` says so: the 100 iterations of the study that this one follows (S-A1)."""
OF_THE_LOADER = ("loader", "workers", "decoder", "output", "prefetch", "loader_options", "decoder_options")
"""Fields of Case in which a run may differ from the serial one that it is held against."""
UNRULED = ("undetermined", None)


def _key(case: Mapping[str, Any], *without: str) -> str:
    return repr(sorted((name, str(value)) for name, value in case.items() if name not in {"repeat", *without}))


def _grouped(records: Iterable[Record], *without: str) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for one in records:
        groups.setdefault(_key(one["case"], *without), []).append(one)
    return list(groups.values())


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """{num_steps, rows[], knees[], flips[]} over the runs that were measured.

    A row: {case, run_ids, rate, total_s of `num_steps` steps, faster_than_serial (None where serial was not
    measured), batch_bytes, read_bytes_per_s and ceiling_bytes_per_s of the storage (None where it was not read),
    utilization_fraction, gap_fraction and gap_fraction_by_class of kernel gaps, bottleneck, seconds_per_sample of
    CPU, workers_rss_bytes}.
    """
    measured = [one for one in records if one["status"] == "ok" and one.get("throughput")]
    groups = _grouped(measured)
    num_steps = measured[0]["case"].get("steps") or NUM_STEPS if measured else NUM_STEPS
    rows = [_row(group, _serial_of(group[0], groups), num_steps) for group in groups]
    return {"num_steps": num_steps, "rows": rows, "knees": knees(rows), "flips": flips(rows)}


def _row(runs: Sequence[Record], serial: Sequence[Record] | None, num_steps: int) -> Row:
    first, rate = runs[0], rate_of(runs)
    case, storage, gap = first["case"], first.get("storage") or {}, (first.get("device") or {}).get("kernel_gap") or {}
    assert rate is not None
    mean_bytes, cpu = storage.get("mean_file_bytes"), first.get("cpu") or {}
    faster = None
    if serial is not None and serial is not runs:
        pairs = min(len(serial), len(runs))
        faster = ratio_of(serial[:pairs], runs[:pairs])
    # A warm run reads nothing: what a shared disk's counter saw meanwhile was others'.
    read = None if storage.get("cache_state") == "warm" else storage.get("bandwidth_bytes_per_s")
    return {
        "case": case,
        "run_ids": [one["run_id"] for one in runs],
        "rate": rate,
        "total_s": num_steps * case["batch_size"] / rate["value"],
        "faster_than_serial": faster,
        "batch_bytes": None if mean_bytes is None else mean_bytes * case["batch_size"],
        "read_bytes_per_s": read or None,
        "ceiling_bytes_per_s": storage.get("ceiling_bytes_per_s"),
        "utilization_fraction": first.get("accelerator_utilization_fraction"),
        "gap_fraction": gap.get("total_fraction"),
        "gap_fraction_by_class": gap.get("by_class"),
        "bottleneck": (first.get("verdict") or {}).get("bottleneck"),
        "seconds_per_sample": cpu.get("seconds_per_sample"),
        "workers_rss_bytes": cpu.get("workers_rss_bytes"),
    }


def _serial_of(record: Record, groups: Sequence[Sequence[Record]]) -> Sequence[Record] | None:
    """The serial runs of the same work: with the same decoder and output where there are several."""
    wanted = _key(record["case"], *OF_THE_LOADER)
    found = [
        group
        for group in groups
        if group[0]["case"]["loader"] == "serial" and _key(group[0]["case"], *OF_THE_LOADER) == wanted
    ]
    found.sort(key=lambda group: sum(group[0]["case"][name] != record["case"][name] for name in ("decoder", "output")))
    return found[0] if found else None


def knees(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each set of runs that differ in workers alone: the least workers within 3 % of the best rate.

    {case (of the knee), workers, tried[], of_best_fraction, seconds_per_sample, workers_rss_bytes, is_last: the most
    workers tried are the knee, so that more might give more}.
    """
    found = []
    for group in _grouped(rows, "workers"):
        ordered = sorted(group, key=lambda row: int(row["case"]["workers"]))
        if len(ordered) < 2:
            continue
        best = max(row["rate"]["value"] for row in ordered)
        knee = next(row for row in ordered if row["rate"]["value"] >= PARITY * best)
        found.append(
            {
                "case": knee["case"],
                "workers": knee["case"]["workers"],
                "tried": [row["case"]["workers"] for row in ordered],
                "of_best_fraction": knee["rate"]["value"] / best,
                "seconds_per_sample": knee["seconds_per_sample"],
                "workers_rss_bytes": knee["workers_rss_bytes"],
                "is_last": knee is ordered[-1],
            }
        )
    return found


def flips(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Where the verdict changes along the resolution, and along the workers.

    {along, at [before, after], bottlenecks [before, after], case (of the latter)}. Undetermined runs are passed over.
    """
    found = []
    for along, varying in (("resolution", ("resolution", "dataset")), ("workers", ("workers",))):
        for group in _grouped(rows, *varying):
            ruled = [
                row
                for row in sorted(group, key=lambda row: int(row["case"][along] or 0))
                if row["bottleneck"] not in UNRULED
            ]
            for before, after in itertools.pairwise(ruled):
                if before["bottleneck"] != after["bottleneck"]:
                    found.append(
                        {
                            "along": along,
                            "at": [before["case"][along], after["case"][along]],
                            "bottlenecks": [before["bottleneck"], after["bottleneck"]],
                            "case": after["case"],
                        }
                    )
    return found
