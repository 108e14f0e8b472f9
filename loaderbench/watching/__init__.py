"""A training that is not ours, watched while it runs: what it does with its loaders, as the facts of a run."""
