"""Builds records and studies anew from what tells nothing of their owner, for a report that may be given away.

Figures pass. A text passes where it is loaderbench's own (own_texts.py) or a name that everybody has (public_names.py).
`RULES` says what becomes of the texts of certain fields; any other text, and so that of any new field, is left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import cast

import numpy as np

from loaderbench.analysis.forecast import setting_of
from loaderbench.cases.case import Subject
from loaderbench.devices.profile import named, shipped_names
from loaderbench.plugins import DECODERS, DEVICES, LOADERS
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.forecast import Forecast, ForecastFacts
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import StudyRecord
from loaderbench.reporting import public_names, words
from loaderbench.reporting.own_texts import is_own

LEFT_OUT = "text left out"
MOST_TOLD = 20
"""Names of a kind that the owner is told; a model has hundreds of layers."""
TOLD = (
    "data set", "folder", "model", "script", "label", "node", "server", "loader", "decoder", "device", "profile",
    "class", "class folder", "place", "processor", "GPU",
)  # fmt: skip
"""Kinds of names that the owner is told."""
FIGURE = re.compile(r"\d{1,6}(?:[./]\d{1,6})?")
"""`64`, `0.5`, and `2/4` of a shard."""
TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|\+\d\d:\d\d)?")
STAMP = re.compile(r"\d{8}-\d{6}-\d{3}(?=-)")
"""Begin of the id of a run or study, which goes on with the names of its data set and loader."""
VERSION = re.compile(
    r"\d{1,5}(?:\.\d{1,5}){0,3}(?:\.?(?:a|b|rc|post|dev)\d{1,8})?(?:\+(?:cpu|xpu|(?:cu|rocm)[\d.]{1,5}))?"
)
VALUES = re.compile(r"-?\d{1,7}(?:,-?\d{1,7})*")
"""Of an environment variable."""
PROCESSORS = re.compile(r"the affinity mask allows \d+ of \d+ CPUs \(taskset, cpuset\)|a cgroup quota of [\d.]+ CPUs")
COUNTER = re.compile(r"diskstats|/proc/diskstats|/proc/self/mountstats")
"""What counts a storage's bytes, without the disk or mount."""
RATE = re.compile(r"[\d.]+\s*([kKMGT]?i?B?/s|[x×])")
"""A storage as a what-if is asked for it."""
EMULATED = re.compile(r"emulated (?P<name>.+) \(profile (?P<profile>[^:]+): (?P<origin>[^:]+)\)")


class Anonymous:
    """Builds anew what a report is about. A name that is somebody's own gets a number, the same wherever it stands."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {}
        """Kind → name → what it is called instead."""

    def record(self, record: RunRecord) -> RunRecord:
        """The run with its sentences composed anew from their codes and figures."""
        found = cast(RunRecord, self._built(record, None))
        known = record.rules_version > 0  # the first schema had sentences in place of codes
        caveats = tuple(_worded(one) if known else replace(one, message=LEFT_OUT) for one in found.caveats)
        found = replace(found, caveats=caveats)
        try:
            return words.worded(found)
        except Exception:  # codes of a newer version, or a record that was edited: its sentences stay left out
            return found

    def study(self, study: StudyRecord) -> StudyRecord:
        """The study. Its page is judged from its facts; the ledger takes its findings."""
        found = cast(StudyRecord, self._built(study, None))
        if isinstance(found.facts, ForecastFacts) and isinstance(found.findings, Forecast):
            return replace(found, findings=replace(found.findings, setting=setting_of(found.facts.source)))
        return found

    def numbered(self, kind: str, name: str) -> str:
        """What the name is called instead: `data set 2`."""
        known = self._names.setdefault(kind, {})
        return known.setdefault(name, f"{kind} {len(known) + 1}")

    def run_id(self, name: str) -> str:
        """The time at which the run or study began, which is the begin of its id; a number where it has none."""
        stamp, known = STAMP.match(name), self._names.setdefault("stamp", {})
        if name not in known and (stamp is None or stamp[0] in known.values()):
            return self.numbered("run", name)
        return known.setdefault(name, "" if stamp is None else stamp[0])

    def told(self) -> list[str]:
        """What is called how, for the owner alone."""
        lines = []
        for kind in TOLD:
            known = list(self._names.get(kind, {}).items())
            lines += [f"{instead}: {name}" for name, instead in known[:MOST_TOLD]]
            lines += [f"and {len(known) - MOST_TOLD} more"] if len(known) > MOST_TOLD else []
        return lines

    def _built(self, value: object, rule: Rule | None, key: str = "") -> object:
        """`rule`: None: that of `key`, the innermost name in a mapping."""
        if value is None or isinstance(value, Enum | bool | int | float):
            return value
        if isinstance(value, str):
            rule = RULES.get(key, left_out_unless_harmless) if rule is None else rule
            return rule(self, value) if value else value
        if isinstance(value, Mapping):
            return {self._key(name): self._built(item, rule, str(name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._built(item, rule, key) for item in value)
        if isinstance(value, np.ndarray):
            return value if value.dtype.kind in "biuf" else None
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._built_dataclass(value)
        raise TypeError(f"no rule says which fields of {type(value).__name__} may be published")

    def _built_dataclass(self, value: object) -> object:
        given = {}
        kind = type(value).__name__
        for field in dataclasses.fields(value):  # type: ignore[arg-type]
            if field.init:
                given[field.name] = self._built(getattr(value, field.name), rule_of(kind, field.name))
        if isinstance(value, Subject):  # resolutions of one set stay together
            given["dataset"] = self._place(value)
        return dataclasses.replace(value, **given)  # type: ignore[type-var]

    def _place(self, subject: Subject) -> str:
        whole = subject.dataset.rstrip("/")
        root = whole.removesuffix(f"/{subject.resolution}")
        return self.numbered("folder", root) + whole.removeprefix(root)

    def _key(self, key: object) -> object:
        if not isinstance(key, str) or isinstance(key, Enum):
            return key
        known = is_own(key) or key in public_names.PACKAGES or key in public_names.ENVIRONMENT
        return key if known else self.numbered("name", key)


Rule = Callable[[Anonymous, str], str]
"""What becomes of a text."""


def rule_of(kind: str, field: str) -> Rule | None:
    """The rule for the texts of a dataclass's field; None: their names in the mapping decide."""
    if field in ("change", "untried") or f"{kind}.{field}" in KEYED:
        return None
    return RULES.get(f"{kind}.{field}", RULES.get(field, left_out_unless_harmless))


