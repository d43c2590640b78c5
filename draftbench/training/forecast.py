"""The forecast: the draft is trained on small parts of the data, and what they gain on held-out
requests says what all of it will.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from draftbench.decoder.device import device_words
from draftbench.errors import UsageError
from draftbench.training.examples import tokens_of
from draftbench.training.fit import LOOKS_AN_EPOCH, Progress, fit
from draftbench.training.learning_curve import gain_draws, interval
from draftbench.training.outcome import Forecast, Part, Reached
from draftbench.training.plan import Plan
from draftbench.training.writing import writing

# The shares of the data that are trained on, the smallest first: of much data less than a tenth.
# Of little they are larger, since parts teach something only by how many steps they are apart.
PARTS = (0.005, 0.01, 0.02, 0.04)
LEAST_STEPS = (1, 2, 4, 8)
# The largest that a part may be, and how few parts show a curve.
LARGEST, LEAST_PARTS = 0.5, 3


def forecast(plan: Plan, work: Path, progress: Progress) -> Forecast:
    """Train on the parts, each from the original, and look ahead.

    Args:
        work: a folder for what is trained meanwhile.

    Raises:
        UsageError: there is too little data for parts.
    """
    train, settings = plan.examples.train, plan.settings
    sizes = part_sizes(len(train), settings.batch)
    parts, accepted, look = list[Part](), [plan.original], 0.0
    for number, size in enumerate(sizes, 1):
        progress.note(f"forecast: part {number} of {len(sizes)}")
        draft, begun = plan.in_training(), time.monotonic()
        fit(draft, train[:size], settings, work, progress)
        seconds = time.monotonic() - begun
        with writing(work):
            draft.save(work / "part")
        del draft
        gc.collect()
        saved = time.monotonic()
        accepted.append(plan.replayer.along(work / "part", plan.examples.stop))
        look = time.monotonic() - saved
        shutil.rmtree(work / "part")
        share = tokens_of(train[:size]) / plan.examples.tokens
        parts.append(Part(share, size, accepted[-1].rate.value or 0.0, seconds))
    original = plan.original.rate.value or 0.0
    rates = [each.rate for each in accepted]
    draws = gain_draws([part.share for part in parts], rates, max(plan.most, original))
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
        seconds=_seconds_of_all(parts) + LOOKS_AN_EPOCH * settings.epochs * look,
        device=device_words(plan.device),
    )


def part_sizes(responses: int, batch: int) -> list[int]:
    """How many responses each part has."""
    wanted = (
        max(round(share * responses), steps * batch)
        for share, steps in zip(PARTS, LEAST_STEPS, strict=True)
    )
    sizes = [size for size in wanted if size <= LARGEST * responses]
    if len(sizes) >= LEAST_PARTS:
        return sizes
    fits = int(LARGEST * responses / LEAST_STEPS[LEAST_PARTS - 1])
    raise UsageError(
        f"{responses} responses to train on, {batch} a step, are too few to forecast from",
        hint=f"`--batch {fits}` is enough steps; better sweep more of the traffic",
    )


def _seconds_of_all(parts: Sequence[Part]) -> float:
    """Of training on all of the data, without what every training takes to begin."""
    first, last = parts[0], parts[-1]
    if last.share > first.share and last.seconds > first.seconds:
        return (last.seconds - first.seconds) / (last.share - first.share)
    return last.seconds / last.share
