"""`loaderbench whatif`: what a stored run would take if something were another one."""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench.cases.options import WhatifOptions
from loaderbench.commands.kept import run_study, show_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target


@with_options()
def whatif(
    *,
    run: Annotated[str, typer.Argument(help="Stored run: an id, a unique prefix of it, a folder, or latest")],
    asked: WhatifOptions,
    output: OutputOptions,
) -> None:
    """Predict a stored run's speed with other workers, another storage, another device, or many ranks."""
    from loaderbench.cases.study import check_whatif

    check_whatif(asked)  # before anything large is imported

    from loaderbench.recording.store import Store
    from loaderbench.studies.whatif import WhatifStudy, predicted_of

    check_json_target(output.json_out)
    store = Store(output.results)
    facts = predicted_of(run, asked, store)
    store.check_writable()
    study = WhatifStudy(facts, store)
    ended = run_study(study, output)
    show_study(study, output)
    if ended is not None:
        raise Interrupted("interrupted: the prediction is kept", ended)
