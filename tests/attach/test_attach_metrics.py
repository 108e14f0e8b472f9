"""What is found of a fleet as metrics: read by Prometheus' own parser, and by OpenTelemetry's SDK."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attach_facts import NFS, attached, job

from loaderbench.attach import find
from loaderbench.attach.facts import Attach
from loaderbench.attach.judge import judge
from loaderbench.attach.metrics import Gauge, gauges, prometheus_text, script_of, send
from loaderbench.cases.options import Price
from tests.commands import call

SLOW = job([("file", "", 0.04), ("running", "", 0.01)], [("running", "", 0.005)], pid=1, files=(NFS,))
BUSY = job([("running", "", 0.001)], [("running", "", 0.05)], pid=2)


def found() -> Attach:
    jobs = (replace(SLOW, command='python /home/me/"a b".py --token secret'), replace(BUSY, command="python busy.py"))
    return judge(attached(*jobs, price=Price(2.0, "EUR")))


def parsed(text: str) -> dict[str, list[Any]]:
    parser = pytest.importorskip("prometheus_client.parser")
    return {family.name: family.samples for family in parser.text_string_to_metric_families(text)}


def test_prometheus_reads_what_was_found() -> None:
    seen = found()
    metrics = parsed(prometheus_text(gauges(seen, 1000.5)))
    assert metrics["loaderbench_jobs"][0].value == 2 and metrics["loaderbench_looked_at_seconds"][0].value == 1000.5
    waits = {one.labels["pid"]: one.value for one in metrics["loaderbench_waiting_fraction"]}
    assert waits["1"] > 0.7 and waits["2"] < 0.1
    limited = {one.labels["pid"]: one.labels["cause"] for one in metrics["loaderbench_limited_by"]}
    assert limited["1"] == "storage" and limited == {str(one.pid): one.verdict.bottleneck for one in seen.jobs}
    (cost,) = metrics["loaderbench_cost_per_hour"]
    assert cost.labels["pid"] == "1" and cost.labels["currency"] == "EUR" and 1.0 < cost.value < 2.0
    (least,) = [
        one
        for one in metrics["loaderbench_gain_at_least"]
        if (one.labels["pid"], one.labels["cause"]) == ("1", "storage")
    ]
    gain = seen.jobs[0].verdict.gain
    assert gain is not None and least.value == gain.low
    assert "secret" not in prometheus_text(gauges(seen, 0.0))


def test_labels_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    (sample,) = parsed(prometheus_text([Gauge("one", "of\nit", [({"script": odd}, 1.0)])]))["one"]
    assert sample.labels == {"script": odd}


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python -u /a/train.py --key x", "train.py"),
        ("python -m pkg.train", "pkg.train"),
        ("python 'un", "'un"),
        ("", "?"),
    ],
)
def test_a_script_is_named_without_its_arguments(command: str, script: str) -> None:
    assert script_of(command) == script


def test_opentelemetry_gets_the_same() -> None:
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    kept: dict[str, list[tuple[dict[str, str], float]]] = {}

    class Keeps(export.MetricExporter):  # type: ignore[misc,name-defined]
        def export(self, metrics_data: Any, timeout_millis: float = 0, **more: Any) -> Any:
            for resource in metrics_data.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        kept[metric.name] = [(dict(one.attributes), one.value) for one in metric.data.data_points]
            return export.MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 0) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 0, **more: Any) -> None: ...

    metrics = gauges(found(), 1000.5)
    assert send(metrics, Keeps())
    assert kept == {one.name: [(dict(labels), value) for labels, value in one.values] for one in metrics}


def test_a_machine_without_jobs_says_so_in_place_of_old_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "jobs_among", lambda processes: [])
    target = tmp_path / "loaderbench.prom"
    target.write_text("old")
    ended = call("attach", "--all", "--metrics", target, "--results", tmp_path / "results")
    assert ended.code == 0, ended.err
    metrics = parsed(target.read_text())
    assert metrics["loaderbench_jobs"][0].value == 0 and set(metrics) == {
        "loaderbench_jobs",
        "loaderbench_looked_at_seconds",
    }
    new = tmp_path / "new.prom"
    assert call("attach", "--all", "--metrics", new, "--results", tmp_path / "results").code == 0
    assert stat.S_IMODE(new.stat().st_mode) & 0o044 == 0o044  # the exporter is another user
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".prom"] in ([], ["results"])


def test_metrics_without_a_job_are_refused(tmp_path: Path) -> None:
    ended = call("attach", "--metrics", tmp_path / "x.prom")
    assert ended.code == 2 and "--all" in ended.err and len(ended.err.splitlines()) == 1
