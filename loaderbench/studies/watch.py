"""A script run as Python would run it, its loaders watched, and what was seen stored as a run."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from loaderbench.analysis.doses import LEAST_PAIRS
from loaderbench.analysis.record import analyze
from loaderbench.analysis.shadow import LEAST_READS
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case, Change, Effort, Feed, Step, Subject
from loaderbench.cases.options import RESULTS
from loaderbench.cases.traits import LoaderTraits
from loaderbench.errors import ConfigError
from loaderbench.interrupts import interrupts_held
from loaderbench.machine import environment
from loaderbench.recording.facts import (
    CacheFacts,
    DeviceFacts,
    Facts,
    FailureFacts,
    LoaderFacts,
    Recording,
    RoundFacts,
    Run,
    StartupFacts,
    StorageFacts,
    WatchedFacts,
    WatchedLoader,
    WatchedSeconds,
    WatchedShadow,
    WorkloadFacts,
)
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.reporting.console import make_console
from loaderbench.reporting.terminal import print_run
from loaderbench.studies.measure import stored
from loaderbench.studies.watch_writing import Writing
from loaderbench.studies.watched import nothing_seen, surrounded, trials_of
from loaderbench.watching.applying import Applier
from loaderbench.watching.cost import cost_of
from loaderbench.watching.data_loader import noticed, uses_cuda
from loaderbench.watching.doses import PART
from loaderbench.watching.iterable import WatchedBatches, WatchedGenerator
from loaderbench.watching.others import others_noticed
from loaderbench.watching.watcher import Kind, Probes, Seen, Watcher

T = TypeVar("T")
KINDS: tuple[Kind, ...] = ("opening", "first", "wait", "step", "held", "after")


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
    ) -> None:
        """`apply`: set arguments of the script's loader as is advised. `every_s`: store the run so often while it goes
        on.

        Raises:
            ConfigError: there is no such script, or this process is watched already.
        """
        if _Watch.current is not None:
            raise ConfigError("this script is being watched already: start another one as a process of its own")
        if not as_module and not Path(script).is_file():
            raise ConfigError(f"there is no script {script}; give a Python file, or -m MODULE")
        self.script, self._arguments, self._as_module = script, list(arguments), as_module
        self._store, self._tell, self._probes, self._every_s = store, tell, probes, every_s
        self._writing: Writing | None = None
        self._applier = Applier(self._advised) if apply else None
        self.record: RunRecord | None = None
        self.watcher: Watcher | None = None
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return self.script if self._as_module else Path(self.script).name

    @property
    def nothing(self) -> str:
        """What to say where there is no record."""
        assert self.watcher is not None
        return nothing_seen(self.watcher)

    def run(self) -> int | str | None:
        """Run the script. Its exit code, as sys.exit takes it; what was seen is in `record`: None where nothing was.

        Raises:
            ConfigError, Spilled: the results folder cannot be written.
        """
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        leave = os._exit

        def leaving(code: int) -> NoReturn:
            """The script ends the process without Python's end: what was seen is stored before."""
            if os.getpid() == self._pid:
                self._finish(started_at)
            leave(code)

        self._be_the_program()
        watcher = Watcher(self._probes, self._told)
        if self._every_s is not None:
            make = lambda taken: _run(taken, self.name, self.script, started_at)  # noqa: E731
            self._writing = Writing(self._store, self._every_s, make, watcher)
        with all_noticed(watcher, self._applier):
            self.watcher = _Watch.current = watcher
            os._exit = leaving  # type: ignore[assignment]
            try:
                code = self._executed()
            finally:
                os._exit, _Watch.current = leave, None
        if os.getpid() != self._pid:  # a process that the script forked came back here
            leave(code if isinstance(code, int) else int(code is not None))
        self._finish(started_at)
        return code

    def _be_the_program(self) -> None:
        """Arguments, search path, hooks and signals as Python sets them for a script."""
        sys.argv = [self.script, *self._arguments]
        sys.path[0] = str(Path.cwd() if self._as_module else Path(self.script).resolve().parent)
        sys.excepthook = sys.__excepthook__
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _ended)  # so that what was seen is kept; a script may set its own

    def _executed(self) -> int | str | None:
        try:
            if self._as_module:
                runpy.run_module(self.script, run_name="__main__", alter_sys=True)
            else:
                _execute(self.script)
        except SystemExit as stop:
            code: Any = stop.code
            return code if code is None or isinstance(code, int) else str(code)
        except KeyboardInterrupt:
            return 130
        except BaseException as error:
            _print_error(error)
            return 1
        return None

    def _finish(self, started_at: str) -> None:
        """Store what was seen, once."""
        watcher = self.watcher
        assert watcher is not None
        if self.record is not None:
            return
        self.record = store_watched(
            watcher, self.name, self.script, self._store, started_at, self._writing, self._applier
        )

    def _told(self, watcher: Watcher) -> None:
        """A window has ended."""
        if self._tell is not None:
            self._tell(watcher)
        if self._writing is not None:
            self._writing.tick(watcher)

    def _advised(self, watcher: Watcher) -> Sequence[Change]:
        """On what was seen so far, the changes of a DataLoader, the best first."""
        run = _run(watcher, self.name, self.script, "")
        verdict = None if run is None else analyze(run).verdict
        advice = () if verdict is None else verdict.advice
        return [one.change for one in advice if one.change is not None]


