"""The version of the rules that turn facts into records.

With the same version the same facts give the same record (tests hold that). If you change what a figure means, how a
verdict is found, or which caveats a record has, bump it and add a line.

History
    1  arms that were not measured leave their figures null and their causes joined, no longer the whole verdict
    2  the storage probe's rates leave out its first burst; cold is proven by degrees; on a disk of this machine the
       bytes of the run's own processes count, and a storage that provably had nothing to do is no part of the step; a
       run that is too short is undetermined, with how long to measure; advice that its own figures refute is left out;
       the memory of the workers is that of the measured loader's own, shared pages once
    3  contention is a verdict and a gain of its own, where who had the processors was stored; advice is predicted
       without the time that workers waited for a processor;
       intervals: the arms of a round share what moved them all, those of one loader their spread where it agrees; times
       are drawn in logarithms, and an upper end of ten times the value is null; arms are out of order by twice the
       half-width of their difference;
       a storage is told apart as bandwidth, latency, tail or stalls where the times of single files were stored; over a
       tail or stalls the gain without preparation holds what the loader's queue does not bridge
    4  an arm whose device never waited for data keeps its own spread; windows beside which others used far more or
       fewer processors than beside `real` are left out; no contention by a gain without an interval; no copy limits a
       device that copies nothing;
       watched scripts: advice and notes; a batch that its worker sent late was waited for
    5  the run of a serial loader is no faster without others than its device when data are always ready; of a device
       that waits for launches, what issuing grew by beside the loader counts from `device`, not from `host`;
       watched scripts: bursts that do not stand for steps of unlike lengths are left out; an own step that is longer
       than in bursts by more than contention and memory explain contradicts the timeline, also where storage and
       preparation are not told apart
    6  no contention where causes that the arms do not tell apart may give more; of a storage that provably did nothing
       no read is slow (it waited for a processor), and `fetch` counts
    7  watched scripts: a batch is handed over in the time that nine in ten ready ones take, not in the most that one
       took
    8  contention: issuing that comes late though its data are there counts, and a stage that is worth it only with the
       contention that its gain holds is not named;
       watched scripts: bursts stand for steps of unlike lengths where chance does not explain them; what the script and
       its workers take from each other has a gain; threads of its process that may hold it up leave the verdict open;
       preparation is told from storage where workers that tell nothing keep the processors busy
    9  contention: others make issuing late only as far as its thread waited for a processor; beside a stage that may be
       worth nothing, it is named only where it is worth it itself;
       watched scripts: more workers than processors wait for each other also without the script; no step is longer for
       the storage than its loader reads; chance is asked once, before the first steps behind bursts count, and with
       room for what the loader makes longer; loaders that tell nothing are judged by the processors that were used, not
       by those that were wanted, and by what the script's thread ran for within next(); advice knows that steps on the
       processors change with what works beside them
    10 slow reads for which all readers wait at once are no slow files: where they take much of the time, the storage's
       rate is capped (bandwidth); in the probe a rate below that of fewer readers counts as theirs;
       slow files may be more than a hundredth of them
    11 one reader's slow reads are no slow files where other readers get little more, not only where they get no more
    12 over a storage that stands still now and then, windows count in whole periods of it, and so do the blocks behind
       their intervals; where all standstills are alike one period tells; regular are also few that chance would not
       bring so close;
       one reader's waits at even distances are those for a capped rate; its slow files are that though other readers
       get little more where the same ones, or those of one folder, are slow again; no more readers are advised there;
       another decoder beside more workers than processors may pay less of what they take from each other
    13 the interval of the images/s holds what others on the processors take from one run more than from the next;
       stolen time counts as waited for where no thread is queued; neighbours are not capped by the arms without a
       storage where it did nothing, nor subtracted from a quota that leaves the run its own; a tenth of the files may
       be slow; one pause is no capped rate; standstills beside the windows of `real` may outweigh a stage; the gain
       without preparation over stalls or slow files is known no better than their number
    14 a short run names the one cause whose wide gain is surely three times and more
    15 the gains of a watched script are those of another run of it, known no better than 15 %;
       over a storage that may have processes of its own (FUSE, NFS) others are unknown where no arm leaves it alone,
       and such processes make no window one beside another machine; a quota keeps from a run what it was stopped for,
       and whether it did is asked by its own period;
       pauses and slow reads are not the storage's where the run itself stood still as often, by arms without a storage
       or by its quota; a capped rate is known by all reads that waited for it; a window without reads does not hide
       those of the others; a serial loader over slow files that `fetch` missed waits for them in line; a slow folder is
       told where its files are too many to be a tail; a loader that does not tell when it reads has the kind that
       `fetch` met; advice takes what a loader gave beside the device where its own time is not surely longer
    16 watched scripts: what the script's thread waits behind others in its bursts is no part of its step without them;
       a run that was ended early is judged by its finished windows; neighbours are named before a stage that gives more
       only where they surely take so much that it cannot be judged beside them
    17 a serial loader over slow files or standstills waits, without preparation too, for what its device does not
       bridge; slow files that one reader meets one behind the other are no standstills;
       a gain whose draws leave less than nothing of a step has no upper end, and no low end below 1
    18 of standstills that are alike, what a device works on meanwhile is no spread of its steps: intervals over whole
       periods are several times narrower;
       the rhythm of one reader's standstills is that of all arms that read; a loader that does not tell when it reads
       has them timed by `fetch` and its device's waits together, and its gain without preparation holds what its queue
       does not bridge; slow reads of one reader that last far more evenly than they come are slow files;
       a loader that does not tell its workers' times waits for others no longer than all of its threads did; the
       interval of the gain without others holds what they take from one run more than from the next
    19 no contention where issuing comes late though no thread waits for a processor, and none before a storage or a
       copy that gives more, whose gains do not hold it; no preparation by a gain so badly known that it may be no more
       than contention; the queue of a loader with threads that only read has these for
       readers; nobody takes from a run what a storage of a capped rate keeps from it; of containers, slow ones are
       counted among containers; an arm of one window varies as the others do;
       advice: a serial loader beside others waits for them still; no fewer workers beside others, who would take their
       part; no `--cache warm` in a run that has it, or that memory cannot hold; more `--io-threads` where these read
    20 issuing that comes late though no thread waits for a processor is no share of contention either; arms of a single
       block contradict nothing, and what a gain by one is worth is not known; nothing is a copy's where nothing is
       copied; preparation's own rate is not that of a loader whose storage still answers for each file;
       advice: no number of workers where what the storage gives by itself was not measured; over slow files and
       standstills what the queue leaves of them bounds it, and no more workers against standstills; of a watched
       script, few batches are followed many times; other ranks of its own are not to be stopped
    21 of a launch-bound device whose host never waits for it, all issuing is exposed, as behind a serial loader
    22 the gain without contention is a prediction, known no better than 10 % or a quarter of what contention takes; of
       a storage whose standstills or slow files `fetch` missed, what it gives alone is null, and no number of workers
       is advised by it where no queue tells; of what more workers than processors take from each other, another
       decoder is thought to pay half, where all of it was;
       without others a step is no shorter than the loader takes for a batch then; of a loader that does not tell its
       workers' times, its busiest thread tells how long a batch waits behind others, where that was stored;
       the images/s of a loader in line beside others are known no better than what moves its one thread from run to run
    23 issuing that others held up while batches lay ready too counts among what they take: neither `host` nor `real` is
       as slow without them; arms of one window each that are out of order are too short, not contradictory;
       a quota that a run uses up is named though others hold more processors than it withheld
    24 opens that cost more of the time than standstills or slow files do are what the storage is slow by; of a loader
       that does not tell its reads, opens by `fetch`; slow files that are others each time, where more readers get no
       more, wait for a capped rate;
       a stage that surely gives something, but nothing beyond the gain without contention, is contention, though that
       gain alone is not sure
    25 beside others the images/s of any loader that sets the pace are known no better than what moves its threads from
       run to run, which was that of one in line alone, and is twice as much; what is left of a loader in line
       without storage and another cause holds its issuing once
    26 the wait on the timeline is a part of the step that was measured, not of what the order of the arms makes of it
    27 beside others a loader of one busy thread is known worse than one of several, which have the average of their
       processors; a cause that may not be worth it alone is none where several together surely give more than its
       square
    28 a window beside which others used fewer processors because the run itself took more of full ones is beside the
       same machine; self-tests: contention is the truth only where the run itself is as much slower as a verdict names
    29 without a copy, launches or compute a step takes at least its CPU time by the processors that the loader alone
       got beside others, window by window: they may set the pace then
    30 two causes whose gains differ by 1 % at most are not told apart: either of two that end at the same step was not
       named where their gains differed in the last digit
    31 advice: decoding at a smaller scale, where the run timed it; another loader keeps `--decode-scale` and those of
       the options that it takes; decoders are predicted for loaders whose hand-over is not known, too; threads are not
       thought to prepare less with their own decoder than they did
    32 how figures were estimated (`method`) is said in other words; no figure and no verdict changes
    33 advice is predicted by replay of the run's batches, and a record says how well that explains the run
    34 samples, stamps and counts of a watched script name its cause, and the line; figures that contradict each other
       are left out
    35 what an arm of a single window may be off by tell the windows of the others; a run that ended because it was
       decided tells its gains with intervals that hold at every look; records have `timing`
"""

from __future__ import annotations

RULES_VERSION = 35
