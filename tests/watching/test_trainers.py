"""Trainers that take batches in ways of their own: their waits belong to the steps, and validation counts apart."""

import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from loaderbench.errors import UnavailableError
from loaderbench.integrations.phases import TrainerWatch
from loaderbench.recording.facts import STEP
from loaderbench.studies.watch import OwnWatch, current
from loaderbench.watching.data_loader import noticed
from loaderbench.watching.seen import Seen
from loaderbench.watching.watcher import Watcher

STEP_S, SAMPLE_S = 0.004, 0.002


class Slow(Dataset[int]):
    def __init__(self, num: int = 80) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_S)
        return index


def one_ahead(loader: Any) -> Iterator[Any]:
    """As Accelerate's DataLoaderShard and Lightning's fetcher: the next batch is taken before this one is given."""
    iterator = iter(loader)
    batch = next(iterator)
    for following in iterator:
        yield batch
        batch = following
    yield batch


def in_groups(loader: Any, num: int) -> Iterator[list[Any]]:
    """As Hugging Face's Trainer: all batches of an accumulation first."""
    group: list[Any] = []
    for batch in loader:
        group.append(batch)
        if len(group) == num:
            yield group
            group = []


def seen_by(loop: Any) -> tuple[Watcher, Seen]:
    watcher = Watcher("none")
    with noticed(watcher):
        loop(DataLoader(Slow(), 2))
    watcher.close()
    main = watcher.main
    assert main is not None
    return watcher, main


def means(seen: Seen) -> tuple[float, float]:
    """Mean seconds of waiting and of the script's own work, a batch."""
    rows = [one.window for one in seen.segments]
    waits = [(row[STEP["returned_ns"]] - row[STEP["called_ns"]]) / 1e9 for table in rows for row in table]
    works = [(row[STEP["done_ns"]] - row[STEP["returned_ns"]]) / 1e9 for table in rows for row in table]
    return sum(waits) / len(waits), sum(works) / len(works)


@pytest.mark.alone
def test_a_look_ahead_of_one_batch_leaves_waiting_and_work_as_they_are() -> None:
    def loop(loader: Any) -> None:
        for _ in one_ahead(loader):
            time.sleep(STEP_S)

    _, seen = seen_by(loop)
    wait, work = means(seen)
    assert seen.num_batches == 40
    assert wait / (wait + work) == pytest.approx(2 * SAMPLE_S / (2 * SAMPLE_S + STEP_S), abs=0.12)


@pytest.mark.alone
def test_batches_of_an_accumulation_that_are_taken_first_share_its_work() -> None:
    def loop(loader: Any) -> None:
        for group in in_groups(loader, 4):
            time.sleep(STEP_S * len(group))

    _, seen = seen_by(loop)
    wait, work = means(seen)
    assert wait / (wait + work) == pytest.approx(2 * SAMPLE_S / (2 * SAMPLE_S + STEP_S), abs=0.12)


def test_validation_is_never_the_training_and_counts_apart(tmp_path: Any) -> None:
    phase = "train"
    watch = TrainerWatch(tmp_path)
    watch.begin(lambda: phase)
    watcher = current()
    assert watcher is not None
    for _ in DataLoader(Slow(8), 2):
        watch.stepped()
    phase = "evaluate"
    for _ in DataLoader(Slow(60), 2):  # most of the time
        pass
    assert watcher.main is not None and watcher.main.phase == "train" and watcher.main.num_batches == 4
    assert watcher.optimizer_steps == 4
    assert {one.phase for one in watcher.seen.values()} == {"train", "evaluate"}
    watch.end()
    assert current() is None


def test_under_a_watch_that_goes_on_the_trainer_joins_it(tmp_path: Any) -> None:
    own = OwnWatch.begin(tmp_path)
    watch = TrainerWatch(tmp_path)
    watch.begin(lambda: "train")
    assert current() is own.watcher
    assert watch.end() is None and current() is own.watcher
    own.end()


@pytest.mark.parametrize(("module", "package"), [("hf", "transformers"), ("lightning", "lightning")])
def test_without_its_library_it_says_what_to_install(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"loaderbench.integrations.{module}", raising=False)
    with pytest.raises(UnavailableError, match=f"pip install {package}"):
        __import__(f"loaderbench.integrations.{module}")


def test_the_callback_of_hugging_face_follows_its_trainer(tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    from loaderbench.integrations.hf import Watch

    callback, plain = Watch(tmp_path), SimpleNamespace(should_evaluate=False)
    callback.on_train_begin(None, None, plain)
    watcher = current()
    assert watcher is not None and watcher.phase is not None and watcher.phase() == "train"
    callback.on_optimizer_step(None, None, plain)
    callback.on_step_end(None, None, SimpleNamespace(should_evaluate=True))
    assert watcher.phase() == "evaluate"
    callback.on_evaluate(None, None, plain)
    assert watcher.phase() == "train" and watcher.optimizer_steps == 1
    callback.on_train_end(None, None, plain)
    assert current() is None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_callback_of_lightning_follows_its_trainer(tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning")
    from loaderbench.integrations.lightning import Watch

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.linear(batch.float()[:, None]).sum()

        validation_step = training_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = Watch(tmp_path)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Slow(80), 2), DataLoader(Slow(300), 4))
    assert callback.record is not None and callback.record.watched is not None
    main, *others = callback.record.watched.loaders
    assert (main.phase, main.num_batches) == ("train", 80) and {one.phase for one in others} == {"evaluate"}
    assert callback.record.watched.optimizer_steps == 80