@contextmanager
def all_noticed(watcher: Watcher, applier: Applier | None = None) -> Iterator[None]:
    """Every loader of this process that is known, for the block's time."""
    with noticed(watcher, applier), others_noticed(watcher):
        yield


def store_watched(
    watcher: Watcher, name: str, script: str, store: Store, started_at: str, writing: Writing | None = None,
    applier: Applier | None = None,
) -> RunRecord | None:  # fmt: skip
    """End the watch; the record of what was seen, as it is stored; None where no steps were. `writing`: what stored it
    meanwhile.

    Raises:
        ConfigError, Spilled: the results folder cannot be written.
    """
    watcher.close()
    if writing is not None:
        writing.end()
    run = _run(watcher, name, script, started_at, applier)
    if run is None:
        return None
    folder = None
    if writing is not None:
        run, folder = writing.with_cost(run), writing.folder
    if folder is None:
        folder = store.open_run(run.case)
    else:
        folder.write_case(run.case)
    with interrupts_held():
        return stored(folder, replace(run, run_id=folder.run_id))


def _run(watcher: Watcher, name: str, script: str, started_at: str, applier: Applier | None = None) -> Run | None:
    """What was seen, without a name; None where no steps were."""
    main = watcher.main
    if main is None or not main.segments:
        return None
    case, facts = _case(name, script, main, watcher), _facts(name, main, watcher)
    assert facts.watched is not None
    facts = replace(facts, watched=surrounded(facts.watched, main, watcher, applier))
    return Run(
        run_id="",
        case=case,
        status="ok",
        started_at=started_at,
        wall_s=(time.perf_counter_ns() - watcher.begun_ns) / 1e9,
        environment=environment(),
        recording=Recording(main.segments, facts),
        trials=trials_of(case, facts, watcher, applier),
    )


