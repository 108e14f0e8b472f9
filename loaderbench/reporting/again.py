"""Stored runs judged again, as text: what is the same, and each value that differs."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.analysis.again import Again
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.plain import Json
from loaderbench.printable import counted
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import Console, print_bullets, styled
from loaderbench.reporting.terminal import print_run

LONGEST_VALUE = 60


def print_again(found: Sequence[Again], console: Console, *, diff: bool, single: bool) -> None:
    """For a single run its record; for several a line for each run, and a last line for all."""
    if single and found[0].record is not None:
        print_run(found[0].record, console)
        console.print()
    for one in found:
        if one.problem is not None or one.differences or single:
            console.print(styled(f"{fmt.clean(one.name)}: {_outcome(one)}", "bold red" if one.broken else ""))
        if diff:
            print_bullets(
                console,
                "stored → by today's rules",
                [f"{each.place}: {_shown(each.stored)} → {_shown(each.today)}" for each in one.differences],
            )
    if not single:
        same = sum(one.problem is None and not one.differences for one in found)
        text = f"{same} of {len(found)} are reproduced exactly by rules {RULES_VERSION}"
        if rounded := sum(bool(one.differences) and one.only_rounding for one in found):
            text += f"; {rounded} differ only in the last digits"
        if other := sum(bool(one.differences) and not one.only_rounding for one in found):
            text += f"; {other} differ{'' if diff else ' (--diff shows where)'}"
        if broken := sum(one.problem is not None for one in found):
            text += f"; {broken} cannot be judged"
        console.print(text)


def _outcome(one: Again) -> str:
    if one.problem is not None:
        return fmt.clean(one.problem)
    rules = f"rules {RULES_VERSION}{'' if one.same_rules else f', stored by rules {one.rules_version}'}"
    if not one.differences:
        return f"reproduced exactly by {rules}"
    if one.only_rounding:
        return f"reproduced by {rules} except the last digits of {len(one.differences)} values"
    values = counted(len(one.differences), "value")
    if one.same_rules:
        return f"{values} differ under the same rules: the facts, the record or the code changed"
    return f"{values} differ by {rules}"


def _shown(value: Json) -> str:
    text = "unknown" if value is None else repr(value) if isinstance(value, str) else str(value)
    return fmt.clean(text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…")
