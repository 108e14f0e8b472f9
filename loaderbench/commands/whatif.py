"""`loaderbench whatif`: what a stored run would take if something were another one."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loaderbench.cases.options import PriceOptions, WhatifOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import OutputOptions, with_options


@with_options()
def whatif(
    *,
    run: Annotated[str, typer.Argument(help="Stored run: an id, a unique prefix of it, a folder, or latest")],
    asked: WhatifOptions,
    cost: PriceOptions,
    output: OutputOptions,
) -> None:
    """Predict a stored run's speed with other workers, another storage, another device, or many ranks."""
    from loaderbench.cases.study import check_whatif

    check_whatif(asked)  # before anything large is imported

    from loaderbench.recording.store import Store
    from loaderbench.studies.whatif import WhatifStudy, predicted_of

    measure_kept(partial(WhatifStudy, predicted_of(run, asked, Store(output.results), cost.price)), output)
