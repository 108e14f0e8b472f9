"""A script run as Python would run it, its loaders watched, and what was seen stored as a run."""

from __future__ import annotations

import atexit
import builtins
import errno
import os
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.machinery import SourceFileLoader
from io import StringIO
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeVar

import psutil

from loaderbench import originals
from loaderbench.analysis.record import analyze
from loaderbench.cases.case import Change
from loaderbench.cases.options import EVERY_S, RESULTS, is_count
from loaderbench.errors import ConfigError, LoaderbenchError
from loaderbench.interrupts import interrupts_held
from loaderbench.lacking import require_torch
from loaderbench.recording.facts import Run
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.reporting.console import make_console
from loaderbench.reporting.live import CellLine, cell_of_notebook
from loaderbench.reporting.studies import print_findings
from loaderbench.reporting.terminal import print_run
from loaderbench.running.beside import Beside
from loaderbench.samplers.cpu_window import children_cpu_s
from loaderbench.studies.interpreter import Interpreter
from loaderbench.studies.measure import Spilled, stored
from loaderbench.studies.script_ends import ScriptEnds, before_leaving, let_workers_end
from loaderbench.studies.watch_logging import WatchLog
from loaderbench.studies.watch_ranks import WatchedRank
from loaderbench.studies.watch_writing import Judging, Writing, check_every
from loaderbench.studies.watched import ended_early, nothing_seen
from loaderbench.studies.watched_run import run_of
from loaderbench.trackers.tracker import names_of
from loaderbench.watching.applying import Applier
from loaderbench.watching.batch_function import BatchFunction
from loaderbench.watching.data_loader import noticed
from loaderbench.watching.iterable import WatchedBatches, WatchedGenerator
from loaderbench.watching.kept import Kept
from loaderbench.watching.others import others_noticed
from loaderbench.watching.samples import takes_orphans
from loaderbench.watching.tracebacks import without_us
from loaderbench.watching.watcher import Probes, Watcher

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

UNTOLD_S = 0.05
"""Processor time of the sampling process beyond what it last reported, where it counts as a child's."""


