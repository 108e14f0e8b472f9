"""Two sides measured alike: which is faster and by what factor, and where the slower one would catch up.

Everything is taken from records; ratios are images/s of `b` ÷ those of `a`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from loaderbench.analysis.statistics import t_quantile

Record = Mapping[str, Any]

PARITY = 0.97
"""From this part of the other side's best rate on a side has caught up: the knee's 3 %."""
DATA_SET = ("dataset", "dataset_name")
"""The fields of Case that name the storage."""
UNCOMPARED_FIELDS = ("repeat",)
"""Which of several equal runs it is."""
UNCOMPARED_FACTS = ("cpu_limit_reason", "memory_limit_source", "gpus_reason")
"""Explanations, not properties, of the machine."""

ONE_RUN = "one run each: their 95 % intervals combined on a log scale (MOVER)"
ROUNDS = "the wider of Student's t over the rounds and the runs' own intervals combined, on a log scale, 95 %"


# -- rates and ratios ------------------------------------------------------------------------------------


def _log_rate(record: Record) -> tuple[float, float, float] | None:
    """(ln rate, distance to its interval's low end, to its high end); NaN ends where there is no interval."""
    rate = record.get("throughput")
    if rate is None:
        return None
    value, low, high = rate["value"], rate["low"], rate["high"]
    if rate["n"] < 2 or low is None or high is None or low <= 0:
        return float(np.log(value)), float("nan"), float("nan")
    return float(np.log(value)), float(np.log(value / low)), float(np.log(high / value))


def _estimate(logs: Sequence[tuple[float, float, float]], unit: str, num_blocks: int) -> dict[str, Any]:
    """exp of the logs' mean. The interval's ends are null where nothing tells how wide it is."""
    value, down, up = np.array(logs).T
    k = len(logs)
    low, high = np.sqrt((down**2).sum()) / k, np.sqrt((up**2).sum()) / k
    if k > 1:
        between = t_quantile(k - 1) * value.std(ddof=1) / np.sqrt(k)
        low, high = np.fmax(low, between), np.fmax(high, between)  # NaN gives way to what is known
    centre = value.mean()

    def end(log: float) -> float | None:
        return float(np.exp(log)) if np.isfinite(log) else None

    return {
        "value": float(np.exp(centre)),
        "low": end(centre - low),
        "high": end(centre + high),
        "unit": unit,
        "n": k if k > 1 else num_blocks,
        "method": ROUNDS if k > 1 else ONE_RUN,
    }


def rate_of(records: Iterable[Record | None]) -> dict[str, Any] | None:
    """Samples/s over equal runs, their geometric mean; None where none was measured.

    Several processes: the process is the unit (measurement.md, `Statistics`).
    """
    measured = [one for one in records if one is not None and one.get("throughput") is not None]
    logs = [log for one in measured if (log := _log_rate(one)) is not None]
    return _estimate(logs, "samples/s", measured[0]["throughput"]["n"]) if logs else None


def ratio_of(a: Sequence[Record | None], b: Sequence[Record | None]) -> dict[str, Any] | None:
    """Samples/s of `b` ÷ `a`, round by round, so that what a round met meets both; None without a whole round.

    A round's interval: Zou & Donner 2008, Statistics in Medicine 27, 1693 (MOVER), for a difference of logs.
    Several rounds: Student's t over their ratios, or those intervals combined, whichever is wider: of two or
    three rounds some agree by chance.
    """
    logs, num_blocks = [], []
    for first, second in zip(a, b, strict=True):
        if first is None or second is None:
            continue
        before, after = _log_rate(first), _log_rate(second)
        if before is not None and after is not None:
            logs.append((after[0] - before[0], np.hypot(after[1], before[2]), np.hypot(after[2], before[1])))
            num_blocks.append(min(first["throughput"]["n"], second["throughput"]["n"]))
    return _estimate(logs, "ratio", num_blocks[0]) if logs else None


def outcome(ratio: Mapping[str, Any] | None) -> str | None:
    """How `b` does beside `a`: faster, slower or indistinguishable; None where there is no ratio."""
    if ratio is None:
        return None
    if ratio["low"] is not None and ratio["low"] > 1:
        return "faster"
    if ratio["high"] is not None and ratio["high"] < 1:
        return "slower"
    return "indistinguishable"


def is_regression(ratio: Mapping[str, Any], threshold: float) -> bool:
    """Whether `b` is slower than `a` by more than the fraction `threshold`, with the whole interval."""
    return ratio["high"] is not None and bool(ratio["high"] < 1 - threshold)


# -- what differs ----------------------------------------------------------------------------------------


def _flat(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    facts = {f"environment.{name}": value for name, value in (environment or {}).items() if name != "packages"}
    packages = (environment or {}).get("packages") or {}
    return facts | {f"environment.packages.{name}": version for name, version in packages.items()}


def differing(a: Record, b: Record) -> list[dict[str, Any]]:
    """{field, a, b} for each field of Case in which two records differ, then for each fact of their machines."""
    skipped = {*UNCOMPARED_FIELDS, *(f"environment.{name}" for name in UNCOMPARED_FACTS)}
    found = []
    for first, second in ((a["case"], b["case"]), (_flat(a.get("environment")), _flat(b.get("environment")))):
        if not first or not second:  # a run that failed early may not know its machine
            continue
        names = [name for name in dict.fromkeys([*first, *second]) if name not in skipped]
        found += [
            {"field": name, "a": first.get(name), "b": second.get(name)}
            for name in names
            if first.get(name) != second.get(name)
        ]
    return found


def compared_factor(differs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields that two runs are compared in: the data set's where they differ, else the only one that does."""
    names = [str(one["field"]) for one in differs]
    return [name for name in names if name in DATA_SET] or (names if len(names) == 1 else [])


# -- one side --------------------------------------------------------------------------------------------


def _part(record: Record, *path: str) -> Any:
    value: Any = record
    for name in path:
        if value is None:
            return None
        value = value.get(name)
    return value


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _agreed(values: Iterable[Any]) -> Any:
    """The one value that all have; None where they differ."""
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else None


def _probed_file_s(record: Record, lanes: int) -> dict[str, Any] | None:
    """Seconds to read a file {p50, p95, p99}, of the probe's stage with as many `readers` as the run, or the next
    fewer ones."""
    stages = [one for one in _part(record, "storage", "ceiling", "stages") or [] if one["file_s"] is not None]
    if not stages:
        return None
    fewer = [one for one in stages if one["readers"] <= lanes]
    stage = max(fewer, key=lambda one: int(one["readers"])) if fewer else stages[0]
    return {"readers": stage["readers"], **stage["file_s"]}


def _file_read_s(records: Sequence[Record], lanes: int) -> dict[str, Any] | None:
    found = [one for record in records if (one := _probed_file_s(record, lanes)) is not None]
    readers = _agreed(one["readers"] for one in found)
    if readers is None:
        return None
    return {"readers": readers, **{name: _mean(one.get(name) for one in found) for name in ("p50", "p95", "p99")}}


def _storage(records: Sequence[Record], lanes: int) -> dict[str, Any]:
    def each(*path: str) -> list[Any]:
        return [_part(record, "storage", *path) for record in records]

    moved = _mean(each("moved_fraction"))
    nfs = {name: _mean(each("nfs", f"{name}_s")) for name in ("rtt", "queue", "exe")}
    return {
        "source": _agreed(each("source")),
        "cache_state": _agreed(each("cache_state")),
        "cold_proven": all(each("cold_proven")),
        "bytes_read": _sum(each("bytes_read")),
        "bandwidth_bytes_per_s": _mean(each("bandwidth_bytes_per_s")),
        "operations_per_s": _mean(_part(one, "nfs", "operations_per_s") or _part(one, "reads_per_s") for one in each()),
        "file_read_s": _file_read_s(records, lanes),
        **{f"{name}_s": value for name, value in nfs.items()},
        "in_flight": _mean(each("nfs", "in_flight")),
        "retransmits": _sum(each("nfs", "retransmits")),
        "client_cache_hit_fraction": None if moved is None else min(1.0, max(0.0, 1.0 - moved)),
        "resident_before_fraction": _mean(each("residency_fraction", "before")),
        "mean_file_bytes": _mean(each("mean_file_bytes")),
        "ceiling_bytes_per_s": _mean(each("ceiling_bytes_per_s")),
        "ceiling_readers": _agreed(each("ceiling", "readers")),
        "ceiling_still_rising": any(each("ceiling", "still_rising")),
        "bound_by": _agreed(each("ceiling", "bound_by")),
    }


def _more_workers(records: Sequence[Record]) -> dict[str, Any] | None:
    """What the runs' advice predicts of more workers alone, the first that has it; None: it was not advised."""
    for record in records:
        for one in _part(record, "verdict", "advice") or []:
            if set(one.get("change") or ()) == {"workers"} and one["predicted_speedup"] is not None:
                rate, gain = record["throughput"]["value"], one["predicted_speedup"]
                predicted = {end: rate * gain[end] for end in ("value", "low", "high")}
                return {"workers": one["change"]["workers"], "samples_per_s": predicted, "method": gain["method"]}
    return None


def side(records: Sequence[Record]) -> dict[str, Any]:
    """One side's equal runs as one: rates pooled, other figures the runs' means, bytes and retransmits their sums."""
    measured = [one for one in records if one.get("throughput") is not None]
    lanes = max(1, records[0]["case"]["workers"]) if records else 1
    bottlenecks = sorted({str(_part(one, "verdict", "bottleneck")) for one in measured})
    names = dict.fromkeys(name for one in measured for name in one.get("stages") or ())
    return {
        "runs": [one["run_id"] for one in records],
        "failures": [
            {"run_id": one["run_id"], "status": one["status"], "message": _part(one, "failure", "message")}
            for one in records
            if one.get("throughput") is None
        ],
        "throughput": rate_of(measured),
        "accelerator_utilization_fraction": _mean(one.get("accelerator_utilization_fraction") for one in measured),
        "bottleneck": " or ".join(bottlenecks) or None,
        "summary": _part(measured[-1], "verdict", "summary") if measured else None,
        "stages": {name: _mean(_part(one, "stages", name) for one in measured) for name in names} or None,
        "storage": _storage(measured, lanes) if measured else None,
        "more_workers": _more_workers(measured),
    }


# -- both ------------------------------------------------------------------------------------------------


def pair(a: Sequence[Record | None], b: Sequence[Record | None]) -> dict[str, Any]:
    """Two sides' runs of one configuration, round by round; None for a run that is not there."""
    ratio = ratio_of(a, b)
    first, second = ([one for one in records if one is not None] for records in (a, b))
    case = (first or second)[0]["case"]
    return {
        "cache": case["cache"],
        "workers": case["workers"],
        "ratio": ratio,
        "outcome": outcome(ratio),
        "a": side(first),
        "b": side(second),
    }


def _pairs(a: Sequence[Record], b: Sequence[Record]) -> list[dict[str, Any]]:
    """The records of each cache state and number of workers, paired by round, in the order of appearance."""

    def by_configuration(records: Sequence[Record]) -> dict[tuple[str, int], dict[int, Record]]:
        found: dict[tuple[str, int], dict[int, Record]] = {}
        for one in records:
            case = one["case"]
            found.setdefault((case["cache"], case["workers"]), {})[case["repeat"]] = one
        return found

    first, second = by_configuration(a), by_configuration(b)
    pairs = []
    for key in dict.fromkeys([*first, *second]):
        left, right = first.get(key, {}), second.get(key, {})
        rounds = sorted({*left, *right})
        pairs.append(pair([left.get(number) for number in rounds], [right.get(number) for number in rounds]))
    return pairs


def parity(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """At how many workers `b` reaches PARITY of `a`'s best rate, and what its storage lacks; None: not measured.

    `pairs`: those of one cache state. `workers` by their `basis`: `measured`; `undetermined`, where only the
    intervals reach it; `predicted` by the advice of b's runs. Without any, `workers` is null and `not_by` the most
    workers that were measured or predicted for.
    """
    known_a = [one for one in pairs if one["a"]["throughput"] is not None]
    known_b = [one for one in pairs if one["b"]["throughput"] is not None]
    if not known_a or not known_b:
        return None
    best_a = max(known_a, key=lambda one: float(one["a"]["throughput"]["value"]))
    best_b = max(known_b, key=lambda one: float(one["b"]["throughput"]["value"]))
    target, least = (PARITY * (best_a["a"]["throughput"][end] or 0.0) for end in ("value", "low"))
    reached = [one["workers"] for one in known_b if one["b"]["throughput"]["value"] >= target]
    perhaps = [one["workers"] for one in known_b if (one["b"]["throughput"]["high"] or np.inf) >= least]
    most = max(one["workers"] for one in known_b)
    predicted = _best_prediction(known_b, most)
    workers, basis = None, None
    if reached:
        workers, basis = min(reached), "measured"
    elif perhaps:
        workers, basis = min(perhaps), "undetermined"
    elif predicted is not None and predicted["samples_per_s"]["value"] >= target:
        workers, basis = predicted["workers"], "predicted"
    return {
        "cache": best_a["cache"],
        "target_samples_per_s": best_a["a"]["throughput"]["value"],
        "target_workers": best_a["workers"],
        "best_samples_per_s": best_b["b"]["throughput"]["value"],
        "best_workers": best_b["workers"],
        "workers": workers,
        "basis": basis,
        "not_by": None if basis else max(most, 0 if predicted is None else predicted["workers"]),
        "predicted": None if reached else predicted,
        "needs": None if reached or perhaps else _needs(known_b, best_a),
    }


def _best_prediction(known_b: Sequence[Mapping[str, Any]], most: int) -> dict[str, Any] | None:
    """Of what b's runs predict for more workers than were measured, the fastest."""
    found = [
        {**more, "from_workers": one["workers"]}
        for one in known_b
        if (more := one["b"]["more_workers"]) is not None and more["workers"] > most
    ]
    return max(found, key=lambda one: float(one["samples_per_s"]["value"]), default=None)


def _needs(known_b: Sequence[Mapping[str, Any]], best_a: Mapping[str, Any]) -> dict[str, Any]:
    """What b's storage would have to give for a's best rate, the target, beside what it gives.

    bytes_per_s   target × the files' mean size, beside the storage's measured ceiling
    file_read_s   workers ÷ target − b's own seconds an image in decode, augment and collate, beside its seconds
                  in reading: with a's best number of workers, or the most that b was measured with
    """
    target = best_a["a"]["throughput"]["value"]
    at = next((one for one in known_b if one["workers"] == best_a["workers"]), None)
    at = at or max(known_b, key=lambda one: int(one["workers"]))
    storage, stages = at["b"]["storage"] or {}, at["b"]["stages"] or {}
    file_bytes = storage.get("mean_file_bytes") or _part(best_a, "a", "storage", "mean_file_bytes")
    others = [seconds for name, seconds in stages.items() if name != "read"]
    rest = None if not others or None in others else sum(others)
    left = None if rest is None else max(1, at["workers"]) / target - rest
    return {
        "bytes_per_s": None if file_bytes is None else target * file_bytes,
        "gives_bytes_per_s": storage.get("ceiling_bytes_per_s"),
        "gives_still_rising": storage.get("ceiling_still_rising"),
        "bound_by": storage.get("bound_by"),
        "workers": at["workers"],
        "file_read_s": left if left is not None and left > 0 else None,
        "takes_file_read_s": stages.get("read"),
    }


def compare(a: Sequence[Record], b: Sequence[Record]) -> dict[str, Any]:
    """The study of two data sets. `a`, `b`: records of all rounds, cache states and numbers of workers.

    `pairs`: one a cache state and number of workers. `parities`: one a cache state. `a`, `b`, `ratio`, `outcome`
    and `parity` are those of the leading pair: the first cache state, with the workers that are best for `a`.
    """
    pairs = _pairs(a, b)
    states = [list(group) for _, group in groupby(pairs, key=lambda one: str(one["cache"]))]
    parities = [found for group in states if (found := parity(group)) is not None]
    leading = _leading(pairs, parities)
    return {
        **_of_pair(leading, [*a, *b], list(DATA_SET)),
        "parity": next(iter(parities), None),
        "pairs": pairs,
        "parities": parities,
    }


def _leading(pairs: Sequence[Mapping[str, Any]], parities: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    best = {(one["cache"], one["target_workers"]) for one in parities[:1]}
    chosen = [one for one in pairs if (one["cache"], one["workers"]) in best and one["ratio"] is not None]
    return next(iter(chosen or [one for one in pairs if one["ratio"] is not None]), None)


def _of_pair(chosen: Mapping[str, Any] | None, records: Sequence[Record], factor: list[str]) -> dict[str, Any]:
    nothing = {"a": None, "b": None, "ratio": None, "outcome": None, "differs": [], "factor": factor}
    if chosen is None:
        return nothing
    measured = {one["run_id"]: one for one in records if one.get("throughput") is not None}
    a, b = (next(measured[run] for run in chosen[name]["runs"] if run in measured) for name in ("a", "b"))
    differs = [one for one in differing(a, b) if one["field"] not in factor]
    return {"a": a, "b": b, "ratio": chosen["ratio"], "outcome": chosen["outcome"], "differs": differs,
            "factor": factor}  # fmt: skip


def compare_two(a: Record, b: Record, factor: list[str] | None = None) -> dict[str, Any]:
    """Two stored runs, in the form of `compare`. `factor`: the fields compared in; None: found (`compared_factor`)."""
    differs = differing(a, b)
    chosen = compared_factor(differs) if factor is None else factor
    found = pair([a], [b])
    alike = set(chosen) & set(DATA_SET) and all(a["case"][name] == b["case"][name] for name in ("workers", "cache"))
    parities = [one for one in [parity([found])] if one is not None and alike]
    return {
        "a": a,
        "b": b,
        "ratio": found["ratio"],
        "outcome": found["outcome"],
        "differs": [one for one in differs if one["field"] not in chosen],
        "factor": chosen,
        "parity": next(iter(parities), None),
        "pairs": [found],
        "parities": parities,
    }
