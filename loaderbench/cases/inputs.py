"""What one sample of a model's input is: by default a square image, else what `--input-shape` and `--input-dtype` say.

A case keeps inputs that are no square image as a text, so that its JSON form stays flat: `512:int64`,
`3,240,320:float32`, `image=3,64,64:float32+tokens=16:int64`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaderbench.errors import ConfigError
from loaderbench.printable import short

if TYPE_CHECKING:
    from loaderbench.cases.case import Step

DTYPE_BYTES = {"float32": 4, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
SCALAR = "scalar"
"""The shape of an input that is one value a sample, such as the time step of a diffusion model."""
MOST_VALUES = 1 << 40
"""Values a sample: more is a slip of the hand, and its product overflows further on."""


@dataclass(frozen=True)
class Input:
    """One input tensor: `shape` without the batch; `name` is the keyword of `forward`, "" for a positional input."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def words(self) -> str:
        """`3×240×320`, `tokens 16 int64`."""
        shape = "×".join(map(str, self.shape)) or SCALAR
        dtype = "" if self.dtype == "float32" else self.dtype
        return " ".join(part for part in (self.name, shape, dtype) if part)

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape)) or SCALAR
        return f"{self.name}={shape}:{self.dtype}" if self.name else f"{shape}:{self.dtype}"


class Shapes(tuple[tuple[str, tuple[int, ...]], ...]):
    """(name or "", shape) of each input, as `--input-shape` gives them: `512`, `3,240,320`, `3,64,64+16`,
    `image=3,64,64+tokens=16`."""

    wants = "shapes such as 3,224,224 or 512, joined by + where there are several: image=3,64,64+tokens=16"

    @classmethod
    def parse(cls, given: object) -> Shapes:
        """Raises ValueError for what is none."""
        if isinstance(given, str):
            texts = given.replace(" ", "").split("+")
        elif isinstance(given, list | tuple):
            texts = [",".join(map(str, given))]
        else:
            texts = [str(given)]
        return cls(cls._read(text) for text in texts)

    @staticmethod
    def _read(text: str) -> tuple[str, tuple[int, ...]]:
        name, equals, shape = text.rpartition("=")
        if equals and not name.isidentifier():
            raise ValueError
        if shape == SCALAR:
            return name, ()
        parts = shape.split(",")
        if not all(part.isascii() and part.isdigit() and len(part) <= 12 for part in parts):
            raise ValueError
        return name, tuple(map(int, parts))


def inputs_asked(shapes: Shapes, dtypes: tuple[str, ...]) -> tuple[Input, ...]:
    """The inputs that the options name.

    Raises:
        ConfigError: an empty dimension, an unknown type, too few types, or names for some only.
    """
    asked = "+".join(f"{name}={','.join(map(str, shape))}".lstrip("=") for name, shape in shapes)
    if any(min(shape, default=1) < 1 or math.prod(shape) > MOST_VALUES for _, shape in shapes):
        raise ConfigError(f"--input-shape {short(asked)}: each dimension must be 1 or more, and a sample fit in memory")
    if unknown := [one for one in dtypes if one not in DTYPE_BYTES]:
        raise ConfigError(f"--input-dtype {short(unknown[0])}: use {', '.join(DTYPE_BYTES)}")
    if len(dtypes) not in (0, 1, len(shapes)):
        raise ConfigError(f"--input-dtype has {len(dtypes)} types for {len(shapes)} inputs: give one, or one for each")
    names = [name for name, _ in shapes]
    if any(names) and not all(names):
        raise ConfigError(f"--input-shape {short(asked)}: name all inputs, or none")
    if len(set(names)) < len(names) and any(names):
        raise ConfigError(f"--input-shape {short(asked)}: two inputs have the same name")
    of_each = dtypes * len(shapes) if len(dtypes) == 1 else dtypes or ("float32",) * len(shapes)
    return tuple(Input(shape, dtype, name) for (name, shape), dtype in zip(shapes, of_each, strict=True))


def text_of(inputs: tuple[Input, ...]) -> str:
    """`image=3,64,64:float32+tokens=16:int64`; `read_inputs` is the inverse."""
    return "+".join(map(str, inputs))


def read_inputs(text: str) -> tuple[Input, ...]:
    """The inputs of `text_of`'s form. Raises ValueError for another text."""
    found = []
    for one in text.split("+"):
        shape, _, dtype = one.rpartition(":")
        ((name, sides),) = Shapes.parse(shape)
        found.append(Input(sides, dtype, name))
    return tuple(found)


def sample_inputs(step: Step, image_size: int | None = None) -> tuple[Input, ...]:
    """What one sample of the step is. `image_size`: side of its square image, where the step does not say.

    Raises:
        ConfigError: uncropped images of no stated resolution.
    """
    if step.inputs is not None:
        return read_inputs(step.inputs)
    side = step.input_size or image_size
    if side is None:
        raise ConfigError("--input-size full needs images of one size: give --res N, or --input-size N")
    return (Input((step.channels, side, side)),)


def sample_bytes(step: Step) -> int:
    """Bytes of one sample's inputs."""
    return sum(one.num_bytes for one in sample_inputs(step))


def table_shape(step: Step) -> tuple[int, ...]:
    """The sides of the step's inputs one after the other: by them a table of times knows the step's inputs."""
    return tuple(side for one in sample_inputs(step) for side in one.shape)


def image_side(step: Step) -> float:
    """Side of the square of as many pixels as the step's image has.

    Raises:
        ConfigError: its input is no image.
    """
    shapes = [one.shape for one in sample_inputs(step)]
    if len(shapes) != 1 or len(shapes[0]) != 3 or (step.inputs is not None and ":float32" not in step.inputs):
        raise ConfigError(
            f"the times of {step.device} are those of images, and {step.model} takes {words_of(step.inputs or '')}: "
            "use a device that computes"
        )
    return math.sqrt(shapes[0][1] * shapes[0][2])


def words_of(text: str) -> str:
    """`3×240×320`, `tokens 16 int64` of the text of a step's inputs; a stored text that names none as it is."""
    try:
        return " and ".join(one.words for one in read_inputs(text))
    except ValueError:
        return text
