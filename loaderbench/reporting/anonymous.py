"""Leaves out of a report what tells whose machine it was: folders, hosts, users, servers, disks, serial numbers."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from loaderbench.recording.record import RunRecord
from loaderbench.reporting import format as fmt

T = TypeVar("T")

NOBODY = {"root", "localhost", "nobody"}
"""Names that every machine has."""
PLAIN_PATHS = r"/dev/shm\b|/proc/(?!\d)[a-z]+|/sys/fs/cgroup(?=[\s,;:)]|$)"
"""Paths that are the same everywhere, and are named as a source of figures."""
NAMELESS: tuple[tuple[str, str], ...] = (
    (r"\b\w+://[^\s,;)\]'\"`]+(?<!:)", "(address)"),
    (r"(?<![\w/])[\w.\[-][\w.:\]-]*:/[^\s,;)\]'\"`]*(?<!:)", "(path)"),  # server:/export, profile:/path
    (rf"(?<![\w.)/])(?!{PLAIN_PATHS})~?/[^\s,;:)\]'\"`]+", "(path)"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "(id)"),
    (r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b", "(id)"),  # of a PCI device
    (r"\b(?![\w-]+\.py:\d)(?:[\w-]+\.)+[a-zA-Z][\w-]*:\d+\b", "(address)"),  # but for train.py:41
    (r"(?<=[^\d.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|^\d{1,3}(?:\.\d{1,3}){3}:\d+$", "(address)"),
    (r"\b(?:[sv]d[a-z]{1,2}\d*|xvd[a-z]\d*|nvme\d+n\d+(?:p\d+)?|mmcblk\d+(?:p\d+)?|dm-\d+|loop\d+)\b", "(disk)"),
)  # fmt: skip
"""What is left out wherever it stands → what stands there instead."""


def names_of_this_machine() -> set[str]:
    """Host and user, in every form in which they may be in a text."""
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user number without a name
        user = ""
    return {name for name in (host, host.partition(".")[0], user, Path.home().name) if len(name) > 1} - NOBODY


class Anonymous:
    """As `fmt.cleaned`, without these names. Give it the records first: it learns their folders."""

    def __init__(self, names: Iterable[str]) -> None:
        self._places: dict[str, str] = {}
        """Folder of a data set → what it is called instead. Runs of one set still belong together."""
        self._slow: dict[str, str] = {}
        """Slow files, and what is said of their folders → what stands there instead."""
        words = sorted(names, key=len, reverse=True)
        self._name = re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, words))})(?![^\W_])") if words else None
        self._nameless = [(re.compile(pattern), instead) for pattern, instead in NAMELESS]

    def __call__(self, value: T) -> T:
        value = fmt.cleaned(value)
        if not isinstance(value, RunRecord):
            return fmt.with_texts(value, self._text)
        subject = value.case.subject
        root = subject.dataset.rstrip("/").removesuffix(f"/{subject.resolution}")
        place = self._places.setdefault(root, f"data-set-{len(self._places) + 1}")
        record = self._without_slow_files(value)
        dataset = f"{place}{subject.dataset.rstrip('/').removeprefix(root)}"
        found = fmt.with_texts(record, self._text)
        feed = found.case.feed
        options = {key: "(address)" if key == "address" else text for key, text in feed.loader_options.items()}
        subject, feed = replace(found.case.subject, dataset=dataset), replace(feed, loader_options=options)
        return cast(T, replace(found, case=replace(found.case, subject=subject, feed=feed)))

    def _without_slow_files(self, record: RunRecord) -> RunRecord:
        """The record whose figures name no slow file and no folder of theirs; its texts are to leave them out too."""
        storage, verdict = record.storage, record.verdict
        if storage is None or (storage.tail is None and storage.slow_folder is None):
            return record
        tail, slower = storage.tail, storage.slow_folder
        if tail is not None:
            self._slow |= dict.fromkeys((file.path for file in tail.files), "(path)")
            self._hide(tail.folder)
            files = tuple(replace(file, path="(path)") for file in tail.files)
            tail = replace(tail, files=files, folder=None if tail.folder is None else "(path)")
        if slower is not None:
            self._hide(slower.folder)
            slower = replace(slower, folder="(path)")
        if verdict is not None:
            kept = (replace(one, details={}) if one.code == "slow_files_elsewhere" else one for one in verdict.advice)
            verdict = replace(verdict, advice=tuple(kept))
        return replace(record, storage=replace(storage, tail=tail, slow_folder=slower), verdict=verdict)

    def _hide(self, folder: str | None) -> None:
        """Leave a folder out where it is said to be slow: it may be called `train`."""
        for said in ("of them in {};", "slow files ({})", "files in {} take"):
            self._slow[said.format(folder)] = said.format("(path)")

    def _text(self, text: str) -> str:
        for said, instead in sorted(self._slow.items(), key=lambda item: -len(item[0])):
            text = text.replace(said, instead)
        for root in sorted(self._places, key=len, reverse=True):
            if root and root in text:
                # An image's name may hold blanks: it ends with its suffix.
                text = re.sub(rf"{re.escape(root)}(?:/[^\n]*?\.(?i:jpe?g|tar|bin|beton)\b|[^\s,;:)]*)", "(path)", text)
        for pattern, instead in self._nameless:
            text = pattern.sub(instead, text)
        return text if self._name is None else self._name.sub("(name)", text)