def _ended(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def _execute(script: str) -> None:
    """As `python SCRIPT`. Its module stays `__main__`, for what runs on when it has ended, and for spawned workers."""
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    exec(compile(Path(script).read_bytes(), script, "exec"), module.__dict__)


def _print_error(error: BaseException) -> None:
    """The script's error as Python prints it: without the frames that are ours."""
    trace, own = error.__traceback__, str(Path(__file__))
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == own or "runpy" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _case(name: str, script: str, main: Seen, watcher: Watcher) -> Case:
    source = main.source
    batch_size = source.batch_size or round(main.num_samples / max(1, main.num_batches)) or 1
    return Case(
        Subject(str(Path(script).resolve()), name, None, "as-is"),
        Feed(source.kind, None, source.workers, source.prefetch),
        Step(name, "unknown", "unknown", "cuda" if uses_cuda() else "cpu", batch_size, None),
        Effort(arms=(Arm.DEVICE, Arm.REAL), duration_s=watcher.wall_s, kernels=False),
    )


def _facts(name: str, main: Seen, watcher: Watcher) -> Facts:
    source, cuda = main.source, uses_cuda()
    return Facts(
        device=DeviceFacts(
            "cuda" if cuda else "cpu",
            "a GPU" if cuda else "this machine's processors",
            copies=cuda,
            on_host_cpus=not cuda,
            has_counters=False,
        ),
        workload=WorkloadFacts(name, "unknown", "unknown"),
        loader=LoaderFacts(
            decodes=True,
            owns_transfer=True,  # nothing tells a copy from the script's own step
            traits=LoaderTraits("processes" if source.workers else "in line", decodes="own", can_be_cold=False),
            num_readers=max(1, source.workers),
        ),
        cache=CacheFacts("as-is", measured_once=True),
        storage=StorageFacts(main.num_samples, None, None, "which files a script reads is not watched"),
        startup=StartupFacts(),
        failures=FailureFacts(),
        rounds=RoundFacts((Arm.REAL, Arm.DEVICE), watcher.num_bursts, "ended"),
        watched=_watched(name, main, watcher, cuda=cuda),
    )


def _watched(name: str, main: Seen, watcher: Watcher, *, cuda: bool) -> WatchedFacts:
    others = sorted(
        (one for one in watcher.seen.values() if one is not main), key=lambda one: -watcher.spent_ns(one.source)
    )
    no_burst = None if watcher.num_bursts else watcher.no_burst
    if no_burst is None and not watcher.num_bursts and watcher.wants("burst"):
        no_burst = "it has no workers" if not main.source.workers else "too few batches"
        no_burst = no_burst if main.source.tells else "what was iterated tells nothing of a queue"
    shadow = _shadow(main, watcher)
    no_spans = None
    if not main.has_spans:
        no_spans = "too few batches" if not main.segments else "its workers were not forked, or do not take turns"
        no_spans = no_spans if main.source.tells else "what was iterated tells nothing of workers"
    return WatchedFacts(
        script=name,
        loaders=tuple(_loader(one, watcher) for one in (main, *others)),
        wall_s=watcher.wall_s,
        before_s=watcher.times_ns[None, "before"] / 1e9,
        probes=watcher.probes,
        num_bursts=watcher.num_bursts,
        paused_s=watcher.paused_ns / 1e9,
        no_burst=no_burst,
        no_spans=no_spans,
        uses_cuda=cuda,
        device_stamped=cuda and watcher.device is not None and bool(main.segments),
        no_device_stamps=_no_device_stamps(main, watcher) if cuda else None,
        shadow=shadow,
        no_shadow=_no_shadow(shadow, watcher),
        no_doses=_no_doses(main, watcher),
        cost=cost_of(watcher),
    )


def _no_device_stamps(main: Seen, watcher: Watcher) -> str | None:
    """Why the device did not tell when the steps were done."""
    device = watcher.device
    if device is None:
        return "it was first used when no more windows of steps followed"
    if device.problem is not None or main.segments:
        return device.problem
    return "too few steps, or the device reached none of their ends before the script's"


def _shadow(main: Seen, watcher: Watcher) -> WatchedShadow | None:
    """What was read beside the loader that the verdict is about."""
    reader = watcher.shadow
    if reader is None or watcher.shadow_of != main.source:
        return None
    return WatchedShadow((*reader.reads,), reader.start_ns / 1e9, reader.problem or "it goes on")


def _no_shadow(shadow: WatchedShadow | None, watcher: Watcher) -> str | None:
    """Why it tells nothing, where it was wanted."""
    if not watcher.wants("shadow") or (shadow is not None and len(shadow.reads) >= LEAST_READS):
        return None
    if shadow is None:
        return watcher.no_shadow or "another loader, which was iterated first, took most of the time no more"
    return f"it read {len(shadow.reads)} samples, of {LEAST_READS} at least: {shadow.stopped_by}"


def _no_doses(main: Seen, watcher: Watcher) -> str | None:
    """Why the windows with known delays are too few, where they were wanted."""
    num = sum(one.delay is not None for one in main.segments)
    if not watcher.wants("delay") or num >= LEAST_PAIRS:
        return None
    return (
        f"{num} windows had one, of {LEAST_PAIRS} at least: the run was too short for delays of {PART:.0%} of its time"
    )


def _loader(one: Seen, watcher: Watcher) -> WatchedLoader:
    source = one.source
    return WatchedLoader(
        source.kind, source.data, source.num_samples, source.batch_size, source.workers, source.prefetch,
        one.num_iterators, one.num_batches,
        WatchedSeconds(**{kind: watcher.times_ns[source, kind] / 1e9 for kind in KINDS}), one.phase,
    )  # fmt: skip


# -- from within a script ------------------------------------------------------------------------------------


def watch(batches: Iterable[T], *, results: str | os.PathLike[str] = RESULTS) -> WatchedBatches[T]:
    """What a training loop iterates, watched: `for batch in loaderbench.watch(loader): …`.

    Any iterable of batches: a DataLoader, a generator, an iterator of another library. Under `loaderbench watch` it
    joins the script's watch; else the first call begins one. It ends when the program does, or, in a notebook, with
    `close()` of what this gives, or behind `with loaderbench.watch(loader) as batches:`. What was seen is then stored
    and printed on stderr.

    Args:
        batches: what the loop iterates; it is iterated as it is.
        results: the folder in which the run is stored.

    Raises:
        ConfigError: the results folder cannot be written.
    """
    watcher = _Watch.current
    if watcher is None:
        watcher = OwnWatch.begin(results).watcher
    own = _Watch.own
    kind = WatchedGenerator if hasattr(type(batches), "__next__") else WatchedBatches
    return kind(batches, watcher, None if own is None else own.end)


def current() -> Watcher | None:
    """The watch of this process; None where none is going on."""
    return _Watch.current


class _Watch:
    """The one watch of this process."""

    current: Watcher | None = None
    own: OwnWatch | None = None
    """Where the script began it."""


class OwnWatch:
    """A watch that a script began itself."""

    def __init__(self, store: Store) -> None:
        self._script, self._store = Path(sys.argv[0] or "notebook"), store
        self.watcher = Watcher()
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._watching, self._owner = all_noticed(self.watcher), os.getpid()
        self._watching.__enter__()
        _Watch.current, _Watch.own = self.watcher, self
        atexit.register(self.end)

    @classmethod
    def begin(cls, results: str | os.PathLike[str] = RESULTS) -> OwnWatch:
        """Raises ConfigError where the results folder cannot be written."""
        store = Store(results)
        store.check_writable()
        return cls(store)

    def end(self) -> RunRecord | None:
        """Store what was seen, and print it on stderr, once. None where nothing was, and in a forked process."""
        if os.getpid() != self._owner or _Watch.own is not self:
            return None
        atexit.unregister(self.end)
        self._watching.__exit__(None, None, None)
        _Watch.current = _Watch.own = None
        record = store_watched(self.watcher, self._script.name, str(self._script), self._store, self._started_at)
        console = make_console(stderr=True)
        if record is None:
            console.print(f"loaderbench: {nothing_seen(self.watcher)}", soft_wrap=True, highlight=False)
        else:
            print_run(record, console)
        return record
