"""The version of the rules that turn facts into records.

With the same version the same facts give the same record (tests hold that). If you change what a figure means, how a
verdict is found, or which caveats a record has, raise it and add a line. Git has the lines of older versions.

History
    32 how figures were estimated (`method`) is said in other words; no figure and no verdict changes
    33 advice is predicted by replay of the run's batches, and a record says how well that explains the run
    34 samples, stamps and counts of a watched script name its cause, and the line; figures that contradict each other
       are left out
    35 bursts longer than the own steps of a script are not used; what next() takes before a batch is made is part of a
       step without workers; what an arm of a single window may be off by tell the windows of the others; a run that
       ended because it was decided tells its gains with intervals that hold at every look; records have `timing`
    36 a run of few, long steps gets a cause with a lower bound of its gain, by replay; a stage's gain stands beside
       that by replay, which must not deny it; records have `rate_change`
"""

from __future__ import annotations

RULES_VERSION = 36