class ScriptWatch:
    """One script, from its start to its end."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        store: Store,
        *,
        as_module: bool = False,
        probes: Probes = "burst",
        tell: Callable[[Watcher], None] | None = None,
        apply: bool = False,
        every_s: float | None = None,
        rank: WatchedRank | None = None,
        ended: Callable[[], None] | None = None,
        judging: Judging | None = None,
        log_to: Sequence[str] = (),
    ) -> None:
        """`apply`: set arguments of the script's loader as is advised. `every_s`: store the run so often while it goes
        on. `rank`: of one of several. `ended`: called once what was seen is stored, whatever ends the script; stderr is
        the process's own then. `log_to`: names of trackers. `judging`: for those that look on.

        Raises:
            ConfigError: this process is watched already.
        """
        if _Watch.current is not None:
            raise ConfigError("this script is already watched: start the other one as a process of its own")
        self.script, self._arguments, self._as_module = script, list(arguments), as_module
        self._path = str(Path(script).absolute())  # the script may go to another folder
        self._store, self._tell, self._probes, self._every_s = store, tell, probes, every_s
        self._say_ended = ended
        self._judging = judging or Judging(self.name, None if rank is None else rank.beside)
        self._log_to = log_to
        self._logging: WatchLog | None = None
        self._writing: Writing | None = None
        self._applier = Applier(self._advised) if apply else None
        self.record: RunRecord | None = None
        self.problem: str | None = None
        """Why it could not be stored."""
        self.watcher: Watcher | None = None
        self.rank, self._pid = rank, originals.os.getpid()
        self._started_at, self._children_cpu_s = "", 0.0
        self._stderr = Kept(2)
        self._failed: str | None = None
        """Class of the error that ended the script."""
        self.interrupted = False
        """The script was ended by Ctrl-C."""

    @property
    def name(self) -> str:
        return self.script if self._as_module else Path(self.script).name

    @property
    def nothing(self) -> str:
        """What to say where there is no record."""
        assert self.watcher is not None
        if self._failed is not None:
            return ended_early(self.watcher, self._failed, is_judged=False)
        sampling = self.watcher.sampling
        own = None if sampling is None else sampling.pid
        own_s = sampling.cpu_s + UNTOLD_S if sampling is not None and takes_orphans() else 0.0
        children = [one for one in psutil.Process().children() if one.pid != own]
        started = children_cpu_s() > self._children_cpu_s + own_s or bool(children)
        return nothing_seen(self.watcher, started_processes=started)

    def run(self) -> object:
        """Run the script. Its exit code, as sys.exit takes it; what was seen is in `record`: None where nothing was, or
        it could not be stored (`problem`). A process that the script forked, and that comes to the script's end, comes
        back from here too: it ends as the script does, and nothing of it is stored.
        """
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._be_the_program()
        rank = self.rank
        watcher = Watcher(self._probes, self._told, None if rank is None else rank.beside)
        watcher.display = self._tell
        if self._every_s is not None:
            beside = None if rank is None else rank.beside
            make = lambda taken: run_of(taken, self.name, self._path, self._started_at, None, beside)  # noqa: E731
            self._writing = Writing(self._store, self._every_s, make, watcher)
        ends = ScriptEnds(self._finish, None if rank is None else rank.hurries)
        with all_noticed(watcher, self._applier):
            watcher.before_first = threads_heeded()
            self.watcher = _Watch.current = watcher
            self._logging = _Watch.logging = WatchLog(self.name, self._judging, rank)
            self._logging.add(self._log_to, watcher)
            watcher.sample()
            self._children_cpu_s = children_cpu_s()  # importing PyTorch may start processes, too
            without_loader = None if watcher.sampling is None else BatchFunction(watcher)
            self._interpreter = Interpreter()
            ends.begin()
            try:
                code = self._executed()
            except SystemExit as stop:  # of the script's own sys.excepthook
                code = stop.code
            except KeyboardInterrupt:  # a second one
                code, self.interrupted = 130, True
            except BaseException:  # PyTorch's, of workers that were ended with the script
                code = 1
            finally:
                let_workers_end()
                if without_loader is not None:
                    without_loader.close()
                _Watch.current = _Watch.logging = None
        if originals.os.getpid() != self._pid:
            return code
        try:
            flush_streams()
            ends.finish()
        except KeyboardInterrupt:  # it came meanwhile
            code, self.interrupted = 130, True
        ends.end()
        return code

    def _be_the_program(self) -> None:
        """Arguments, search path and hooks as Python sets them for a script."""
        sys.argv = [self.script, *self._arguments]
        sys.path[0] = str(Path.cwd() if self._as_module else Path(self.script).resolve().parent)
        sys.excepthook = sys.__excepthook__

    def _executed(self) -> object:
        """The script's exit code. What Python says of an error is said."""
        try:
            if self._as_module:
                runpy.run_module(self.script, run_name="__main__", alter_sys=True)
            else:
                _execute(self.script)
        except SystemExit as stop:
            return stop.code
        except BaseException as error:
            if self._as_module and isinstance(error, ImportError) and _is_of_runpy(error):
                self.problem = str(error)  # there is no such module
                return 1
            failed = [error]
        else:
            return None
        return self._failed_with(failed.pop())  # out here, where an error in the script's hook has no other around it

    def _failed_with(self, error: BaseException) -> int:
        """Let Python's words of it be said. The exit code."""
        let_workers_end()
        _print_error(error)
        if isinstance(error, KeyboardInterrupt):
            self.interrupted = True
            return 130
        self._failed = type(error).__name__
        if self.rank is not None and self.watcher is not None and originals.os.getpid() == self._pid:
            self.rank.failed(error, self.watcher)
        return 1

    def _finish(self) -> None:
        """Store what was seen, and let it be said, whatever the script did to the interpreter: it ends as it would."""
        try:
            self._interpreter.as_it_was(self._store_and_say)
        except Exception as error:
            say_problem(f"the result cannot be shown: {error!r}")

    def _store_and_say(self) -> None:
        """On the process's own stderr: the script's may be its log by now."""
        with redirect_stderr(self._own_stderr()):
            if self.problem is not None:
                say_problem(self.problem)
            else:
                self.record, self.problem = stored_or_told(self._stored)
            if self._failed is not None and self.record is not None and self.rank is None:
                assert self.watcher is not None
                say_problem(ended_early(self.watcher, self._failed, is_judged=True))
            if self._say_ended is not None:
                self._say_ended()
            if self._logging is not None and self.watcher is not None:
                self._logging.end(self.watcher, self.record, self._store, say_problem, failed=self._failed is not None)

    def _own_stderr(self) -> TextIO:
        """The process's stderr, whatever the script did with `sys.stderr`; nowhere, if the script has put another file
        under its number. And nothing is left in it which cannot be written: Python's exit code would tell of it."""
        if self._stderr.number is None:
            return StringIO()
        return open(2, "w", errors="replace", closefd=False)

    def _stored(self) -> RunRecord | None:
        assert self.watcher is not None
        return store_watched(
            self.watcher, self.name, self._path, self._store, self._started_at, self._writing, self._applier, self.rank
        )

    def _told(self, watcher: Watcher) -> None:
        """A window has ended."""
        if self._writing is not None:
            self._writing.tick(watcher)

    def _advised(self, watcher: Watcher) -> Sequence[Change]:
        """On what was seen so far, the changes of a DataLoader, the best first."""
        run = run_of(watcher, self.name, self._path, "")
        verdict = None if run is None else analyze(run).verdict
        advice = () if verdict is None else verdict.advice
        return [one.change for one in advice if one.change is not None]


