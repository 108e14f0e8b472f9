"""What to run. A Case holds everything that may change a number, and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ARMS = ("device", "host", "ram", "real", "free", "fetch")
"""Every arm, in the order of measurement.md (`Arms`)."""

CACHE_STATES = ("cold", "warm", "as-is")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "pure-bf16", "pure-fp16", "amp-bf16", "amp-fp16")
"""What each stores and computes in: docs/precision.md, `The modes`."""
MODES = ("train", "infer")
OUTPUTS = ("float32", "uint8")
DECODE_SCALES = ("auto", "off")
SHARED_QUEUE = frozenset({"dali", "ffcv", "nvjpeg"})
"""Loaders whose prefetch counts batches in all, not for each worker."""
SHORT_RUN_STEPS = 100
"""Iterations of a short run and of a study's total times, unless `steps` says so: those of the study that this one
follows (S-A1)."""


@dataclass(frozen=True)
class Case:
    """One configuration to measure. JSON both ways; `key` is a hash of its content."""

    dataset: str
    """Absolute path of the image tree that is read (the variant's folder, not the set's)."""
    dataset_name: str
    """What the user called it."""
    resolution: int | None
    """Stored resolution (`--res`), None for a tree without variants."""
    loader: str
    decoder: str | None
    """None for a loader that decodes for itself or does not decode."""
    workers: int
    """Processes or threads that prepare batches; 0 for the serial loader."""
    prefetch: int
    """Batches prepared ahead, per worker."""
    batch_size: int
    model: str
    mode: str
    precision: str
    device: str
    """`cpu`, `cuda:N` or `emulated:PROFILE`."""
    input_size: int | None
    """Side of the square the model sees; None (`full`) is the stored image uncropped."""
    output: str = "float32"
    """Pixel type that the loader hands over: float32 (normalized) or uint8 (normalized on the device)."""
    overlap: bool = True
    """Copies to the device run beside the compute of earlier steps, on a stream of their own."""
    cache: str = "as-is"
    arms: tuple[str, ...] = ARMS
    warmup: int | None = None
    """Warm-up steps of each window; None: until the loader's queue is steady."""
    steps: int | None = None
    """Measured steps of each arm; None: until `ci_target` or `duration_s`."""
    duration_s: float = 60.0
    """Most seconds of measuring, all arms together."""
    buffer_ratio: float | None = None
    """Prefetch buffer ÷ iterations of short runs, which are then measured beside the arms; None: no short runs."""
    max_bytes: int | None = None
    """Most bytes to read from the data set's storage; None: no limit."""
    ci_target: float = 0.03
    """Stop when the 95 % half-width of the real arm's step time is at most this fraction."""
    kernels: bool = True
    """Trace a short window of steps behind the arms, for the kernel gaps."""
    loss_scale: str | None = None
    """`dynamic`, or a whole number that the loss is multiplied by; None: the precision's default."""
    seed: int = 0
    repeat: int = 0
    """Which of `--repeats` processes this is."""
    max_failure_fraction: float = 0.01
    """More undecodable images than this fraction of those read fail the case."""
    decode_scale: str | None = None
    """`auto`: large crops are decoded at 1/2, 1/4 or 1/8, never below the sample's size; `off`: at full size. None:
    the decoder cannot scale."""
    loader_options: Mapping[str, str] = field(default_factory=dict)
    decoder_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        """Batches that are prepared at once: one for each worker, one without workers."""
        return max(self.workers, 1)

    @property
    def buffer_batches(self) -> int:
        """Batches that are prepared ahead when the loader rests."""
        if self.workers == 0:
            return 0
        return self.prefetch * (1 if self.loader in SHARED_QUEUE else self.workers)

    @property
    def key(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON form."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` is the inverse."""
        record = dataclasses.asdict(self)
        record["arms"] = list(self.arms)
        record["loader_options"] = dict(self.loader_options)
        record["decoder_options"] = dict(self.decoder_options)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Case:
        """Build a Case from `to_json`'s form. Fields that this version does not know are dropped."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        values["arms"] = tuple(values.get("arms", ARMS))
        values.setdefault("overlap", False)  # runs stored before there was any
        values.setdefault("kernels", False)  # runs stored before there was any trace
        return cls(**values)

    @property
    def title(self) -> str:
        """Short text for tables and progress lines."""
        where = f"{self.dataset_name}/{self.resolution}" if self.resolution else self.dataset_name
        decoder = f"+{self.decoder}" if self.decoder else ""
        return f"{where} {self.loader}{decoder} w{self.workers} b{self.batch_size} {self.device}"
