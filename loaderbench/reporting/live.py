"""The view while cases are measured: a few lines that are rewritten on a terminal, one line a case elsewhere.

It is drawn only when the measuring process sends a message, so that it does not slow down what is measured.
"""

from __future__ import annotations

import html
import io
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.originals import os, time
from loaderbench.recording.progress import Message, Notice, Phase, SegmentDone, SoFar, StepsDone
from loaderbench.recording.record import RunRecord, Verdict
from loaderbench.reporting import format as fmt
from loaderbench.reporting.words import in_brief

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from loaderbench.reporting.result import Result
    from loaderbench.watching.watcher import Watcher

REDRAW_S = 0.2
"""Least time between two drawings, but for a verdict; one takes about 2 ms."""


class Progress:
    """The view of a command's cases, on stderr; removed at the end of its `with` block."""

    def __init__(
        self,
        num_cases: int,
        *,
        quiet: bool,
        expected_s: Sequence[float] = (),
        title: Callable[[Case], str] = attrgetter("title"),
        console: Console | None = None,
        named: Case | None = None,
        cell: Cell | None = None,
    ) -> None:
        """`expected_s`: of each case; if given, the time left is shown, corrected by the time of finished cases.
        `named`: the first case, where its title has been said. `cell`: of a notebook, where it is shown instead."""
        self._num_cases, self._quiet, self._number = num_cases, quiet, 1
        self._expected_s, self._measured_s, self._title = expected_s, 0.0, title
        self._case = named
        self._began = self._drawn = time.monotonic()
        self._phase = ""
        self._step_s: dict[Arm, float] = {}
        self._bytes_per_s: float | None = None
        self._so_far = ""
        self._told_s: float | None = None
        """How long the case takes, as its process said."""
        self._cause: tuple[str, ...] = ()
        self._live: Live | None = None
        self._cell = cell
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if not quiet and (terminal or console is not None):
            from rich.live import Live

            from loaderbench.reporting.console import make_console

            self._live = Live(console=console or make_console(stderr=True), auto_refresh=False, transient=True)

    def message(self, case: Case | None, message: Message) -> None:
        """Handle a message of the measuring process: a phase that began, or a window that was measured.

        `case`: the case that it works on; None for work that belongs to no case.
        """
        if self._quiet:
            return
        if case is not self._case:
            self._case, self._began = case, time.monotonic()
            self._step_s, self._bytes_per_s = {}, None
            self._so_far, self._cause, self._told_s = "", (), None
            if self._live is None and self._cell is None and case is not None:
                self._say(f"{self._place()}{self._title(case)}")
        match message:
            case SegmentDone():
                self._phase = f"round {message.round + 1}, {message.arm}"
                if self._case is not None:
                    self._note(self._case, message)
            case StepsDone():
                self._phase = message.text
            case Phase(text=text):
                self._phase = text
            case Notice(text=text, whole_s=whole_s):
                self._told_s = whole_s or self._told_s
                if self._cell is None:
                    self._say(text)
                else:  # a notebook shows stderr as an error
                    self._phase = text
            case SoFar():
                self._tell(message)
        # A verdict comes right behind its window, which was just drawn, and the next message is a window away.
        if self._live is not None and (isinstance(message, SoFar) or time.monotonic() - self._drawn > REDRAW_S):
            self._live.start()
            self._live.update(self._view(), refresh=True)
            self._drawn = time.monotonic()
        elif self._cell is not None and time.monotonic() - self._drawn > REDRAW_S:
            self._cell.show(_text_of(self._view()))
            self._drawn = time.monotonic()

    def _tell(self, found: SoFar) -> None:
        """Keep what the windows so far say for the view; elsewhere say it when the cause is another one."""
        verdict = found.verdict
        said = f"{in_brief(verdict)}; {found.since_start_s:.0f} s"
        self._so_far = f"so far, roughly: {said} ({found.signs})" if found.signs else f"so far: {said}"
        cause = ("roughly" if found.signs else "", verdict.bottleneck, *verdict.joint)
        if self._live is None and self._cell is None and self._num_cases == 1 and cause != self._cause:
            self._say(self._so_far)
        self._cause = cause

    def _note(self, case: Case, window: SegmentDone) -> None:
        """Keep what the view shows of a window."""
        if not window.step_s:
            return
        self._step_s[window.arm] = window.step_s
        if window.arm is Arm.REAL and window.num_samples:
            per_step = window.encoded_bytes / window.num_samples * case.step.batch_size
            self._bytes_per_s = per_step / window.step_s

    def finished(self, record: RunRecord) -> None:
        """A case ended; a failure is shown at once."""
        self._number += 1
        self._measured_s += record.wall_s
        if record.failure is not None:
            self._say(f"{record.status}: {record.failure.message}")

    def __enter__(self) -> Progress:
        if self._cell is not None and not self._quiet:
            self._cell.show("starting")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._cell is not None:
            self._cell.clear()

    def _say(self, line: str) -> None:
        line = fmt.clean(line)
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(line))
        else:
            print(line, file=sys.stderr, flush=True)

    def _place(self) -> str:
        if self._num_cases == 1 or self._number > self._num_cases:  # after the last case advice is verified
            return ""
        return f"[{self._number}/{self._num_cases}{self._left()}] "

    def _left(self) -> str:
        if not self._expected_s:
            return ""
        done, left = sum(self._expected_s[: self._number - 1]), sum(self._expected_s[self._number - 1 :])
        left *= self._measured_s / done if done else 1.0
        if self._case is not None:
            left -= min(time.monotonic() - self._began, left)
        return f", {left / 60:.0f} min left" if left > 90 else f", {left:.0f} s left"

    def _view(self) -> RenderableType:
        """The case; rate, stall and bandwidth so far; the verdict so far; progress: a line each. Without a case only
        the phase."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        case, phase = self._case, fmt.clean(self._phase)
        if case is None:
            return Text(phase, style="dim", no_wrap=True, overflow="ellipsis")
        passed = time.monotonic() - self._began
        whole, shown = self._whole(case, passed)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            ProgressBar(total=whole, completed=min(passed, whole), width=24),
            Text(f"{passed:.0f} s{shown} · {phase}", style="dim"),
        )
        lines = [
            Text(fmt.clean(self._place() + self._title(case)), style="bold"),
            Text(self._figures(case) or "starting"),
            *([Text(self._so_far)] if self._so_far else []),
        ]
        for text in lines:
            text.no_wrap, text.overflow = True, "ellipsis"
        return Group(*lines, line)

    def _whole(self, case: Case, passed: float) -> tuple[float, str]:
        """(seconds that the case takes, what is shown of them). A number of steps takes what it takes: until its
        process says how long, that is not known."""
        if self._told_s is not None:
            about = "at most" if case.effort.until_decided else "about"
            return self._told_s, f" of {about} {self._told_s:.0f} s"
        whole = self._expected_s[self._number - 1] if self._number <= len(self._expected_s) else case.effort.duration_s
        return (whole, f" of at most {whole:.0f} s") if case.effort.is_limited else (max(whole, passed), "")

    def _figures(self, case: Case) -> str:
        """`579 images/s · stall 71 % · files 66 MB/s`, of the last windows."""
        real, ready = self._step_s.get(Arm.REAL), self._step_s.get(Arm.DEVICE)
        parts = []
        if real:
            parts.append(f"{fmt.number(case.step.batch_size / real)} images/s")
            if ready:
                parts.append(f"stall {fmt.percent(max(0.0, 1 - ready / real))}")
            if self._bytes_per_s:
                parts.append(f"files {fmt.size(self._bytes_per_s, '/s')}")
        elif ready:
            parts.append(f"the device takes {fmt.number(case.step.batch_size / ready)} images/s")
        return " · ".join(parts)


class Cell:
    """A few lines below a notebook's cell, in place of those before. Where IPython cannot draw them, there are none."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show the text in place of the one before."""
        with suppress(Exception):
            import IPython.display

            of_cell: Any = IPython.display
            shown = of_cell.HTML(f"<pre>{html.escape(text)}</pre>" if text else "")
            if self._handle is None:
                self._handle = of_cell.display(shown, display_id=True)
            else:
                self._handle.update(shown)

    def clear(self) -> None:
        """Leave an empty place."""
        if self._handle is not None:
            self.show("")

    def add(self, result: Result) -> None:
        """Show a result below, as a page."""
        with suppress(Exception):
            import IPython.display

            of_cell: Any = IPython.display
            of_cell.display(result)