def _worded(caveat: Caveat) -> Caveat:
    try:
        return caveat.worded()
    except Exception:  # a record that was edited, or details of a newer version
        return replace(caveat, message=LEFT_OUT)


# -- rules -----------------------------------------------------------------------------------------------


def left_out_unless_harmless(anonymous: Anonymous, text: str) -> str:
    """The rule for every field that has none of its own."""
    return text if is_own(text) or text in public_names.SYSTEMS or FIGURE.fullmatch(text) else LEFT_OUT


def emptied(anonymous: Anonymous, text: str) -> str:
    """A sentence that is composed anew."""
    return ""


def either(kind: str, harmless: Callable[[str], object]) -> Rule:
    """A name as it is where it is harmless, else a number."""
    return lambda anonymous, text: text if harmless(text) else anonymous.numbered(kind, text)


def numbered(kind: str) -> Rule:
    """Always a number."""
    return lambda anonymous, text: anonymous.numbered(kind, text)


def one_of(*known: Collection[str]) -> Callable[[str], bool]:
    return lambda text: any(text in names for names in known)


def or_script(rule: Rule) -> Rule:
    """A watched script stands where other runs have their model and their data set."""
    return lambda anonymous, text: anonymous.numbered("script", text) if text.endswith(".py") else rule(anonymous, text)


def library_class(anonymous: Anonymous, text: str) -> str:
    """A class or function of PyTorch or torchvision, without its module, or a device; else a number."""
    if EMULATED.fullmatch(text):
        return device_name(anonymous, text)
    name = text.rpartition(".")[2]
    return name if name in public_names.CLASSES else anonymous.numbered("class", text)


def device(anonymous: Anonymous, text: str) -> str:
    """A device as `--device` names it; `emulated:profile 1` of a profile of the owner's own."""
    kind, _, detail = text.partition(":")
    if kind not in DEVICES.built_in:
        return anonymous.numbered("device", text)
    known = not detail or detail.isdigit() or _profile_of(detail) in shipped_names()
    return text if known else f"{kind}:{anonymous.numbered('profile', detail)}"


def device_name(anonymous: Anonymous, text: str) -> str:
    """What a device's maker calls it, else a number. A file may give an emulated one any name."""
    emulated = EMULATED.fullmatch(text)
    if emulated is not None:
        name, profile, origin = emulated["name"], emulated["profile"], emulated["origin"]
        if _device_of(_profile_of(profile)) != name:
            name, profile = anonymous.numbered("device", name), anonymous.numbered("profile", profile)
        return f"emulated {name} (profile {profile}: {left_out_unless_harmless(anonymous, origin)})"
    return text if public_names.is_hardware(text) else device(anonymous, text)


def _profile_of(detail: str) -> str:
    """The profile's name of `h200-resnet50-train-fp32x0.5`."""
    return re.sub(r"x\d+(?:\.\d+)?$", "", detail) if detail not in shipped_names() else detail


def _device_of(profile: str) -> str | None:
    return named(profile).device_name if profile in shipped_names() else None


