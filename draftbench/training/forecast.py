"""The forecast: the draft is trained on small parts of the data, and what they gain on held-out
requests says what all of it will.
"""

from __future__ import annotations

import gc
import shutil
import time
from pathlib import Path

from draftbench.decoder.device import device_words
from draftbench.training.examples import tokens_of
from draftbench.training.fit import Progress, fit
from draftbench.training.learning_curve import gain_draws, interval
from draftbench.training.outcome import Forecast, Part, Reached
from draftbench.training.plan import Plan

# The shares of the data that are trained on, the smallest first; together less than a tenth.
PARTS = (0.005, 0.01, 0.02, 0.04)


def forecast(plan: Plan, work: Path, progress: Progress) -> Forecast:
    """Train on the parts, each from the original, and look ahead.

    Args:
        work: a folder for what is trained meanwhile.
    """
    train, settings = plan.examples.train, plan.settings
    sizes = sorted({max(at, round(share * len(train))) for at, share in enumerate(PARTS, 1)})
    parts, accepted = list[Part](), [plan.original]
    for number, size in enumerate(sizes, 1):
        progress.note(f"forecast: part {number} of {len(sizes)}")
        draft, begun = plan.in_training(), time.monotonic()
        fit(draft, train[:size], settings, work, progress)
        seconds = time.monotonic() - begun
        draft.save(work / "part")
        del draft
        gc.collect()
        accepted.append(plan.replayer.along(work / "part", plan.examples.stop))
        shutil.rmtree(work / "part")
        share = tokens_of(train[:size]) / plan.examples.tokens
        parts.append(Part(share, size, accepted[-1].rate.value or 0.0, seconds))
    original = plan.original.rate.value or 0.0
    draws = gain_draws([part.share for part in parts], [each.rate for each in accepted])
    speeds = plan.speeds
    return Forecast(
        rate=original,
        parts=tuple(parts),
        gain=interval(draws),
        before=Reached(*speeds.now) if speeds else None,
        after=Reached(*speeds.at(plan.original, original + draws)) if speeds else None,
        fastest=speeds.fastest if speeds else None,
        requests=len(plan.original.rate.requests),
        tokens=plan.examples.tokens,
        seconds=parts[-1].seconds / parts[-1].share,
        device=device_words(plan.device),
    )
