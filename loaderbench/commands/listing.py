"""`loaderbench list`: what is stored."""

from __future__ import annotations

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import write_json


@with_options(without=("quiet",))
def list_runs(output: OutputOptions) -> None:
    """List the stored runs, broken ones included."""
    from loaderbench.recording.store import Store

    store = Store(output.results)
    runs = store.runs()
    if output.json_out is not None:
        entries = [
            {"run_id": run.run_id, "status": run.status, "title": run.title, "problem": run.problem} for run in runs
        ]
        write_json(entries, output.json_out)
        return
    from loaderbench.reporting.terminal import print_list

    print_list(runs, studies=store.studies())
