"""cause: prep epoch_start. Workers are made anew for each short epoch, and each parses its index again."""

from common import FIXED, burn, say_whole, whole
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    index = None

    def __len__(self):
        return 480

    def __getitem__(self, i):
        if self.index is None:
            burn(0.6)
            self.index = True
        return i


loader, begun, num = DataLoader(Indexed(), 8, num_workers=2, persistent_workers=FIXED), whole(), 0
for _ in range(8):
    for _ in loader:
        burn(0.005)
        num += 1
say_whole(begun, num)