@contextmanager
def all_noticed(watcher: Watcher, applier: Applier | None = None) -> Iterator[None]:
    """Every loader of this process that is known, for the block's time."""
    with noticed(watcher, applier) as notice, others_noticed(watcher, notice):
        yield


def threads_heeded() -> Callable[[], None]:
    """A script may set `OMP_NUM_THREADS` before it imports PyTorch, which looks at it then. The watch has imported it
    already: what this gives sets the number of threads where the variables have changed since, and the script has set
    none itself."""
    torch = sys.modules.get("torch")
    before, num = _threads_wanted(), None if torch is None else torch.get_num_threads()

    def heed() -> None:
        wanted = _threads_wanted()
        if torch is not None and wanted not in (None, before) and torch.get_num_threads() == num:
            torch.set_num_threads(wanted)

    return heed


def _threads_wanted() -> int | None:
    """By the environment, as PyTorch reads it (ATen/ParallelCommon.cpp): MKL's variable before OpenMP's."""
    named = [os.environ.get(name, "") for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS")]
    return next((int(one) for one in named if is_count(one) and int(one)), None)


def store_watched(
    watcher: Watcher, name: str, script: str, store: Store, started_at: str, writing: Writing | None = None,
    applier: Applier | None = None, rank: WatchedRank | None = None,
) -> RunRecord | None:  # fmt: skip
    """End the watch; the record of what was seen, as it is stored; None where no steps were. `writing`: what stored it
    meanwhile. `rank`: hands it over; a launcher that ends all ranks meanwhile waits for that.

    Raises:
        ConfigError, Spilled: the results folder cannot be written.
    """
    if rank is not None:
        with interrupts_held(rank.hurries, drop=True):
            run, record = _stored(watcher, name, script, store, started_at, writing, None, rank.beside)
            rank.end(run, record, store)
        return record
    return _stored(watcher, name, script, store, started_at, writing, applier, None)[1]


def stored_or_told(store: Callable[[], RunRecord | None]) -> tuple[RunRecord | None, str | None]:
    """(what `store` gives, why it failed). That is said on stderr; the script ends as it would have without."""
    record = None
    try:
        return store(), None
    except Spilled as error:
        problem, record = str(error), error.record
    except LoaderbenchError as error:
        problem = str(error)
    except Exception as error:
        problem = f"the result could not be stored: {error!r}"
    say_problem(problem)
    return record, problem


def say_problem(line: str) -> None:
    """A line on stderr; where that cannot be written, the script ends as ever."""
    with suppress(Exception):
        stderr_console().print(f"loaderbench: {line}", soft_wrap=True, highlight=False)


def stderr_console() -> Console:
    """Where nobody reads stderr any more, rich would put an end to standard output, and to the program."""

    def fail() -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    console = make_console(stderr=True)
    console.on_broken_pipe = fail  # type: ignore[method-assign]
    return console


def flush_streams() -> None:
    """What the script printed comes before what is said of it. Where that fails, Python says so at its end."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _stored(
    watcher: Watcher, name: str, script: str, store: Store, started_at: str, writing: Writing | None,
    applier: Applier | None, beside: Beside | None,
) -> tuple[Run | None, RunRecord | None]:  # fmt: skip
    if writing is not None:
        writing.end()  # first: the last window's end would begin a thread, which Python 3.12 refuses at its own end
    watcher.close()
    run = run_of(watcher, name, script, started_at, applier, beside)
    if run is None:
        return None, None
    folder = None
    if writing is not None:
        run, folder = writing.with_cost(run), writing.folder
    if folder is None:
        folder = store.open_run(run.case)
    else:
        folder.write_case(run.case)
    run = replace(run, run_id=folder.run_id)
    with interrupts_held():
        return run, stored(folder, run)


def _is_of_runpy(error: BaseException) -> bool:
    """Whether runpy itself raised it, not the module that it was to run."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "runpy" in trace.tb_frame.f_code.co_filename


def _execute(script: str) -> None:
    """As `python SCRIPT`. Its module stays `__main__`, for what runs on when it has ended, and for spawned workers."""
    path = str(Path(script).absolute())
    module = types.ModuleType("__main__")
    module.__file__, module.__loader__ = path, SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), module.__dict__)


