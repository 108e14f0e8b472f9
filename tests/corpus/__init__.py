"""Runs whose truth is known: stored facts, what was built in, and what a stopwatch showed. Judged by today's code they
say whether a change of the judging made it better (CONTRIBUTING.md).

    python -m tests.corpus [SET…] [--half tune|held|both] [--json FILE|-] [--against REV|FILE]
    python -m tests.corpus --add RUN [--truth FILE] --set SET [--beside TEXT]
    python -m tests.corpus --add SELF-TEST|FOLDER-OF-RUNS --set SET [--beside TEXT]

A case belongs to one of two halves, by a hash of its name. `tune` may be looked into and fitted to. `held` is scored
once, when a piece of work is done, and never looked into: what is right on it too was learned, and not remembered.
"""
