"""What users most often type wrong, and what a command says that is typed alone.

All is looked at in a process that can start no measurement (tests/planned.py): a command that would begin one says so
here. Lines whose answer depends on the machine (its memory, its GPUs) are in tests/test_refusals.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from planned import IMPORTS, MAKES, MEASURES, Planned, planned

from tests.screens import stored
from tests.screens.facts import facts_of
from tests.screens.golden import Made
from tests.screens.shown import LOOKS, same_everywhere, typed

RUN, CPU = ["run", "set/96", "--device", "emulated"], ["run", "set/96", "--device", "cpu", "--model", "resnet18"]
OF_A_SET = ["run", "set", "--device", "emulated", "--precision", "fp32"]
SIDES = ["compare", "a=set/96", "--device", "emulated"]
COPIES = [*SIDES, "b=copy/96"]
OPTIONS = [
    [*RUN, "--loader-option", "foo=1"],
    [*RUN, "--loader-option", "prefetch"],
    [*RUN, "--loader-option", "persistent_workers=perhaps"],
    [*RUN, "--loader-option", "sharing=all"],
    [*RUN, "--loader", "cached", "--loader-option", "budget_mib=x"],
    [*RUN, "--decoder-option", "resize=z"],
    [*RUN, "--decoder", "opencv", "--decoder-option", "resize=z"],
    [*RUN, "--decoder", "libjpeg", "--decoder-option", "scale=z"],
    [*RUN, "--loader", "synthetic", "--decoder-option", "a=1"],
    [*CPU, "--model", "resnet5"],
    [*CPU, "--model", "xyzzy"],
    [*CPU, "--model", "no_such_module:make"],
    [*CPU, "--model", "json.nosuch:make"],
    [*CPU, "--model", "my models:make"],
    [*CPU, "--model", "emulated"],
    [*CPU, "--precision", "fp16"],
    [*CPU, "--precision", "tf32"],
    [*CPU, "--loss-scale", "128"],
    [*CPU, "--precision", "fp16", "--loss-scale", "-2"],
    [*RUN, "--loss-scale", "128"],
    [*RUN, "--loader", "nosuch"],
    [*RUN, "--loader", "nvjpeg"],
    [*RUN, "--loader", "dali", "--decoder", "pillow"],
    [*RUN, "--decoder", "nosuch"],
    [*RUN, "--precision", "fp8"],
    [*RUN, "--mode", "test"],
    [*RUN, "--cache", "hot"],
    [*RUN, "--arms", "host"],
    [*RUN, "--steps", "0"],
    [*RUN, "--duration", "nan"],
    [*RUN, "--duration", "inf"],
    [*RUN, "--duration", "1e12"],
    [*RUN, "--input-size", "100000"],
    [*RUN, "--workers", "-1"],
    [*RUN, "--workers", "0"],
    [*RUN, "--workers", "two"],
    [*RUN, "--workers", "1,2"],
    [*RUN, "--io-threads", "4"],
    [*RUN, "--decode-scale", "auto"],
    [*RUN, "--json", "nosuch/folder/x.json"],
    [*RUN, "--nosuch"],
    [*RUN, "--tag", "latest"],
    [*RUN, "--results", "trace.json"],
    ["run", "set/96", "--device", "tpu"],
    ["run", "set/96", "--price", "0"],
    ["run", "set/96", "--device", "emulated:nosuch"],
    OF_A_SET,
    [*OF_A_SET, "--res", "97"],
    [*OF_A_SET, "--res", "abc"],
    [*RUN, "--res", "96"],
    ["run", "nosuch"],
    ["run", "nothing-in-it"],
    ["run", ""],
    ["run", "--json="],
    ["sweep", "set/96,,set/128", "--device", "emulated"],
    ["sweep", "set/96", "--device", "cpu", "--model", "resnet18", "--precision", "fp16,tf32"],
    ["tune", "set/96", "--device", "emulated", "--budget", "0"],
    [*SIDES, "b=set/96"],
    [*SIDES, "b=./set/96"],
    [*COPIES, "--device", "cpu", "--model", "resnet5"],
    [*COPIES, "--baseline", "latest"],
    ["compare", "set/96", "copy/96"],
    ["capacity", "set/96", "--batch-size", "1", "--device", "cuda"],
    ["capacity", "set/96"],
    ["capacity", "set/96", "--batch-size", "1", "--device", "cpu"],
    ["capacity", "nosuch"],
    ["precision", "--model", "nosuch"],
    ["precision", "--device", "emulated"],
    ["precision", "--device", "cpu", "--precisions", "fp8"],
    ["watch", "nosuch.py"],
    ["watch", "--price", "cheap", "nosuch.py"],
    ["model", "layers", "nosuch"],
    ["model", "layers", "resnet18", "--device", "emulated"],
    ["model", "layers", "lenet", "--input-size", "8"],
    ["model", "memory", "nosuch.module:make"],
    ["model", "memory", "resnet18", "--device", "cpu", "--precision", "fp16"],
    ["model", "offload", "resnet18", "--memory", "1K"],
    ["model", "fit", "resnet18", "--memory", "1"],
    ["model", "size", "resnet18", "--target", "x"],
    ["model", "size", "resnet18"],
    ["model", "split", "resnet18"],
    ["model", "split", "resnet18", "--device", "auto,cpu:1"],
]
"""Wrong options, of commands that measure."""

FAILED, DIED = stored.RUN_IDS["run-failed"], stored.run_id(1, "died")
OTHERS = [
    ["show", "nosuch", "--results", "runs"],
    ["show", "2026", "--results", "runs"],
    ["show", "latest", "--results", "nothing"],
    ["show", DIED, "--results", "damaged"],
    ["show", stored.run_id(2, "cut-off"), "--results", "damaged"],
    ["show", stored.run_id(3, "newer"), "--results", "damaged"],
    ["show", stored.run_id(4, "empty"), "--results", "damaged"],
    ["show", stored.run_id(500, "nonsense"), "--results", "damaged"],
    ["show", stored.run_id(501, "cut-off"), "--results", "damaged"],
    ["show", "latest", "--results", "runs", "--json", "nosuch/x.json"],
    ["show", "latest", "--results", "runs", "--price", "-3/h"],
    ["show", stored.STUDY_IDS["capacity"], "--results", "kinds", "--price", "3"],
    ["show", stored.STUDY_IDS["sweep"], "--results", "kinds", "--price", "3", "--json", "-"],
    ["report", "--results", "runs", "--price", ".50/h"],
    ["list", "--results", "trace.json"],
    ["report", "--results", "nothing"],
    ["report", "nosuch", "--results", "runs"],
    ["report", "--format", "pdf", "--results", "runs"],
    ["report", "--out", "nosuch/x.html", "--results", "runs"],
    ["analyze", "nosuch", "--results", "runs"],
    ["analyze", "--all", "latest", "--results", "runs"],
    ["analyze", "--all", "--results", "nothing"],
    ["ledger", "--kind", "nosuch", "--results", "runs"],
    ["ledger", "--last", "0", "--results", "runs"],
    ["rm", "nosuch", "--results", "runs"],
    ["compare", "latest", FAILED, "--results", "runs"],
    ["compare", "--baseline", "latest", "--results", "runs"],
    ["compare", "--baseline", "latest", "--threshold", "2", "--results", "runs"],
    ["forecast", "latest", "--results", "nothing"],
    ["forecast", FAILED, "--results", "runs"],
    ["whatif", "latest", "--results", "runs"],
    ["whatif", "latest", "--workers", "4", "--results", "nothing"],
    ["whatif", FAILED, "--workers", "4", "--results", "runs"],
    ["whatif", stored.STUDY_IDS["whatif"], "--workers", "4", "--results", "kinds"],
    ["whatif", stored.STUDY_IDS["tune"], "--workers", "4", "--results", "kinds"],
    ["whatif", "latest", "--workers", "-1", "--results", "runs"],
    ["whatif", "latest", "--ranks", "1", "--results", "runs"],
    *(
        ["whatif", stored.RUN_IDS["watched-waits"], *change, "--results", "runs"]
        for change in (
            ("--workers", "0"),
            ("--workers", "9999"),
            ("--device", "emulated:a100"),
            ("--decoder", "pillow"),
            ("--storage", "500M/s"),
            ("--storage", "quick"),
        )
    ),
    ["trace", "nosuch", "--results", "runs"],
    ["trace", FAILED, "--results", "runs"],
    ["gaps", "nosuch.json"],
    ["gaps", "set"],
    ["gaps", "no-trace.json"],
    ["dataset", "scan", "nosuch"],
    ["dataset", "derive", "nosuch", "--res", "96", "--out", "made"],
    ["dataset", "derive", "set/96", "--res", "x", "--out", "made"],
    ["dataset", "convert", "set/96", "--to", "nosuch", "--out", "made"],
    ["dataset", "make", "--res", "x", "--out", "made"],
    ["install", "nosuch"],
    ["nosuch"],
    ["model", "nosuch"],
    ["--nosuch"],
    [*CPU, "--mode", "infer", "--loss-scale", "dynamic"],
]
"""What is not in a folder, or is damaged there; commands that do not exist; two faults at once."""
REFUSED = [*OPTIONS, *OTHERS]

STOPPED = {
    MEASURES: "it would begin to measure", IMPORTS: "it would import torch", MAKES: "it would make a data set",
}  # fmt: skip


class Refusals:
    """A file for each command: typed alone, and typed wrong."""

    name = "errors"

    def __init__(self, commands: Sequence[tuple[str, ...]]) -> None:
        self._commands = commands

    def made(self, folder: Path) -> Made:
        with TemporaryDirectory() as own, mock.patch.dict(os.environ, LOOKS["piped"].environ(), clear=True):
            for one in folder.iterdir():  # what is not refused may write there
                (Path(own) / one.name).symlink_to(one)
            ended = planned([*self._commands, *REFUSED], Path(own))
        of_command: dict[str, list[Planned]] = {}
        for one in ended:
            of_command.setdefault(self._command(one.words), []).append(one)
        said = {
            name: [
                (typed(one.words), _said(one).replace(own, "FOLDER").replace(str(folder), "FOLDER")) for one in every
            ]
            for name, every in of_command.items()
        }
        return Made(
            {f"errors/{name}.txt": "\n".join(line + text for line, text in every) for name, every in said.items()},
            {
                f"errors/{name}.facts": "".join(line + facts_of(text) for line, text in every)
                for name, every in said.items()
            },
        )

    def _command(self, words: Sequence[str]) -> str:
        return next(("-".join(words[:n]) for n in (2, 1) if tuple(words[:n]) in self._commands), "loaderbench")


def _said(one: Planned) -> str:
    how = f"stopped: {STOPPED[one.code]}" if isinstance(one.code, str) else f"exit code {one.code}"
    return same_everywhere(f"{one.out}{one.err}-- {how} --\n")
