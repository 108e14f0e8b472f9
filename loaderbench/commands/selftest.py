"""`loaderbench selftest`: are the verdicts right on this machine?"""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench.commands.kept import print_study, write_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, say


@with_options(without=("quiet",))
def selftest(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Run 16 cases and 6 nulls only; takes 5 to 7 minutes")] = False,
    device: Annotated[
        str, typer.Option(help="auto, cpu[:THREADS], cuda[:N], xpu[:N], emulated[:PROFILE][xF]")
    ] = "auto",
    beside: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=1024, help="Busy processes to run with each case, as on a shared machine"),
    ] = 0,
    only: Annotated[
        str | None,
        typer.Option(metavar="TEXT,TEXT", help="Run only cases whose name contains one of these, e.g. serial,stalls"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted self-test")] = False,
    output: OutputOptions,
) -> None:
    """Slow runs down by known causes on this machine, and check the verdicts against a stopwatch."""
    from loaderbench.selftest.request import request_for

    check_json_target(output.json_out)
    request = request_for(device, quick=quick, resume=resume, beside=beside, only=only)
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.recording.studies import SelfTest
    from loaderbench.selftest.study import SelfTestStudy

    store = Store(output.results)
    store.check_writable()
    study = SelfTestStudy(request, store, say).run()
    write_study(study, output)
    print_study(study, output)
    assert isinstance(study.findings, SelfTest)
    if study.findings.failed or not (study.findings.cases or study.findings.alike):
        raise typer.Exit(1)
