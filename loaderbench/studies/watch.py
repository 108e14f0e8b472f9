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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from loaderbench.analysis.doses import LEAST_PAIRS
from loaderbench.analysis.shadow import LEAST_READS
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case, Effort, Feed, Step, Subject
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
from loaderbench.watching.cost import cost_of
from loaderbench.watching.data_loader import noticed, uses_cuda
from loaderbench.watching.doses import PART
from loaderbench.watching.iterable import WatchedBatches
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
        every_s: float | None = None,
    ) -> None:
        """`every_s`: store the run so often while it goes on. Raises ConfigError where there is no such script."""
        if not as_module and not Path(script).is_file():
            raise ConfigError(f"there is no script {script}; give a Python file, or -m MODULE")
        self.script, self._arguments, self._as_module = script, list(arguments), as_module
        self._store, self._tell, self._probes, self._every_s = store, tell, probes, every_s
        self._writing: Writing | None = None
        self.record: RunRecord | None = None
        self.watcher: Watcher | None = None
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return self.script if self._as_module else Path(self.script).name

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
        with noticed(watcher):
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
        self.record = store_watched(watcher, self.name, self.script, self._store, started_at, self._writing)

    def _told(self, watcher: Watcher) -> None:
        """A window has ended."""
        if self._tell is not None:
            self._tell(watcher)
        if self._writing is not None:
            self._writing.tick(watcher)


def store_watched(
    watcher: Watcher, name: str, script: str, store: Store, started_at: str, writing: Writing | None = None
) -> RunRecord | None:
    """End the watch; the record of what was seen, as it is stored; None where no batch was. `writing`: what stored it
    meanwhile.

    Raises:
        ConfigError, Spilled: the results folder cannot be written.
    """
    watcher.close()
    if writing is not None:
        writing.end()
    run = _run(watcher, name, script, started_at)
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


def _run(watcher: Watcher, name: str, script: str, started_at: str) -> Run | None:
    """What was seen, without a name; None where no batch was."""
    main = watcher.main
    if main is None:
        return None
    return Run(
        run_id="",
        case=_case(name, script, main, watcher),
        status="ok",
        started_at=started_at,
        wall_s=(time.perf_counter_ns() - watcher.begun_ns) / 1e9,
        environment=environment(),
        recording=Recording(main.segments, _facts(name, main, watcher)),
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
        WatchedSeconds(**{kind: watcher.times_ns[source, kind] / 1e9 for kind in KINDS}),
    )  # fmt: skip


# -- from within a script ------------------------------------------------------------------------------------


def watch(batches: Iterable[T], *, results: str | os.PathLike[str] = RESULTS) -> Iterable[T]:
    """What a training loop iterates, watched: `for batch in loaderbench.watch(loader): …`.

    Any iterable of batches: a DataLoader, a generator, an iterator of another library. Under `loaderbench watch` it
    joins the script's watch; else the first call begins one, and what was seen is stored and printed on stderr when the
    program ends.

    Args:
        batches: what the loop iterates; it is iterated as it is.
        results: the folder in which the run is stored.

    Raises:
        ConfigError: the results folder cannot be written.
    """
    if _Watch.current is None:
        store = Store(results)
        store.check_writable()
        begin_in_script(store)
    assert _Watch.current is not None
    return WatchedBatches(batches, _Watch.current)


class _Watch:
    """The one watch of this process."""

    current: Watcher | None = None


def begin_in_script(store: Store) -> None:
    """Watch this program until it ends."""
    script, watcher = Path(sys.argv[0] or "notebook"), Watcher()
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    watching, owner = noticed(watcher), os.getpid()
    watching.__enter__()
    _Watch.current = watcher

    def finish() -> None:
        if os.getpid() != owner:
            return
        watching.__exit__(None, None, None)
        _Watch.current = None
        record = store_watched(watcher, script.name, str(script), store, started_at)
        if record is not None:
            print_run(record, make_console(stderr=True))

    atexit.register(finish)
