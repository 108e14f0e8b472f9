"""What a study says beyond its single runs: times over serial, the knee in workers, where the bottleneck flips.

Everything is taken from the runs' records. Repeats of a case are one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loaderbench.analysis.comparison import PARITY, rate_of, ratio_of
from loaderbench.cases.case import SHORT_RUN_STEPS, Case

Record = Mapping[str, Any]
Row = dict[str, Any]

OF_THE_LOADER = (
    "loader",
    "workers",
    "decoder",
    "decode_scale",
    "output",
    "prefetch",
    "buffer_ratio",
    "loader_options",
    "decoder_options",
)
"""Fields of Case in which a run may differ from the serial one that it is held against."""
UNRULED = ("undetermined", None)
OF_A_STUDY = ("dataset_name", "model", "mode", "precision", "device", "input_size", "cache", "overlap")
"""Fields of Case that the runs of one study share, with the data set's place; all others are what it varies."""
EFFORT = ("duration_s", "steps", "warmup", "ci_target", "arms", "kernels", "max_bytes", "max_failure_fraction")
"""Fields of Case that say how long and how thoroughly to measure, not what: such runs are of one case."""


def _key(case: Mapping[str, Any], *without: str) -> str:
    # A buffer that is a part of the run has its prefetch follow from the workers.
    follows = {"prefetch"} if case.get("buffer_ratio") is not None else set()
    return repr(
        sorted((name, str(value)) for name, value in case.items() if name not in {"repeat", *follows, *without})
    )


def _grouped(records: Iterable[Record], *without: str) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for one in records:
        groups.setdefault(_key(one["case"], *without), []).append(one)
    return list(groups.values())


def gather(records: Iterable[Record]) -> list[list[Record]]:
    """Stored runs, oldest first, as studies: the runs of one data set, workload and machine; newest study first.

    Of a case that was measured more than once the newest run with a verdict is taken, else the newest that ended
    well, else the newest.
    """
    studies: dict[str, dict[str, Record]] = {}
    for one in records:
        case = Case.from_json(one["case"]).to_json()  # runs stored by older versions lack fields
        study = repr((_machine(one), _place(case), [case[name] for name in OF_A_STUDY]))
        latest = studies.setdefault(study, {})
        key = repr([value for name, value in sorted(case.items()) if name not in EFFORT])
        if key not in latest or _worth(one) >= _worth(latest[key]):
            latest[key] = one
    groups = [list(latest.values()) for latest in studies.values()]
    return sorted(groups, key=lambda group: max(one["started_at"] for one in group), reverse=True)


def _worth(record: Record) -> int:
    """2: it has a verdict; 1: it ended well; 0: neither."""
    if record["status"] != "ok":
        return 0
    return 1 if (record.get("verdict") or {}).get("bottleneck") in UNRULED else 2


def _place(case: Mapping[str, Any]) -> str:
    """The data set's folder without its variant's, so that resolutions of one set are one and two storages are two."""
    path = str(case["dataset"]).rstrip("/")
    return path.removesuffix(f"/{case['resolution']}")


def _machine(record: Record) -> tuple[Any, ...]:
    environment = record.get("environment") or {}
    return tuple(str(environment.get(name)) for name in ("cpu_model", "cpus_usable", "gpus"))


def conclusions(rows: Sequence[Row]) -> list[Row]:
    """For each resolution, small ones first, the row of the highest rate: what limits it limits the study there.

    A row without a verdict counts only where none has one.
    """
    best: dict[int, Row] = {}

    def order(row: Row) -> tuple[bool, float]:
        return row["bottleneck"] not in UNRULED, row["rate"]["value"]

    for row in rows:
        resolution = row["case"].get("resolution") or 0
        if resolution not in best or order(row) > order(best[resolution]):
            best[resolution] = row
    return [best[resolution] for resolution in sorted(best)]


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """{num_steps, rows[], knees[], flips[]} over the runs that were measured.

    A row: {case, run_ids, rate, total_s of `num_steps` steps, faster_than_serial (None where serial was not
    measured), batch_bytes, read_bytes_per_s and ceiling_bytes_per_s of the storage (None where it was not read),
    utilization_fraction, gap_fraction, gap_fraction_by_class, gaps_per_step and gap_p95_s of kernel gaps, bottleneck
    and speedup_if_removed (of it, of all of them if mixed; None for compute and where it is not known),
    seconds_per_sample of CPU, workers_rss_bytes, short_run (of the last repeat)}.
    """
    measured = [one for one in records if one["status"] == "ok" and one.get("throughput")]
    groups = _grouped(measured)
    num_steps = measured[0]["case"].get("steps") or SHORT_RUN_STEPS if measured else SHORT_RUN_STEPS
    rows = [_row(group, _serial_of(group[0], groups), num_steps) for group in groups]
    return {"num_steps": num_steps, "rows": rows, "knees": knees(rows), "flips": flips(rows)}


def _row(runs: Sequence[Record], serial: Sequence[Record] | None, num_steps: int) -> Row:
    case, rate = runs[0]["case"], rate_of(runs)
    assert rate is not None
    gaps = [(one.get("device") or {}).get("kernel_gap") or {} for one in runs]
    storages = [one.get("storage") or {} for one in runs]
    cpus = [one.get("cpu") or {} for one in runs]
    mean_bytes = _mean(one.get("mean_file_bytes") for one in storages)
    faster = None
    if serial is not None and serial is not runs:
        before, after = ({one["case"]["repeat"]: one for one in some} for some in (serial, runs))
        rounds = sorted({*before, *after})
        faster = ratio_of([before.get(number) for number in rounds], [after.get(number) for number in rounds])
    # A warm run reads nothing: what a shared disk's counter saw meanwhile was others'.
    read = _mean(None if one.get("cache_state") == "warm" else one.get("bandwidth_bytes_per_s") for one in storages)
    verdicts = {(one.get("verdict") or {}).get("bottleneck") for one in runs}
    bottleneck = verdicts.pop() if len(verdicts) == 1 else "undetermined"
    verdict = runs[-1].get("verdict") or {}
    removed = (verdict.get("speedup_if_removed") or {}).get(bottleneck)
    if bottleneck == "mixed":
        removed = verdict.get("joint_speedup")
    return {
        "case": case,
        "run_ids": [one["run_id"] for one in runs],
        "rate": rate,
        "total_s": num_steps * case["batch_size"] / rate["value"],
        "faster_than_serial": faster,
        "batch_bytes": None if mean_bytes is None else mean_bytes * case["batch_size"],
        "read_bytes_per_s": read,
        "ceiling_bytes_per_s": _mean(one.get("ceiling_bytes_per_s") for one in storages),
        "utilization_fraction": _mean(one.get("accelerator_utilization_fraction") for one in runs),
        "gap_fraction": _mean(one.get("total_fraction") for one in gaps),
        "gap_fraction_by_class": gaps[0].get("by_class"),
        "gaps_per_step": _mean(one.get("count_per_step") for one in gaps),
        "gap_p95_s": _mean(one.get("p95_s") for one in gaps),
        "bottleneck": bottleneck,
        "speedup_if_removed": None if bottleneck == "compute" else removed,
        "seconds_per_sample": _mean(one.get("seconds_per_sample") for one in cpus),
        "short_run": runs[-1].get("short_run"),
        "workers_rss_bytes": _mean(one.get("workers_rss_bytes") for one in cpus),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


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
            at = [row["case"][along] for row in ruled]
            if None in at or len(set(at)) < len(at):  # several data sets of one name and resolution have no order
                continue
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
