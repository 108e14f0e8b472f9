"""`loaderbench watch`: the user's own script, with a verdict."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loaderbench.cases.options import EVERY_S, RESULTS, Price, PriceOptions, options_of, read
from loaderbench.commands.command import Command
from loaderbench.commands.script_named import script_named
from loaderbench.commands.terminal import check_json_target, write_json
from loaderbench.errors import ConfigError, LoaderbenchError
from loaderbench.lacking import require_torch

if TYPE_CHECKING:
    from loaderbench.recording.record import RunRecord
    from loaderbench.reporting.live import WatchLine
    from loaderbench.studies.watch import ScriptWatch
    from loaderbench.studies.watch_ranks import WatchedRank

PRICE_HELP = options_of(PriceOptions)[0].help
PROBES = ("none", "burst", "delay", "shadow")
Every = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Save progress every SECONDS, first within 30 s, so that a killed script leaves a record; 0: never",
    ),
]
LogTo = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Experiment trackers to log to, comma separated: wandb, mlflow, tensorboard"),
]


class OfAScript(Command):
    """Takes `-mMODULE` too, as Python does. `-m` is a flag here, so that the module's name is where our options end."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_blank(args, self._with_values()))

    def own_part(self, args: list[str]) -> list[str]:
        """The words up to the name of the script, or of the module."""
        return args[: _end_of_own(args, self._with_values()) + 1]

    def _with_values(self) -> set[str]:
        """Names of the options that a value follows."""
        return {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}


def _with_blank(args: list[str], with_values: Container[str]) -> list[str]:
    """`-mMODULE` among our own options as `-m -- MODULE`: it is the name also where it begins with a dash."""
    at = _end_of_own(args, with_values)
    if at < len(args) and args[at].startswith("-m"):
        return [*args[:at], "-m", "--", args[at][2:], *args[at + 1 :]]
    return args


def _end_of_own(args: list[str], with_values: Container[str]) -> int:
    """Find where our own options end: the index of the word that names the script, or of `-mMODULE`."""
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] != "--":
        if args[at].startswith("-m") and args[at] != "-m":
            break
        at += 1 + (args[at] in with_values)
    return at


def watch(
    *,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS]...", help="Your script and its arguments"),
    ] = None,
    as_module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, run as `python -m` would")] = False,
    probes: Annotated[
        str,
        typer.Option(
            help="Probes to try on the run, comma separated: none, burst (pause it until the loader's queue is "
            "full), delay (add known delays in short windows, at most 5 % of the time), shadow (a second "
            "process reads some samples twice)"
        ),
    ] = "burst",
    every: Every = EVERY_S,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Apply the advised loader arguments from the next epoch on, and measure the gain"),
    ] = False,
    log_to: LogTo = None,
    price: Annotated[str | None, typer.Option(metavar="PRICE", help=PRICE_HELP)] = None,
    results: Annotated[str, typer.Option(help="Folder of stored runs")] = RESULTS,
    json_out: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the record to FILE")] = None,
) -> Script:
    """Run your own training script and say what limits it.

    Put loaderbench's options before SCRIPT (or -m MODULE); all later words go to the script.
    loaderbench prints to stderr.
    """
    if not command or not command[0]:
        raise ConfigError("`loaderbench watch` needs a script; try `loaderbench watch train.py`, or `-m MODULE`")
    probes, at_price = _parsed(probes), read("price", Price | None, price)
    script, arguments, as_module = script_named(command, as_module=as_module)
    require_torch("loaderbench watch")
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.reporting.live import WatchLine
    from loaderbench.studies.watch import ScriptWatch
    from loaderbench.studies.watch_writing import Judging, check_every
    from loaderbench.trackers.tracker import names_of

    check_every(every)
    trackers = names_of(log_to)
    alone = {"--apply": apply, "--probes delay": "delay" in probes, "--price": at_price is not None}
    rank = _rank(json_out, [name for name, is_given in alone.items() if is_given])
    target = json_out and str(Path(json_out).absolute())  # the script may go to another folder
    store = Store(results)
    store.check_writable()
    judging = Judging(script, None if rank is None else rank.beside)
    line = WatchLine(judging)
    script_watch = ScriptWatch(
        script, arguments, store, as_module=as_module, probes=probes,
        tell=line.show if sys.stderr.isatty() and (rank is None or rank.speaks) else None, every_s=every or None,
        apply=apply, rank=rank, ended=lambda: _print(script_watch, line, target, at_price), judging=judging,
        log_to=trackers,
    )  # fmt: skip
    return Script(script_watch)


class Script:
    """Runs the watch once the command line is parsed, without the parser's frames in tracebacks."""

    def __init__(self, watch: ScriptWatch) -> None:
        self._watch = watch

    def run(self) -> tuple[Any, bool]:
        """(its exit code, as sys.exit takes it; whether Ctrl-C ended it). Nothing more is to be said."""
        return self._watch.run(), self._watch.interrupted


def _rank(json_out: str | None, alone: Sequence[str]) -> WatchedRank | None:
    """Which of several ranks this is. `alone`: options that were given, and are for one process. Raises ConfigError
    where it cannot have what is asked for."""
    from loaderbench.recording.output import is_standard_output
    from loaderbench.studies.watch_ranks import WatchedRank

    if is_standard_output(json_out):
        raise ConfigError("the script uses standard output: give --json a file")
    rank = WatchedRank.of_launch(os.environ)
    if rank is not None and alone:
        raise ConfigError(f"{alone[0]} works in one process only: leave it out under a launcher")
    if rank is None or rank.speaks:
        check_json_target(json_out)
    return rank


def _parsed(probes: str) -> str:
    """The probes, each once, in the order in which they are listed. Raises ConfigError where there is no such one."""
    wanted = [name.strip() for name in probes.split(",")]
    for name in wanted:
        if name not in PROBES:
            raise ConfigError(f"unknown --probes '{name}'; use one or more of {', '.join(PROBES)}, comma separated")
    if "none" in wanted and len(set(wanted)) > 1:
        raise ConfigError("--probes none excludes all other probes: give it alone")
    return ",".join(name for name in PROBES if name in wanted)


def _print(watch: ScriptWatch, line: WatchLine, json_out: str | None, price: Price | None) -> None:
    """Say what was seen, and write it. Where that cannot be done a line says so: the script ends as it would."""
    from loaderbench.reporting.price import with_price
    from loaderbench.studies.watch import say_problem, say_watched

    if watch.problem is not None and watch.record is None:
        return
    record = None if watch.record is None else with_price(watch.record, price, None)
    try:
        _write(watch, record, json_out)
    except LoaderbenchError as error:
        say_problem(str(error))
    try:
        line.clear()
        say_watched(record, watch.nothing, watch.rank)
    except (Exception, SystemExit) as error:  # rich exits where nobody reads stderr any more
        say_problem(f"the result is stored but cannot be shown: {error!r}")


def _write(watch: ScriptWatch, record: RunRecord | None, json_out: str | None) -> None:
    from loaderbench.reporting.studies import as_json

    rank = watch.rank
    if json_out is None or record is None or (rank is not None and not rank.speaks):
        return
    study = None if rank is None else rank.study
    if study is None or study.findings is None:
        write_json(record, json_out)
    else:
        write_json(as_json(study.facts, study.findings, study.study_id), json_out)