def _print_error(error: BaseException) -> None:
    """The script's error as Python tells it, or the script's own `sys.excepthook`: without the frames that are ours."""
    trace, own = error.__traceback__, str(Path(__file__))
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == own or "runpy" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    trace = without_us(trace)
    error = error.with_traceback(trace)
    if sys.excepthook is not sys.__excepthook__:
        try:
            sys.excepthook(type(error), error, trace)
            return
        except Exception as own_error:
            print("Error in sys.excepthook:", file=sys.stderr)
            traceback.print_exception(_without_the_first(own_error))
            print("\nOriginal exception was:", file=sys.stderr)
    sys.__excepthook__(type(error), error, trace)


def _without_the_first(error: BaseException) -> BaseException:
    """The error without the function of its traceback that called what raised it."""
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


# -- from within a script ------------------------------------------------------------------------------------


def watch(
    batches: Iterable[T],
    *,
    results: str | os.PathLike[str] = RESULTS,
    every: float = EVERY_S,
    log_to: str | Sequence[str] | None = None,
) -> WatchedBatches[T]:
    """Watch the batches that a training loop iterates: `for batch in loaderbench.watch(loader): …`.

    Works with any iterable of batches: a DataLoader, a generator, an iterator of another library. Under
    `loaderbench watch` the call joins the script's watch; otherwise the first call starts one. The watch ends with the
    program or, in a notebook, with `close()` of the returned object or at the end of the block
    `with loaderbench.watch(loader) as batches:` that started it. It then stores the run and prints it on stderr.

    Args:
        batches: the iterable of the loop; it delivers the same batches.
        results: the folder in which the run is stored.
        every: seconds between saves of the running watch (the first within 30 s), so that a killed script leaves a
            record; 0 saves only at the end. Only the call that starts the watch uses it.
        log_to: experiment trackers to log to: `wandb`, `mlflow`, `tensorboard`, or several of them.

    Raises:
        ConfigError: the results folder cannot be written; `every` is too small; there is no such tracker.
        MissingExtra: the tracker's library is not installed.
    """
    begun, trackers = _Watch.current, names_of(log_to)
    watcher = OwnWatch.begin(results, every).watcher if begun is None else begun
    log_too(trackers)
    kind = WatchedGenerator if hasattr(type(batches), "__next__") else WatchedBatches
    return kind(batches, watcher, _Watch.own, ends=begun is None)


def current() -> Watcher | None:
    """Return the watch of this process; None if none is active."""
    return _Watch.current


def log_too(trackers: Sequence[str]) -> None:
    """Log the active watch to these trackers, too."""
    if _Watch.current is not None and _Watch.logging is not None:
        _Watch.logging.add(trackers, _Watch.current)


class _Watch:
    """The one watch of this process."""

    current: Watcher | None = None
    logging: WatchLog | None = None
    """What logs it to trackers, if any are asked for."""
    own: OwnWatch | None = None
    """Where the script began it."""