def cell_of_notebook() -> Cell | None:
    """Return a place below the cell that runs; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return None if getattr(shell, "kernel", None) is None else Cell()


def _text_of(view: RenderableType) -> str:
    """Return what a terminal of 100 columns shows of it."""
    from loaderbench.reporting.console import make_console

    with io.StringIO() as stream:
        make_console(file=stream, width=100, plain=True).print(view)
        return stream.getvalue().rstrip()


# -- a watched script ------------------------------------------------------------------------------------------


class Judges(Protocol):
    """What judges a script that goes on."""

    verdict: Verdict | None
    """The last one."""
    problem: str | None
    """Why there is none (any more)."""

    def tick(self, watcher: Watcher) -> None:
        """Begin to judge, where it is time to."""
        ...

    def end(self) -> None:
        """Wait for what is under way."""
        ...


ROOM, BACK = "\x1bD\x1bM\x1b7", "\x1b8"
"""A row more below the cursor's, where the terminal has none: it scrolls; the cursor's place is noted. Back to it."""
LEAST_ROWS = 3


class WatchLine:
    """Of a watched script: the last row of its terminal, which does not scroll. What the script prints scrolls above
    it, and stays as it is: lines, a line that goes on, a bar that is drawn again and again.

    It is for a person who looks on, no measurement: where it cannot be written it ends without a word. It goes to the
    process's own stderr by its number, whatever the script has put in place of `sys.stderr`, and only while a terminal
    is there that takes something: one that stands still (Ctrl-S) holds up nothing.
    """

    def __init__(self, judging: Judges) -> None:
        self._judging, self._pid = judging, os.getpid()
        self._has_row = self._has_ended = False

    def show(self, watcher: Watcher) -> None:
        """The rate, the wait for data, the verdict so far, and what is tried next. Nothing behind the script's end."""
        if os.getpid() != self._pid or watcher.main is None:
            return
        if watcher.is_closed:
            self.clear()
            return
        self._judging.tick(watcher)
        if watcher.main.num_batches:
            self._draw(watch_line(watcher, self._judging.verdict, self._judging.problem))

    def clear(self) -> None:
        """The script has ended: its terminal is as it was."""
        self._judging.end()
        if self._has_row:
            self._draw(None)

    def _draw(self, text: str | None) -> None:
        """None: give the row back."""
        stream = sys.__stderr__
        if self._has_ended or stream is None:
            return
        try:
            number = stream.fileno()
            self._has_ended = text is None or not os.isatty(number)
            columns, rows = os.get_terminal_size(number)
            if text is None:
                os.write(number, f"\x1b7\x1b[r\x1b[{rows};1H\x1b[2K{BACK}".encode())
            elif rows >= LEAST_ROWS and select.select((), (number,), (), 0)[1]:
                row = f"\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[2K{text[: columns - 1]}"
                os.write(number, f"{ROOM}{row}{BACK}".encode(stream.encoding, "replace"))
                self._has_row = True
        except (OSError, ValueError):  # also of a file, which has no size
            self._has_ended = True


