"""`loaderbench ledger`: compares predictions with measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, write_json
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaderbench.recording.ledger import Ledger, LedgerKind
    from loaderbench.recording.store import Store

LAST = 20
"""Entries that are shown."""


@with_options(without=("quiet",))
def ledger(
    *,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help="Show only this kind: epoch, validation, training, gain, whatif, memory, fit or split; may be "
            "repeated",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include other machines' entries")] = False,
    last: Annotated[int, typer.Option(help="Show this many of the newest entries")] = LAST,
    output: OutputOptions,
) -> None:
    """Compare predictions with measurements: forecasts, advice, what-ifs, memory, largest batches, splits."""
    from loaderbench.cases.study import check_choice
    from loaderbench.recording.ledger import LEDGER_KINDS
    from loaderbench.recording.store import Store
    from loaderbench.reporting.console import print_result
    from loaderbench.reporting.format import cleaned
    from loaderbench.reporting.ledger import ledger_json, ledger_result

    check_json_target(output.json_out)
    wanted = [check_choice("--kind", kind, LEDGER_KINDS) for kind in kinds or ()]
    if last < 1:
        raise ConfigError(f"--last must be 1 or more, not {last}")
    found = _read(Store(output.results), wanted, every=every)
    if output.json_out is not None:
        write_json(ledger_json(found), output.json_out)
        return
    print_result(ledger_result(cleaned(found), last=last, kinds=wanted))


def _read(store: Store, kinds: Sequence[LedgerKind], *, every: bool) -> Ledger:
    """The store's ledger. `kinds`: none for all; `every`: of every machine."""
    from dataclasses import replace

    from loaderbench.analysis.ledger import ledger_of
    from loaderbench.machine import environment
    from loaderbench.studies.ledger import collect

    collected = collect(store)
    entries = [entry for entry in collected.entries if not kinds or entry.kind in kinds]
    found = ledger_of(entries, None if every else environment())
    return replace(found, num_unreadable=collected.num_unreadable)
