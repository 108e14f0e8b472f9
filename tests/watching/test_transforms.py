"""Transforms by their names: where they are found, what they take, and that they are put back."""

import copy
import functools
import pickle
import time

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from loaderbench.watching.transforms import (
    EVERY,
    FIRST,
    MOST_INSIDE,
    Sampling,
    Times,
    data_sets,
    num_threads,
    places_of,
)


class Crop:
    size = 7

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value


class Noise:
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.rand(1)


def blur(value: torch.Tensor, ms: float = 4.0) -> torch.Tensor:
    time.sleep(ms / 1e3)
    return value


class Compose:
    def __init__(self, *transforms: object) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        for one in self.transforms:
            value = one(value)  # type: ignore[operator]
        return value


class Data(Dataset[torch.Tensor]):
    def __init__(self, transform: object, target_transform: object = None) -> None:
        self.transform, self.target_transform = transform, target_transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(torch.tensor([float(index)]))  # type: ignore[operator, no-any-return]


def names(data: object) -> list[str]:
    return [place.name for place in places_of(data)]


def test_transforms_are_found_where_data_sets_keep_them() -> None:
    inner = Compose(Crop(), Compose(blur, Crop()))
    assert names(Data(inner, blur)) == ["Crop", "blur", "Crop (2)"]
    assert names(Data(functools.partial(blur, ms=1.0))) == ["blur"]
    assert names(Subset(Data(inner), [1, 2])) == ["Crop", "blur", "Crop (2)"]
    assert names(ConcatDataset([Data(Crop()), Data(blur)])) == ["Crop", "blur"]
    assert names(Data(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity()))) == ["ReLU", "Identity"]
    assert names(Data(None)) == names([1, 2]) == []


def test_those_of_torchvision_are_found() -> None:
    vision = pytest.importorskip("torchvision")
    pytest.importorskip("torchvision.transforms.v2")
    transform = vision.transforms.Compose([vision.transforms.Resize(4), vision.transforms.ToTensor()])
    data = vision.datasets.FakeData(4, (3, 8, 8), transform=transform)
    assert names(data) == ["Resize", "ToTensor"]
    newer = vision.transforms.v2.Compose([vision.transforms.v2.Resize(4)])
    assert names(vision.datasets.FakeData(4, (3, 8, 8), transform=newer)) == ["Resize"]


def sampled(data: "Data", batches: int) -> Times:
    times = Times(1, names(data))
    sampling = Sampling(times, 0, data)
    for _ in range(batches):
        sampling.take(lambda: [data[index] for index in range(4)])
    return times


def test_each_transform_is_timed_in_every_eighth_batch_and_is_itself_in_the_others() -> None:
    data = Data(Compose(Crop(), blur))
    kept = list(data.transform.transforms)  # type: ignore[attr-defined]
    times = sampled(data, FIRST + EVERY + 1)
    told = {one.name: one for one in times.transforms()}
    assert times.num_batches == 2 and told["Crop"].num_calls == told["blur"].num_calls == 8
    assert 8 * 0.004 <= told["blur"].seconds < times.seconds < 8 * 0.02
    assert told["Crop"].seconds < 0.1 * told["blur"].seconds
    assert data.transform.transforms == kept  # type: ignore[attr-defined]
    assert times.most(4) == 1 and times.draws_random is False


def test_a_timed_transform_looks_like_itself_and_is_put_back_behind_an_error() -> None:
    seen: list[object] = []
    data = Data(Crop())

    def make() -> None:
        seen.append((isinstance(data.transform, Crop), data.transform.size, type(data.transform) is Crop))
        raise ValueError("broken")

    sampling = Sampling(Times(1, names(data)), 0, data)
    for _ in range(FIRST + 1):
        with pytest.raises(ValueError, match="broken"):
            sampling.take(make)
    assert seen[FIRST] == (True, 7, False)
    assert type(data.transform) is Crop


def test_a_timed_transform_is_itself_for_what_a_data_set_does_with_it() -> None:
    crop = Crop()
    data = Data(crop)
    times = Times(1, names(data))
    sampling = Sampling(times, 0, data)
    seen: list[object] = []

    def make() -> None:
        data.transform.size = 9  # type: ignore[attr-defined]
        copies = copy.copy(data.transform), copy.deepcopy(data.transform), pickle.loads(pickle.dumps(data.transform))
        seen.extend((type(one), one.size) for one in copies)  # type: ignore[attr-defined]
        seen.append((data.transform == crop, hash(data.transform) == hash(crop)))

    for _ in range(FIRST + 1):
        sampling.take(make)
    assert seen == [*[(Crop, 9)] * 3, (True, True)] * 2
    assert crop.size == 9 and data.transform is crop


def test_a_transform_that_the_script_changes_stays_changed() -> None:
    inner = Compose(Crop(), blur)
    data, other = Data(inner), Noise()
    sampling = Sampling(Times(1, names(data)), 0, data)

    def change() -> None:
        inner.transforms[1] = other

    for number in range(EVERY + FIRST + 1):
        sampling.take(change if number == FIRST else lambda: data[0])  # while it is timed
    assert inner.transforms[1] is other and type(inner.transforms[0]) is Crop
    data.transform = other  # between two batches: it has other names now, and is timed no more
    for _ in range(EVERY):
        sampling.take(lambda: data[0])
    assert data.transform is other


def test_one_that_is_more_than_a_function_is_left_as_it_is() -> None:
    class Steps(Crop):
        def __len__(self) -> int:
            return 1

    assert names(Data(Steps())) == []


def test_a_list_of_samples_is_not_looked_through() -> None:
    data = Data(Crop())
    data.dataset = [Data(Crop()) for _ in range(2 * MOST_INSIDE)]  # type: ignore[attr-defined]
    assert len(list(data_sets(data))) == 1 + MOST_INSIDE


def test_whether_samples_draw_random_numbers_is_seen() -> None:
    assert sampled(Data(Noise()), FIRST + 1).draws_random is True
    assert sampled(Data(Crop()), FIRST).draws_random is None  # no batch was looked at


def test_workers_tell_their_threads() -> None:
    times = sampled(Data(Crop()), FIRST + 1)
    assert times.most(2) == torch.get_num_threads() and (times.most(3) or 0) >= 1
    assert num_threads() >= 1


def test_a_data_set_that_is_another_one_in_the_worker_is_left_alone() -> None:
    times = Times(1, ["Crop"])
    data = Data(blur)
    Sampling(times, 0, data).take(lambda: data[0])
    assert data.transform is blur and times.transforms()[0].num_calls == 0


def test_a_loader_without_transforms_has_none() -> None:
    assert places_of(DataLoader([1, 2]).dataset) == []  # type: ignore[arg-type]
