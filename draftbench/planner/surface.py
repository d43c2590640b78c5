"""Timed samples of one model's passes at one batch size → seconds at any size and context between.

A pass never costs less for more tokens, a longer context or more rows: the medians are made
monotone before they are interpolated. Outside of what was timed the nearest timed point answers,
and `covers` says so; between two batch sizes `between` answers, and whoever asks it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.rounds import Floats, Ints

_DRAWS = 400


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds of one model's passes over `sizes` new tokens a row on `contexts` cached ones.

    `samples` [sizes, contexts, repeats] as timed, `seconds` [..., sizes, contexts] made monotone.
    """

    sizes: Ints
    contexts: Ints
    samples: Floats
    seconds: Floats

    @classmethod
    def of(cls, sizes: Ints, contexts: Ints, samples: Floats) -> Surface:
        """The surface through the medians of `samples` [sizes, contexts, repeats]."""
        return cls(sizes, contexts, samples, _monotone(np.median(samples, axis=-1)))

    def at(self, size: npt.ArrayLike, context: npt.ArrayLike) -> Floats:
        """Seconds by linear interpolation, at fractional sizes too; the arguments broadcast."""
        low, high, above = _between(self.sizes, np.asarray(size))
        left, right, beyond = _between(self.contexts, np.asarray(context))
        shorter = (1 - above) * self.seconds[..., low, left] + above * self.seconds[..., high, left]
        longer = (1 - above) * self.seconds[..., low, right] + above * self.seconds[
            ..., high, right
        ]
        seconds: Floats = (1 - beyond) * shorter + beyond * longer
        return seconds

    def covers(self, size: npt.ArrayLike, context: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether a pass lies within what was timed."""
        return _inside(self.sizes, size) & _inside(self.contexts, context)

    def raised(self, fewer_rows: Surface) -> Surface:
        """This surface, nowhere under that of a smaller batch, as far as the smaller was timed."""
        sizes, contexts = self.sizes[:, None], self.contexts[None, :]
        floor = np.where(
            fewer_rows.covers(sizes, contexts), fewer_rows.at(sizes, contexts), -np.inf
        )
        seconds = np.maximum(self.seconds, floor)
        shift = (seconds - self.seconds)[..., None]
        return Surface(self.sizes, self.contexts, self.samples + shift, seconds)

    @cached_property
    def redrawn(self) -> Surface:
        """The surface with its repeats drawn anew, `seconds` [draws, sizes, contexts].

        Repeats of a block are drawn together: what disturbed one pass disturbed its neighbours.
        """
        repeats = self.samples.shape[-1]
        generator = np.random.Generator(np.random.Philox(key=0))
        drawn = generator.integers(repeats, size=(_DRAWS, repeats))
        seconds = np.moveaxis(np.median(self.samples[..., drawn], axis=-1), -1, 0)
        return Surface(self.sizes, self.contexts, self.samples, _monotone(seconds))


def between(fewer: Surface, more: Surface, share: float) -> Surface | None:
    """The surface at a batch size between two timed ones, linear in the batch.

    Args:
        share: how far the batch lies from the smaller to the larger one, 0 … 1.

    Returns:
        On the sizes and contexts that both cover; None where there are none.
    """
    sizes = _common(fewer.sizes, more.sizes)
    contexts = _common(fewer.contexts, more.contexts)
    if not (len(sizes) and len(contexts)):
        return None
    grid = sizes[:, None], contexts[None, :]
    seconds = (1 - share) * fewer.at(*grid) + share * more.at(*grid)
    repeats = min(fewer.samples.shape[-1], more.samples.shape[-1])
    each = [_repeats(surface).at(*grid)[:repeats] for surface in (fewer, more)]
    samples = np.moveaxis((1 - share) * each[0] + share * each[1], 0, -1)
    return Surface(sizes, contexts, samples, seconds)


def _repeats(surface: Surface) -> Surface:
    """`seconds` [repeats, sizes, contexts] as timed."""
    seconds = np.moveaxis(surface.samples, -1, 0)
    return Surface(surface.sizes, surface.contexts, surface.samples, seconds)


def _common(one: Ints, other: Ints) -> Ints:
    """The points of both axes that lie on both."""
    points = np.union1d(one, other)
    inside: Ints = points[_inside(one, points) & _inside(other, points)]
    return inside


def _monotone(seconds: Floats) -> Floats:
    """Least-squares monotone [..., sizes, contexts] along sizes, then along contexts."""
    along_sizes = np.swapaxes(_isotonic(np.swapaxes(seconds, -1, -2)), -1, -2)
    return _isotonic(along_sizes)


def _isotonic(values: Floats) -> Floats:
    """The non-decreasing sequence nearest to each row: max over starts of min over ends of means.

    It keeps the order of two rows, so a second axis does not undo the first (Barlow et al. 1972).
    """
    zero = np.zeros((*values.shape[:-1], 1))
    sums = np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
    start, end = np.ogrid[: values.shape[-1], : values.shape[-1]]
    means = (sums[..., None, 1:] - sums[..., :-1, None]) / np.maximum(end - start + 1, 1)
    means = np.where(end >= start, means, np.inf)
    lowest = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
    nearest: Floats = np.where(end >= start, lowest, -np.inf).max(axis=-2)
    return nearest


def _between(axis: Ints, wanted: npt.NDArray[np.generic]) -> tuple[Ints, Ints, Floats]:
    """The grid points around each wanted one and how far it is from the lower."""
    # Not np.clip, which costs more than the rest of it on arrays as short as these.
    clamped = np.minimum(np.maximum(wanted.astype(np.float64), axis[0]), axis[-1])
    last = len(axis) - 1
    high = np.minimum(np.maximum(np.searchsorted(axis, clamped), min(1, last)), last)
    low = np.maximum(high - 1, 0)
    share: Floats = (clamped - axis[low]) / np.maximum(axis[high] - axis[low], 1)
    return low, high, share


def _inside(axis: Ints, wanted: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    asked = np.asarray(wanted)
    inside: npt.NDArray[np.bool_] = (axis[0] <= asked) & (asked <= axis[-1])
    return inside
