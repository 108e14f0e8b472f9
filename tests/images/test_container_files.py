"""What `run` says of container files, which it does not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderbench.errors import ConfigError
from loaderbench.images.listing import Listing, list_images
from loaderbench.images.manifest import resolve_dataset


@pytest.mark.parametrize("name", ["a b.tar", "a.parquet", "a.mds", "A.H5", "a.zip", "a.beton"])
def test_a_container_file_is_answered_by_what_can_be_done(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"loaderbench watch SCRIPT.*(loaderbench run DIR|--loader ffcv)") as raised:
        resolve_dataset(str(tmp_path / name))
    if " " in name:
        assert f"tar -xf '{tmp_path / name}'" in str(raised.value)


def test_so_is_a_folder_of_them(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.tar").touch()
    with pytest.raises(ConfigError, match=r"no images in .*: \.tar files.*loaderbench watch SCRIPT"):
        list_images(str(tmp_path), Listing())