def memory_source(anonymous: Anonymous, text: str) -> str:
    """The folder of a cgroup names users, services and containers."""
    return "a cgroup" if text.startswith("/sys/fs/cgroup/") else left_out_unless_harmless(anonymous, text)


def asked_storage(anonymous: Anonymous, text: str) -> str:
    """A rate or a factor stays; anything else is a run."""
    return text if RATE.fullmatch(text) else anonymous.run_id(text)


def matching(pattern: re.Pattern[str]) -> Rule:
    """The begin of the text that follows the pattern."""

    def rule(anonymous: Anonymous, text: str) -> str:
        begin = pattern.match(text)
        return left_out_unless_harmless(anonymous, text) if begin is None else begin[0]

    return rule


def _time(anonymous: Anonymous, text: str) -> str:
    return text if TIME.fullmatch(text) else ""


_data_set = or_script(either("data set", one_of(public_names.SIDES)))
_model = or_script(either("model", one_of(public_names.MODELS)))
_loader = either("loader", one_of(LOADERS.built_in, public_names.CLASSES))
_decoder = either("decoder", one_of(DECODERS.built_in, DECODERS.aliases))
_layer = either("layer", public_names.is_layer)
_operator = either("operator", public_names.is_layer)
_version = either("version", VERSION.fullmatch)
_gpu = either("GPU", public_names.is_hardware)
_processor = either("processor", public_names.is_hardware)
_option = either("value", lambda text: FIGURE.fullmatch(text) or is_own(text))
_variable = either("value", lambda text: VALUES.fullmatch(text) or text in public_names.ENVIRONMENT)

INPUTS = re.compile(
    r"(\d+(,\d+)*|scalar)(:\w+)?(\+(\d+(,\d+)*|scalar)(:\w+)?)*|\d+(×\d+)*( \w+\d+)?( and \d+(×\d+)*( \w+\d+)?)*"
)
"""A model's inputs without names."""
LOSSES = {"own", "returned by the model", "cross-entropy", "binary cross-entropy", "mean of squares"}
KEYED = {"Caveat.details", "Reason.details", "Advice.details"}
"""Mappings in which each text is what its name says."""
RULES: Mapping[str, Rule] = {
    # names
    "dataset_name": _data_set, "data_set": _data_set, "labels": _data_set, "model": _model, "tag": numbered("label"),
    "script": numbered("script"), "node": numbered("node"), "nodes": numbered("node"), "thread": numbered("thread"),
    "run_id": Anonymous.run_id, "study_id": Anonymous.run_id, "source_id": Anonymous.run_id,
    "runs": Anonymous.run_id, "own_runs": Anonymous.run_id, "run_ids": Anonymous.run_id,
    "null_loader_run": Anonymous.run_id,
    "WhatifAsked.storage": asked_storage,
    "inputs": either("inputs", INPUTS.fullmatch), "loss": either("loss", one_of(LOSSES)),
    # plug-ins and their options
    "loader": _loader, "decoder": _decoder, "device": device, "beside": device,
    "loader_options": _option, "decoder_options": _option,
    "RunRecord.loader": left_out_unless_harmless, "Capacity.loader": left_out_unless_harmless,
    # files
    "path": numbered("file"), "files": numbered("file"),
    "folder": numbered("class folder"), "iterated_at": numbered("place"), "stores": numbered("server"),
    # code
    "name": library_class, "data": library_class, "collate": library_class, "sampler": library_class,
    "WatchedLoader.kind": library_class, "OptimizerFacts.name": either("class", one_of(public_names.OPTIMIZERS)),
    "CallFacts.name": _layer, "LayerOutput.name": _layer, "LayerRow.name": _layer, "LayerMemory.name": _layer,
    "type": _layer,
    "modules": _layer, "module": _layer, "operators": _operator, "operator": _operator,
    # hardware and what runs on it
    "Gpu.name": _gpu, "cpu_model": _processor, "DeviceFacts.name": device_name, "DeviceFigures.name": device_name,
    "SourceFacts.device": device_name,
    "device_name": device_name, "SplitMember.name": device_name,
    "python": _version, "packages": _version, "driver": _version, "cuda_driver": _version,
    "kernel": matching(public_names.KERNEL),
    "variables": _variable, "cpu_limit_reason": matching(PROCESSORS), "memory_limit_source": memory_source,
    "StorageFigures.source": matching(COUNTER), "SideStorage.source": matching(COUNTER),
    "storage_source": matching(COUNTER), "launcher": either("launcher", one_of(public_names.LAUNCHERS)),
    # times, and sentences that follow from codes
    "started_at": _time, "date": _time, "overhead_measured_at": _time,
    "Caveat.message": emptied, "Caveat.hint": emptied,
}  # fmt: skip
"""Field, or `Class.field`, or name in a mapping → what becomes of its texts."""
