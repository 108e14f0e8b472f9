"""`loaderbench attach`: why a job that already runs is slow, by reading /proc from outside."""
