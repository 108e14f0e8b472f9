import os
from pathlib import Path

import numpy as np
import pytest

from loaderbench.errors import ConfigError
from loaderbench.images.index import index_images

pytest.importorskip("nvidia.dali")

from nvidia.dali import Pipeline, fn

from loaderbench.loaders.dali import file_list

NAMES = (" a/ 1.jpg", "a/2 3.jpg", "a/4.jpg 5.jpg", "a/tab\t6.jpg", "b #/\udcff.JPG", "b #/'\"%s.jpeg")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES, start=1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes([number] * number))
    return tmp_path


def test_dali_reads_what_the_list_names_and_labels(root: Path) -> None:
    images = index_images(str(root))
    order = np.array([4, 0, 5, 2, 1, 3])
    pipeline = Pipeline(batch_size=len(order), num_threads=1, device_id=None, exec_dynamic=True)
    with file_list(images, order) as path:
        with pipeline:
            pipeline.set_outputs(*fn.readers.file(file_root=images.root, file_list=path))
        pipeline.build()
    assert not os.path.exists(path)  # noqa: PTH110
    encoded, labels = pipeline.run()
    assert np.array(labels.as_array()).ravel().tolist() == order.tolist()
    for position, index in enumerate(order.tolist()):
        assert bytes(np.array(encoded.at(position))) == Path(images.path(index)).read_bytes()


def test_a_name_of_two_lines_is_refused_by_name(root: Path) -> None:
    (root / "a" / "two\nlines.jpg").write_bytes(b"1")
    images = index_images(str(root))
    with pytest.raises(ConfigError, match=r"two\\nlines\.jpg") as told, file_list(images, np.arange(len(images))):
        pass
    assert "\n" not in str(told.value)
