"""The page for coding agents says what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from loaderbench.commands.agents import PAGE
from loaderbench.commands.app import commands
from loaderbench.recording.record import Bottleneck, RunRecord, Verdict
from tests.commands import call

ROOT = Path(__file__).resolve().parents[1]


def test_it_is_printed_and_in_the_docs() -> None:
    text = PAGE.read_text()
    ended = call("agents")
    assert (ended.code, ended.out) == (0, text)
    assert (ROOT / "docs/agents.md").read_text() == text


def test_its_commands_options_and_fields_exist() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"`loaderbench ([a-z]+)", text))
    assert named <= {*commands(), "agents"}
    helped = "".join(call(name, "--help").out for name in sorted(named))
    options = set(re.findall(r"--[a-z][a-z-]+", text))
    assert {one for one in options if one not in helped} == set()
    causes = set(re.findall(r"`(\w+)`", text.split("`verdict.bottleneck` |")[1].splitlines()[0]))
    assert causes == set(get_args(Bottleneck))
    fields = set(re.findall(r"`verdict\.(\w+)", text))
    assert fields <= set(Verdict.__dataclass_fields__)
    assert {"throughput", "shares", "caveats", "accelerator_utilization_fraction"} <= set(
        RunRecord.__dataclass_fields__
    )
