"""The program: its commands, and how it ends. Entry point of `loaderbench`."""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Annotated, Any, NoReturn

import typer

from loaderbench import __version__
from loaderbench.commands import (
    agents,
    analyze,
    dataset,
    demo,
    doctor,
    gaps,
    install,
    ledger,
    listing,
    model,
    remove,
    report,
    run,
    show,
    trace,
    watch,
)
from loaderbench.commands.command import Command, MeasuringCommand, missing_argument
from loaderbench.commands.first import WAYS_IN
from loaderbench.commands.terminal import echo, show_crash, write_out
from loaderbench.errors import LoaderbenchError
from loaderbench.lacking import NO_THREAD, memory_for
from loaderbench.recording.kinds import KINDS, part

app = typer.Typer(
    name="loaderbench",
    help="Find what limits a training or inference run: storage, CPU preparation, contention for CPUs, "
    "the copy to the device, kernel launches or compute.",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"loaderbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        write_out(WAYS_IN.encode(), "-")


def commands() -> dict[str, Callable[..., object]]:
    """Words that call a command → its function: those of studies by the registry, after what is used first."""
    of_kinds = {kind.command[0]: part(kind.command[1]) for kind in KINDS.values() if kind.command is not None}
    return {
        "run": run.run,
        "watch": watch.watch,
        "demo": demo.demo,
        **of_kinds,
        "list": listing.list_runs,
        "show": show.show,
        "ledger": ledger.ledger,
        "analyze": analyze.analyze,
        "trace": trace.trace,
        "gaps": gaps.gaps,
        "report": report.report,
        "rm": remove.remove,
        "install": install.install,
        "doctor": doctor.doctor,
        "agents": agents.agents,
    }


OF_A_SCRIPT = {"allow_interspersed_args": False, "ignore_unknown_options": False}
"""All that follows the name of a script, or of a module, is the script's: `-m` is a flag, so that the name ends it."""
GROUPS = {"model": model.app, "dataset": dataset.app}
"""First word of commands of two words → what they belong to."""
LIGHT_STUDIES = ("forecast", "whatif", "attach", "compare")
"""Studies that need no PyTorch, or only if they are asked to measure: they then say so themselves."""


def kind_of(words: str) -> type[Command]:
    """How a command parses its words, and whether it needs what measures."""
    if words == "watch":
        return watch.OfAScript
    studies = {kind.command[0] for kind in KINDS.values() if kind.command is not None}
    return MeasuringCommand if words in {"run", "demo", *studies} - {*LIGHT_STUDIES} else Command


def add_commands() -> None:
    """Make each command known to the program."""
    for words, function in commands().items():
        group, _, name = words.rpartition(" ")
        settings = OF_A_SCRIPT if name == "watch" else None
        kind = kind_of(words)
        (GROUPS[group] if group else app).command(name, cls=kind, context_settings=settings)(function)
    for name, commands_of in GROUPS.items():
        app.add_typer(commands_of, name=name)


add_commands()


MORE_PROCESSES = "this user has reached the limit of processes and threads: raise `ulimit -u`, or end some of them"


def _check_threads() -> None:
    """Raises RuntimeError where no thread can be started. OpenBLAS would end numpy's import by SIGINT."""
    thread = threading.Thread(target=bool)
    thread.start()
    thread.join()


def _end_by_interrupt() -> NoReturn:
    """End as Python does after an uncaught Ctrl-C: `atexit` runs, then SIGINT kills the program. A shell reports that
    as 130, and ends its loop too, which it does not for a program that exits with 130."""
    sys.excepthook = _say_nothing
    # Python ends by SIGINT, after all else, where it is marked so (pythonrun.c, unhandled_keyboard_interrupt): by an
    # exec() where it runs a module, by what leaves its first file where it runs that, as the installed program does.
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")
    raise KeyboardInterrupt


def _say_nothing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In place of a traceback: all has been said."""


def _run_and_end_as(script: watch.Script) -> NoReturn:
    """Run the script and end as Python alone would: threads, `atexit`, the message for its exit code. Signals reach
    the script from then on."""
    code, by_interrupt = script.run()
    if by_interrupt:
        _end_by_interrupt()
    exec("")  # takes away the mark of one that the script has caught
    sys.exit(code)


def main() -> None:
    """Run a command; errors become one line and an exit code: 0 measured, 1 a case failed, 2 wrong usage or
    configuration, 130 interrupted (by a shell's account: SIGINT ends it)."""
    message: object = None
    sys.excepthook = show_crash
    try:
        _check_threads()
        code: Any = app(standalone_mode=False)
    except typer.TyperException as error:
        code, message = error.exit_code, missing_argument(error) or error.format_message()
    except LoaderbenchError as error:
        code, message = error.exit_code, error
    except SystemExit as stop:
        code = stop.code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except RecursionError:
        code, message = 1, "a folder tree or a file's content is nested too deeply"
    except (RuntimeError, ImportError, MemoryError) as error:
        limited = memory_for(error)
        if not limited and str(error) != NO_THREAD:
            raise
        code, message = 1, f"{str(error) or type(error).__name__}{limited or f': {MORE_PROCESSES}'}"
    except OSError as error:  # standard output is full, a file that no command expects to fail
        hint = MORE_PROCESSES if error.errno == errno.EAGAIN else None
        code, message = 1, ": ".join(str(part) for part in (error.filename, error.strerror or error, hint) if part)
    if isinstance(code, watch.Script):
        _run_and_end_as(code)
    if code in (130, 143, 129) and message is None:
        message = "interrupted"
    # It is ending already, and another signal must not change the exit code; but where a thread of a watched script
    # goes on, Python waits for that first.
    goes_on = any(not one.daemon and one is not threading.current_thread() for one in threading.enumerate())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if goes_on else signal.SIG_IGN)
    if message is not None:
        echo(f"loaderbench: {message}", err=True)
    if code == 130:
        _end_by_interrupt()
    # An interrupt inside an exec(), as dataclasses call it, leaves a mark by which Python would end by SIGINT whatever
    # the exit code; the next exec() takes it away.
    exec("")
    sys.exit(code if isinstance(code, int) else 0)