class CellLine:
    """The same line below a notebook's cell."""

    def __init__(self, judging: Judges, cell: Cell) -> None:
        self._judging, self._cell, self._pid = judging, cell, os.getpid()

    def show(self, watcher: Watcher) -> None:
        """The rate, the wait for data, the verdict so far. It is no measurement: where it fails it ends."""
        if os.getpid() != self._pid or watcher.main is None:
            return
        with suppress(Exception):
            if watcher.is_closed:
                self._judging.end()
                self._cell.clear()
                return
            self._judging.tick(watcher)
            if watcher.main.num_batches:
                self._cell.show(watch_line(watcher, self._judging.verdict, self._judging.problem))


def watch_line(watcher: Watcher, verdict: Verdict | None, problem: str | None) -> str:
    """`watch: 62 batches/s · waits 45 % · prep 2.3× · next burst in 24 s`: what 80 columns hold."""
    main = watcher.main
    assert main is not None
    waited, worked = (main.times_ns[kind] / 1e9 for kind in ("wait", "step"))
    parts = []
    if waited + worked > 0:
        parts.append(f"{fmt.number(main.num_batches / (waited + worked))} batches/s")
        parts.append(f"waits {fmt.percent(waited / (waited + worked))}")
    if problem is not None:
        parts.append(f"not judged ({fmt.clean(problem)})")
    else:
        parts.append("no verdict yet" if verdict is None else _in_few_words(verdict))
    return f"watch: {' · '.join([*parts, _next_probe(watcher)])}"


def _in_few_words(verdict: Verdict) -> str:
    """`prep 2.3×`: the cause, and the gain without it."""
    if verdict.bottleneck == "undetermined":
        return "undetermined so far"
    gain = verdict.joint_speedup
    if not verdict.joint:
        gain = verdict.gain
    told = "" if gain is None else f" {gain.value:.1f}×"
    return "+".join(verdict.joint or (verdict.bottleneck,)) + told


def _next_probe(watcher: Watcher) -> str:
    """What is tried next on the run."""
    if watcher.probes == "none":
        return "no probes"
    seconds = watcher.next_burst_s()
    if seconds is not None:
        return f"next burst in {seconds:.0f} s" if seconds >= 1.0 else "next burst now"
    others = [name for name in ("delay", "shadow") if watcher.wants(name)]
    return f"{', '.join(others)}, no bursts" if others else "no bursts"
