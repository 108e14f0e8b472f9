"""From what the user calls a data set to the folder that is read.

A manifest is a TOML file that names a data set; datasets/README.md describes the format. Manifests are
looked for in ./datasets, then among those that come with the package.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loaderbench.cases.options import is_count
from loaderbench.cases.toml import check_keys, read_toml
from loaderbench.errors import ConfigError
from loaderbench.images.containers import container_advice
from loaderbench.images.files import make_own_folder, user_cache_folder
from loaderbench.images.synthesize import make_dataset
from loaderbench.images.variants import find_variants, parse_resolution, variant_name
from loaderbench.plain import JsonObject

Progress = Callable[[int, int], None]

DEFAULT_NAME = "generated"
BUNDLED_MANIFESTS = Path(__file__).parent / "manifests"
_FIELDS = {"name", "description", "root", "variants", "generate"}


@dataclass(frozen=True)
class Manifest:
    """A named data set: an existing one (`root`), or one that is made on first use (`generate`)."""

    name: str
    description: str
    root: Path | None
    """Folder of the tree, absolute; None for a generated set."""
    variants: dict[int, Path] = field(default_factory=dict)
    """Variant folders named in the manifest; empty: those found under `root`."""
    generate: JsonObject | None = None
    """Arguments of `make_dataset`."""


def read_manifest(path: str | Path) -> Manifest:
    """Read one manifest file. `~` and `$NAME` in paths are expanded; relative ones start at the file's folder.

    Raises:
        ConfigError: the file is not readable or not of the format.
    """
    path = Path(path)
    content: Any = read_toml(path, "manifest")
    check_keys(content, _FIELDS, f"manifest {path}")
    if not all(isinstance(content.get(field, ""), str) for field in ("name", "description")):
        raise ConfigError(f"manifest {path}: name and description must be strings")
    if ("root" in content) == ("generate" in content):
        raise ConfigError(f"manifest {path}: give either root (a folder) or a [generate] table")
    generate = content.get("generate", {})
    if not isinstance(generate, dict) or not isinstance(generate.get("resolutions", []), list):
        raise ConfigError(f"manifest {path}: [generate] must be a table with a list of resolutions")
    root = _expand(content["root"], path.resolve().parent) if "root" in content else None
    variants = content.get("variants", {})
    if not isinstance(variants, dict) or not all(map(is_count, variants)):
        raise ConfigError(f'manifest {path}: [variants] must map resolutions to folders, such as 256 = "small"')
    folders = {int(key): _expand(value, root) for key, value in variants.items()} if root else {}
    return Manifest(
        content.get("name", path.stem), content.get("description", ""), root, folders, content.get("generate")
    )


def _expand(text: object, base: Path) -> Path:
    return base / os.path.expandvars(os.path.expanduser(str(text)))  # noqa: PTH111


def find_manifests() -> dict[str, Path]:
    """Data set name (the file's stem) → manifest file: ./datasets/*.toml first, then the package's own."""
    files = [*sorted(Path("datasets").glob("*.toml")), *sorted(BUNDLED_MANIFESTS.glob("*.toml"))]
    found: dict[str, Path] = {}
    for file in files:
        found.setdefault(file.stem, file)
    return found


def generated_root() -> Path:
    """Where generated sets are kept: $LOADERBENCH_DATA, `datasets/` in a checkout, else the user's cache folder."""
    if given := os.environ.get("LOADERBENCH_DATA"):
        return Path(given).absolute()
    if Path("datasets/README.md").is_file() and Path("loaderbench/__init__.py").is_file():
        return Path("datasets").absolute()
    folder = user_cache_folder()
    with contextlib.suppress(OSError):  # whoever writes there says why it cannot
        make_own_folder(folder)
    return folder


def default_dataset(
    resolutions: Sequence[int | str] | None = None, num_images: int | None = None, progress: Progress | None = None
) -> Path:
    """The default generated set's folder, made once and kept; only the variants asked for (all by default).

    A number of images other than the manifest's gets a folder of its own.

    Two processes may call it at once: the second waits, then finds it made.

    Raises:
        ConfigError: it cannot be written, or what is there was made with other arguments.
    """
    manifest = read_manifest(find_manifests()[DEFAULT_NAME])
    return _make_generated(manifest, resolutions, num_images, progress)


def _arguments(manifest: Manifest) -> dict[str, Any]:
    """Arguments of make_dataset."""
    return {**(manifest.generate or {})}


def _make_generated(
    manifest: Manifest, resolutions: Sequence[int | str] | None, num_images: int | None, progress: Progress | None
) -> Path:
    arguments = _arguments(manifest)
    listed = arguments.pop("resolutions", ())
    usual = arguments.pop("num_images", 0)
    number = usual if num_images is None else num_images
    root = generated_root() / (manifest.name if number == usual else f"{manifest.name}-{number}-images")
    try:
        make_dataset(root, listed if resolutions is None else resolutions, number, **arguments, progress=progress)
    except TypeError as error:
        raise ConfigError(
            f"manifest of '{manifest.name}': [generate] has values that `dataset make` refuses: {error}"
        ) from error
    return root


def resolve_dataset(
    name_or_path: str | None = None, resolution: int | str | None = None, *, progress: Progress | None = None
) -> tuple[str, str]:
    """(absolute folder of the tree to read, name to show) of a data set, given by manifest name or path.

    None is the default generated set. A generated set's variant is made when it is first asked for. A
    bare name is looked for among the manifests, then as a folder; `./name` is always a folder.

    Raises:
        ConfigError: no such data set; the variant is not there, or not named, or there are none.
    """
    if isinstance(resolution, str):
        parse_resolution(resolution)
    manifests = find_manifests()
    name = DEFAULT_NAME if name_or_path is None else name_or_path
    if name in manifests:
        manifest = read_manifest(manifests[name])
    elif name.endswith(".toml"):
        manifest = read_manifest(name)
    elif name and Path(name).is_dir():
        root = Path(name).resolve()
        manifest = Manifest(root.name or str(root), "", root)
    else:
        if Path(name).is_file() and (advice := container_advice([name])) is not None:
            raise ConfigError(advice)
        raise ConfigError(
            f"no data set '{name}': it is neither a folder nor one of the known names {', '.join(manifests)}"
        )
    if manifest.generate is not None:
        return _resolve_generated(manifest, resolution, progress), manifest.name
    return _resolve_tree(manifest, resolution, name), manifest.name


def _resolve_generated(manifest: Manifest, resolution: int | str | None, progress: Progress | None) -> str:
    listed = _arguments(manifest).get("resolutions", ())
    known = [variant_name(*parse_resolution(token)) for token in listed]
    if resolution is None or variant_name(*parse_resolution(resolution)) not in known:
        raise _wrong_variant(manifest.name, resolution, known)
    return str(_make_generated(manifest, [resolution], None, progress) / variant_name(*parse_resolution(resolution)))


def _resolve_tree(manifest: Manifest, resolution: int | str | None, called: str) -> str:
    assert manifest.root is not None
    if not manifest.root.is_dir():
        raise ConfigError(f"the folder {manifest.root} of data set '{manifest.name}' does not exist")
    variants = manifest.variants or find_variants(manifest.root)
    if not variants:
        if resolution is not None:
            raise ConfigError(
                f"{called} has no resolution variants: leave --res out to read it unmodified, or make them with "
                f"`loaderbench dataset derive {called} --res {resolution} --out DIR`"
            )
        return str(manifest.root.resolve())
    by_name = {str(side): folder for side, folder in variants.items()}
    if isinstance(resolution, str) and (manifest.root / resolution.lower()).is_dir():
        by_name[resolution.lower()] = manifest.root / resolution.lower()  # 500x375
    if resolution is None or str(resolution).lower() not in by_name:
        raise _wrong_variant(called, resolution, list(by_name))
    folder = by_name[str(resolution).lower()]
    if not folder.is_dir():
        raise ConfigError(f"the folder {folder} of data set '{manifest.name}' does not exist")
    return str(folder.resolve())


def _wrong_variant(called: str, resolution: int | str | None, known: Sequence[str]) -> ConfigError:
    listing = ", ".join(known)
    if resolution is None:
        return ConfigError(f"{called} has resolution variants; choose one with --res: {listing}")
    return ConfigError(f"{called} has no variant {resolution}; it has {listing}")