class OwnWatch:
    """A watch that a script began itself."""

    def __init__(self, store: Store, every_s: float | None = None) -> None:
        self._script, self._store = Path(_program()).absolute(), store
        rank = self._rank = WatchedRank.of_launch(os.environ)
        beside = None if rank is None else rank.beside
        self.watcher = Watcher(tell=self._told, others=beside)
        started_at = self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._writing: Writing | None = None
        if every_s is not None:
            make = lambda taken: run_of(  # noqa: E731
                taken, self._script.name, str(self._script), started_at, None, beside
            )
            self._writing = Writing(store, every_s, make, self.watcher)
        self._watching, self._owner = all_noticed(self.watcher), originals.os.getpid()
        self._watching.__enter__()
        self.watcher.sample()
        judging, self._cell = Judging(str(self._script), beside), cell_of_notebook()
        if self._cell is not None:
            self.watcher.display = CellLine(judging, self._cell).show
        self._logging = WatchLog(self._script.name, judging, rank)
        _Watch.current, _Watch.own, _Watch.logging = self.watcher, self, self._logging
        atexit.register(self.leave)
        # A process that multiprocessing forked ends without atexit, but with this.
        self._at_end = None if parent_process() is None else Finalize(None, self.leave, exitpriority=0)
        self._python_exit = os._exit
        os._exit = self._exit

    @classmethod
    def begin(cls, results: str | os.PathLike[str] = RESULTS, every_s: float = EVERY_S) -> OwnWatch:
        """Raises ConfigError where the results folder cannot be written, or `every_s` is too small."""
        require_torch("loaderbench.watch")
        check_every(every_s)
        store = Store(results)
        store.check_writable()
        return cls(store, every_s or None)

    def _told(self, watcher: Watcher) -> None:
        """A window has ended."""
        if self._writing is not None:
            self._writing.tick(watcher)

    def end(self) -> RunRecord | None:
        """Store what was seen, and print it on stderr, once (a notebook shows the record instead). None where nothing
        was, and in a forked process."""
        if originals.os.getpid() != self._owner or _Watch.own is not self:
            return None
        atexit.unregister(self.leave)
        if self._at_end is not None:
            self._at_end.cancel()
        if os._exit == self._exit:
            os._exit = self._python_exit
        self._watching.__exit__(None, None, None)
        _Watch.current = _Watch.own = _Watch.logging = None
        record = store_watched(
            self.watcher, self._script.name, str(self._script), self._store, self._started_at, self._writing, None,
            self._rank,
        )  # fmt: skip
        if self._cell is None or record is None:
            say_watched(record, nothing_seen(self.watcher), self._rank)
        self._logging.end(self.watcher, record, self._store, say_problem, failed=False)
        return record

    def leave(self) -> RunRecord | None:
        """End it where the script has something else to do than to watch itself: it goes on, whatever fails here."""
        record = stored_or_told(self.end)[0]
        if record is not None and self._cell is not None:
            from loaderbench.studies.again import show  # late: it imports all of a report

            self._cell.add(show(record))
        return record

    def _exit(self, status: int) -> NoReturn:
        """In place of `os._exit`, at which nothing runs that was registered. A forked process just ends."""
        try:
            before_leaving(self.leave)
        finally:
            self._python_exit(status)


def _program() -> str:
    """What runs: the script, or a session that has none."""
    return "session" if hasattr(builtins, "__IPYTHON__") else sys.argv[0] or "session"


def say_watched(record: RunRecord | None, nothing: str, rank: WatchedRank | None) -> None:
    """Print on stderr what was seen: of several ranks once, what all saw. `nothing`: to say where nothing was."""
    if rank is not None and not rank.speaks:
        return
    console = stderr_console()
    if rank is not None and rank.problem is not None:
        console.print(f"loaderbench: {rank.problem}", soft_wrap=True, highlight=False)
    if rank is not None and rank.study is not None and rank.study.findings is not None:
        print_findings(rank.study.facts, rank.study.findings, console, study_id=rank.study.study_id)
        console.print(f"study {rank.study.study_id}", soft_wrap=True, highlight=False)
    elif record is None:
        console.print(f"loaderbench: {nothing}", soft_wrap=True, highlight=False)
    else:
        print_run(record, console)
