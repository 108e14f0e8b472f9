"""cause: prep epoch_start. Workers are spawned for each short epoch, and import all libraries again."""

from common import FIXED, burn, say_whole, whole
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, i):
        return i


if __name__ == "__main__":
    loader = DataLoader(Numbers(), 8, num_workers=2, multiprocessing_context="spawn", persistent_workers=FIXED)
    begun, num = whole(), 0
    for _ in range(5):
        for _ in loader:
            burn(0.008)
            num += 1
    say_whole(begun, num)
