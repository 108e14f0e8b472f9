"""The table of arms: what each one is, and that nobody else spells their names."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import loaderbench
from loaderbench.cases.arms import ARMS, CHAIN, TABLE, Arm, parse_arms
from loaderbench.errors import ConfigError

PACKAGE = Path(loaderbench.__file__).parent

TRAITS = {
    #            fed from    device  decodes storage weight
    "device":   ("resident", True,   True,   False,  0.5),
    "host":     ("ready",    True,   True,   False,  0.5),
    "ram":      ("memory",   True,   True,   False,  1.0),
    "real":     ("storage",  True,   True,   True,   1.0),
    "free":     ("storage",  False,  True,   True,   1.0),
    "fetch":    ("storage",  False,  False,  True,   0.5),
    "prep":     ("memory",   False,  True,   False,  1.0),
    "short":    ("storage",  True,   True,   True,   1.0),
    "traced":   ("storage",  True,   True,   True,   1.0),
    "untraced": ("storage",  True,   True,   True,   1.0),
    "delayed":  ("storage",  True,   True,   True,   1.0),
}  # fmt: skip
"""As docs/method.md, `Arms`, has them."""


@pytest.mark.parametrize("name", TRAITS)
def test_the_traits_of_each_arm(name: str) -> None:
    arm = Arm(name)
    assert (arm.source, arm.on_device, arm.decodes, arm.touches_storage, arm.weight) == TRAITS[name]


def test_every_arm_has_a_row() -> None:
    assert [arm.value for arm in Arm] == ["device", "host", "ram", "real", "free", "fetch", "prep", "short", "traced",
                                          "untraced", "delayed"]  # fmt: skip
    assert set(TABLE) == set(Arm) and {arm.value for arm in Arm} == set(TRAITS)


def test_those_that_can_be_asked_for_are_in_the_order_of_a_round() -> None:
    assert ARMS == (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL, Arm.FREE, Arm.FETCH)
    assert CHAIN == (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL)


def test_names_become_arms_in_the_table_s_order() -> None:
    assert parse_arms(["fetch", " real", "device "]) == (Arm.DEVICE, Arm.REAL, Arm.FETCH)
    assert parse_arms(ARMS) == ARMS
    for wrong in (["device"], ["real", "prep"], ["real", "traced"], ["real", ""], []):
        with pytest.raises(ConfigError, match=r"--arms must be all, or a list with real out of: device, host, ram"):
            parse_arms(wrong)


ELSEWHERE = {
    ("loaders/fetch.py", "fetch"): 1,  # the name of the loader that only reads
}
"""(file, text) → how often it stands there and means something else than an arm."""


def test_nobody_else_spells_an_arm_s_name() -> None:
    names = {"ram", "real", "free", "fetch", "traced", "untraced"}  # the others are words of other things too
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == PACKAGE / "cases" / "arms.py" or path.parent.name == "findings":  # whose examples name some
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in names:
                found[str(path.relative_to(PACKAGE)), str(node.value)] += 1
    assert dict(found) == ELSEWHERE
