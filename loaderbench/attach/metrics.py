"""What was found of the jobs of a machine, as metrics: Prometheus' text format, or OpenTelemetry's SDK.

The text is for the node exporter's textfile collector (Prometheus, `Exposition formats`, version 0.0.4).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from loaderbench.attach.facts import Attach, JobFound
from loaderbench.lacking import extra

if TYPE_CHECKING:
    from loaderbench.recording.estimate import Estimate

SENT_MS = 10_000
"""For sending to a collector, after which its metrics are given up."""
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Gauge:
    """One metric: its values now."""

    name: str
    help: str
    values: Sequence[tuple[Labels, float]]


def script_of(command: str) -> str:
    """Return the script of a command line, without its folder and arguments, which may hold secrets."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is never closed
        words = command.split()
    named = [word for word in words[1:] if not word.startswith("-")]
    return PurePath((named or words or ["?"])[0]).name


def gauges(found: Attach, looked_at_s: float) -> list[Gauge]:
    """Every metric of what was found. `looked_at_s`: Unix time of the look. What is unknown has no value."""
    jobs = found.jobs
    labels = {job.pid: _labels(job) for job in jobs}

    def each(values: Sequence[tuple[JobFound, float | None]]) -> list[tuple[Labels, float]]:
        return [(labels[job.pid], value) for job, value in values if value is not None]

    def value(estimate: Estimate | None) -> float | None:
        return None if estimate is None else estimate.value

    limited = [
        ({**labels[job.pid], "cause": job.verdict.bottleneck, "detail": job.verdict.cause_detail or "",
          "phase": job.phase}, 1.0) for job in jobs
    ]  # fmt: skip
    gains = [
        ({**labels[job.pid], "cause": cause}, gain)
        for job in jobs
        for cause, gain in job.verdict.speedup_if_removed.items()
    ]
    currency = {} if found.price is None else {"currency": found.price.currency}
    costs = [({**labels[job.pid], **currency}, job.cost.hour.value) for job in jobs if job.cost is not None]
    made = [
        Gauge("loaderbench_jobs", "Training processes that were looked at.", [({}, float(len(jobs)))]),
        Gauge("loaderbench_looked_at_seconds", "When they were looked at, in Unix time.", [({}, looked_at_s)]),
        Gauge("loaderbench_waiting_fraction", "Part of the main thread's time in which it waits for data.",
              each([(job, value(job.waits_for_data)) for job in jobs])),
        Gauge("loaderbench_limited_by", "What limits the job: the labels cause and detail; always 1.", limited),
        Gauge("loaderbench_gain_at_least", "How many times as fast the job is without a cause, at least.",
              [(one, gain.low) for one, gain in gains if gain.low is not None]),
        Gauge("loaderbench_gain_at_most", "How many times as fast the job is without a cause, at most.",
              [(one, gain.high) for one, gain in gains if gain.high is not None]),
        Gauge("loaderbench_steps_per_second", "Batches a second.",
              each([(job, value(job.steps_per_s)) for job in jobs])),
        Gauge("loaderbench_gpu_busy_fraction", "Part of the time in which its GPUs were busy (NVML).",
              each([(job, job.gpu_busy_fraction) for job in jobs])),
        Gauge("loaderbench_cost_per_hour", "What the cause costs an hour, at the price of one machine a job.", costs),
    ]  # fmt: skip
    return [one for one in made if one.values]


def _labels(job: JobFound) -> Labels:
    rank = {} if job.rank is None else {"rank": str(job.rank)}
    return {"pid": str(job.pid), "script": script_of(job.command), **rank}


def prometheus_text(metrics: Sequence[Gauge]) -> str:
    """All of them in Prometheus' text format."""
    lines = []
    for one in metrics:
        lines += [f"# HELP {one.name} {_escaped(one.help, quotes=False)}", f"# TYPE {one.name} gauge"]
        for labels, value in one.values:
            inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{one.name}{f'{{{inner}}}' if inner else ''} {value!r}")
    return "\n".join([*lines, ""])


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def check_opentelemetry() -> None:
    """Raises MissingExtra where OpenTelemetry's SDK or its exporter is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter
        import opentelemetry.sdk.metrics  # noqa: F401
    except ImportError as error:
        raise extra("loaderbench attach --otel", "otel", error) from error


def send(metrics: Sequence[Gauge], exporter: Any = None) -> bool:
    """Send them once by OpenTelemetry's SDK, to where its own variables (OTEL_EXPORTER_OTLP_ENDPOINT …) say. Whether
    they arrived. `exporter`: another one of the SDK's.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    exporter = exporter or OTLPMetricExporter()
    export, arrived = exporter.export, []

    def noted(*given: Any, **more: Any) -> Any:
        result = export(*given, **more)
        arrived.append(result is MetricExportResult.SUCCESS)
        return result

    exporter.export = noted
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    resource = Resource.create()
    if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "loaderbench"}))
    provider = MeterProvider([reader], resource=resource)
    meter = provider.get_meter("loaderbench")
    for one in metrics:
        observed = partial(_as_given, [Observation(value, dict(labels)) for labels, value in one.values])
        meter.create_observable_gauge(one.name, [observed], description=one.help)
    provider.force_flush(SENT_MS)  # an interval without end collects nothing by itself
    provider.shutdown(SENT_MS)
    return bool(arrived) and all(arrived)


def _as_given(observed: Sequence[Any], _: Any) -> Sequence[Any]:
    return observed
