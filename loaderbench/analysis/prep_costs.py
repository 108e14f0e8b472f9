"""What preparing a sample costs with another decoder, output, hand-over or scale, by the run's probe
(running/prep_probe.py): CPU seconds, drawn anew over the probed images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loaderbench.analysis.quantities import Draws
from loaderbench.cases.case import DIRECT, SAMPLES, SCALED, Case, Feed
from loaderbench.cases.traits import LoaderTraits
from loaderbench.recording.facts import Facts, PrepProbe


class PrepCosts:
    """Of a run's case and of others, `num` values each; the first is the value itself."""

    def __init__(self, case: Case, facts: Facts, cpus: int, num: int) -> None:
        self.case, self.cpus, self.num = case, cpus, num
        self.probe = facts.prep_probe or PrepProbe(cpus)
        self.known: Mapping[str, LoaderTraits] = {**facts.loader.alternatives, case.feed.loader: facts.loader.traits}

    def ratio(self, new: Case, *, crowded: bool) -> Draws | None:
        """Cost of decode, augment and collate of another case ÷ of this one; None: not known. `crowded`: with all
        processors at work."""
        old, same = self.case.feed, np.ones(self.num)
        if _stages(new.feed) == _stages(old):
            return same
        before, after = self.sample_s(self.case, crowded=crowded), self.sample_s(new, crowded=crowded)
        if before is not None and after is not None:
            return after / before
        # Fewer bytes never cost the workers more.
        return same if (new.feed.loader, new.feed.decoder) == (old.loader, old.decoder) else None

    def sample_s(self, case: Case, *, crowded: bool = False) -> Draws | None:
        """CPU seconds of a sample, the same resampled images for every decoder; None: not probed. `crowded`: with all
        processors at work, where that was probed."""
        probed = self.probe.decoders.get(case.feed.decoder or "")
        image_s, handed = (() if probed is None else probed.image_s), self.probe.handover_s
        if self.as_torchvision(case) and probed is not None:
            image_s, handed = probed.as_torchvision_s[case.feed.output], self.probe.stack_s
        handover, scaled = self._handover_s(case, handed), self._scale_ratio(case)
        if probed is None or not image_s or handover is None or scaled is None:
            return None
        means = self._means(np.asarray(image_s, dtype=np.float64), stream=11)
        if crowded and probed.all_cpus_image_s is not None:
            means = means * (probed.all_cpus_image_s / float(np.mean(probed.image_s)))
        return np.asarray(means * scaled + handover)

    def crowding(self, workers: int) -> float:
        """CPU time of an image with `workers` processors busy ÷ with one: linear between one and all."""
        probed = self.probe.decoders.get(self.case.feed.decoder or "")
        if self.cpus < 2 or probed is None or not probed.image_s or probed.all_cpus_image_s is None:
            return 1.0
        whole = max(1.0, probed.all_cpus_image_s / float(np.mean(probed.image_s)))
        return 1.0 + (whole - 1.0) * (min(workers, self.cpus) - 1) / (self.cpus - 1)

    def threads_batch_s(self, new: Case, most_s: float) -> float | None:
        """Seconds in which threads of one process with a processor each make a batch, Python's lock included, but for
        the scale no more than `most_s`; None: not probed, or the loader has none."""
        probed = self.probe.decoders.get(new.feed.decoder or "")
        if not self.in_threads(new.feed.loader) or probed is None or not probed.all_cpus_rate:
            return None
        scaled = self._scale_ratio(new)
        return None if scaled is None else min(new.step.batch_size / probed.all_cpus_rate, most_s) * float(scaled[0])

    def in_threads(self, loader: str) -> bool:
        """Whether `loader` makes samples with our decoders in threads of one process."""
        traits = self.known.get(loader)
        return traits is not None and traits.work == "threads" and traits.handover is not None

    def as_torchvision(self, case: Case) -> bool:
        """Whether the case's loader makes samples as torchvision's users do, as far as the probe knows what that costs
        (runs of older versions never did)."""
        traits, probed = self.known.get(case.feed.loader), self.probe.decoders.get(case.feed.decoder or "")
        if traits is None or not traits.as_torchvision or case.feed.loader_options.get(SAMPLES) == DIRECT:
            return False
        return probed is not None and case.feed.output in probed.as_torchvision_s

    def scales(self, decoder: str | None) -> bool:
        """Whether the decoder takes `--decode-scale`, by the probe."""
        probed = self.probe.scales.get(decoder or "")
        return probed is not None and len(probed.off_s) > 0

    def fastest_decoder(self, *, scaling: bool = False) -> str | None:
        """The fastest decoder by the probe, of those that scale or of all; None where none was probed."""
        probed = {
            name: float(np.mean(decoder.image_s))
            for name, decoder in self.probe.decoders.items()
            if not scaling or self.scales(name)
        }
        return min(probed, key=probed.__getitem__) if probed else None

    def _handover_s(self, case: Case, handed: Mapping[str, Mapping[str, float]]) -> Draws | None:
        """CPU seconds a sample of the memory that finished ones are written into. Of a loader whose memory is not known
        it lies between the least and the most of those probed."""
        traits, known = self.known.get(case.feed.loader), handed.get(case.feed.output, {})
        if traits is None or not known:
            return None
        if traits.handover is not None:
            found = known.get(traits.handover)
            return None if found is None else np.full(self.num, found)
        low, high = min(known.values()), max(known.values())
        draws = np.random.default_rng(31).uniform(low, high, self.num)
        draws[0] = (low + high) / 2
        return draws

    def _scale_ratio(self, case: Case) -> Draws | None:
        """Cost of decode and resize with the case's `--decode-scale` ÷ with this one's, on the same resampled samples;
        None: not known."""
        new, old = case.feed.decode_scale == SCALED, self.case.feed.decode_scale == SCALED
        if new == old or not self.scales(case.feed.decoder):
            return np.ones(self.num) if new == old or not new else None
        probed = self.probe.scales[case.feed.decoder or ""]
        off, auto = (self._means(np.asarray(one), stream=37) for one in (probed.off_s, probed.auto_s))
        return auto / off if new else off / auto

    def _means(self, values: Draws, stream: int) -> Draws:
        """Their mean, then means of as many drawn with return."""
        picks = np.random.default_rng(stream).integers(len(values), size=(self.num - 1, len(values)))
        return np.concatenate([[values.mean()], values[picks].mean(axis=1)])


def _stages(feed: Feed) -> tuple[object, ...]:
    """What the stages decode, augment and collate do, as far as their cost goes."""
    scaled, samples = feed.decode_scale == SCALED, feed.loader_options.get(SAMPLES)
    return feed.loader, feed.decoder, scaled, feed.output, samples
