"""`loaderbench watch`: the user's own script, with a verdict."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from loaderbench.cases.options import EVERY_S, RESULTS
from loaderbench.commands.terminal import check_json_target, say, write_json
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from loaderbench.reporting.live import WatchLine
    from loaderbench.studies.watch import ScriptWatch
    from loaderbench.studies.watch_ranks import WatchedRank

PROBES = ("none", "burst", "delay", "shadow")


def watch(
    *,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS]...", help="Your script, and its own arguments"),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as `python -m` does")
    ] = None,
    probes: Annotated[
        str,
        typer.Option(
            help="What is tried on the run: none, burst (hold it until the loader's queue is full), delay (known "
            "delays in short windows, at most 5 % of the time), shadow (a process of its own reads some samples "
            "twice); several with commas between them"
        ),
    ] = "burst",
    every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Store the run so often while it goes on: a script that is killed leaves what was seen; 0: never",
        ),
    ] = EVERY_S,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Set the loader's arguments as advised from its next epoch on, and measure that"),
    ] = False,
    results: Annotated[str, typer.Option(help="Where runs are kept")] = RESULTS,
    json_out: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the record to FILE")] = None,
) -> None:
    """Run your own training script and say what limits it.

    Options for loaderbench come before SCRIPT, all behind it are the script's. What loaderbench says goes to stderr.
    """
    from loaderbench.recording.store import Store
    from loaderbench.reporting.live import WatchLine
    from loaderbench.studies.watch import ScriptWatch
    from loaderbench.studies.watch_writing import Judging, check_every

    given = list(command or ())
    if module is None and not given:
        raise ConfigError("give a script to run: loaderbench watch SCRIPT [ARGS]…, or -m MODULE")
    if json_out == "-":
        raise ConfigError("standard output is the script's own: give --json a FILE")
    probes = _parsed(probes)
    check_every(every)
    rank = _rank(json_out, apply=apply, delays="delay" in probes)
    store = Store(results)
    store.check_writable()
    script, arguments = (given[0], given[1:]) if module is None else (module, given)
    line = WatchLine(Judging(script, None if rank is None else rank.beside))
    watch = ScriptWatch(
        script, arguments, store, as_module=module is not None, probes=probes,
        tell=line.show if sys.stderr.isatty() and (rank is None or rank.speaks) else None, every_s=every or None,
        apply=apply, rank=rank,
    )  # fmt: skip
    _end(watch, line, json_out)


def _rank(json_out: str | None, *, apply: bool, delays: bool) -> WatchedRank | None:
    """Which of several ranks this is. Raises ConfigError where these cannot have what is asked for."""
    from loaderbench.studies.watch_ranks import WatchedRank

    rank = WatchedRank.of_launch(os.environ)
    if rank is not None and (apply or delays):
        raise ConfigError(
            f"{'--apply' if apply else '--probes delay'} is for one process: leave it out under a launcher"
        )
    if rank is None or rank.speaks:
        check_json_target(json_out)
    return rank


def _end(watch: ScriptWatch, line: WatchLine, json_out: str | None) -> NoReturn:
    """Run it, say what was seen, and end as the script does."""
    code = watch.run()
    line.clear()
    sys.stdout.flush()
    _print(watch, json_out)
    if isinstance(code, str):
        say(code)
    raise SystemExit(1 if isinstance(code, str) else code)


def _parsed(probes: str) -> str:
    """The probes, each once, in the order in which they are listed. Raises ConfigError where there is no such one."""
    wanted = [name.strip() for name in probes.split(",")]
    for name in wanted:
        if name not in PROBES:
            raise ConfigError(
                f"unknown --probes '{name}'; use {', '.join(PROBES)}, or several with commas between them"
            )
    if "none" in wanted and len(set(wanted)) > 1:
        raise ConfigError("--probes none goes with no other one")
    return ",".join(name for name in PROBES if name in wanted)


def _print(watch: ScriptWatch, json_out: str | None) -> None:
    from loaderbench.reporting.studies import as_json
    from loaderbench.studies.watch import say_watched

    rank = watch.rank
    if watch.problem is not None and watch.record is None:
        return
    say_watched(watch.record, watch.nothing, rank)
    if json_out is None or watch.record is None or (rank is not None and not rank.speaks):
        return
    study = None if rank is None else rank.study
    if study is None or study.findings is None:
        write_json(watch.record, json_out)
    else:
        write_json(as_json(study.facts, study.findings, study.study_id), json_out)
