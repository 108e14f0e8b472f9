"""`loaderbench list`: what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import write_json

if TYPE_CHECKING:
    from loaderbench.recording.store import ListedRun


@with_options(without=("quiet",))
def list_runs(output: OutputOptions) -> None:
    """List the stored runs, broken ones included."""
    from loaderbench.recording.lines import RunLine
    from loaderbench.recording.store import Store

    store = Store(output.results)
    if output.json_out is not None:
        write_json([_entry(run) for run in store.lines()], output.json_out)
        return
    from loaderbench.reporting.listing import print_list

    stored = store.contents_in_lines(RunLine)
    print_list(stored.runs, studies=stored.studies)


def _entry(run: ListedRun) -> dict[str, object]:
    """One run of `list --json`."""
    record = run.record
    rate = None if record is None else record.throughput
    return {
        "run_id": run.run_id,
        "status": run.status,
        "title": run.title,
        "problem": run.problem,
        "tag": None if record is None else record.tag,
        "started_at": None if record is None else record.started_at,
        "images_per_s": None if rate is None else rate.value,
        "images_per_s_low": None if rate is None else rate.low,
        "images_per_s_high": None if rate is None else rate.high,
        "verdict": None if record is None or record.verdict is None else record.verdict.bottleneck,
    }
