"""Timed passes → seconds of any pass, and of the rounds that a draft needs.

Ratios between models are only taken within a block (one candidate and the target beside it), whose
points were timed in turn. A pass never costs less for more tokens, a longer context or more rows:
medians are made monotone, then interpolated. Only a pass over one token that takes clearly longer
than one over several stays as it was timed (`Surface.slow_step`): a library may be slow at one row,
and plain decoding consists of such passes. Outside of what was timed the nearest timed point
stands in, and `covers` says where.

With d(n) and t(n) the seconds of a draft's and of a target's pass over n tokens a row, and k' the
tokens that a round drafts, the rounds of one row take (`pass_seconds`)

    Σ [d(1), or d(2) after a fully accepted round, + (k'-1) · d(1) + t(k'+1)]

and b rows, which go through a round together,

    rounds · [P(some k' ≥ 1) · d(w) + Σ_{j=2..k} P(some k' ≥ j) · d(1) + t(1 + E k')]

Their tokens stand ragged side by side, so that the linear layers, which are most of a pass, see the
mean width over rows: of the verify pass 1 + E k', of the first draft pass w = 1 + P(the row's round
before was full). There are as many draft passes as the row that drafts most needs,
P(some k' ≥ j) = 1 - P(k' < j)^b with rows independent of each other. Seconds are those that a
response waits for its rounds, not its share of them. Prompt lookup takes as long where it finds
nothing. Prefills of other rows between two rounds are not modelled, nor that the passes which a GPU
records are as wide as their widest row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.intervals import Estimate, generator_of, quantiles, widening
from draftbench.acceptance.rounds import Floats, Ints, Rounds
from draftbench.records import SAMPLES_PER_VISIT, SELF, Candidate, Trajectory
from draftbench.run_folder.run import Run

_DRAWS = 400
# A pass that took so many times the median of its repeats did not run alone: the machine stalled.
STALL = 3.0
# A step that takes longer than a pass over several tokens by more than timings are off.
SLOW_STEP = 0.05
# From so many processes on, they are resampled too: they show how far one differs from another.
MIN_PROCESSES = 3
# Seconds by new tokens and context, then by process.
_Samples = defaultdict[tuple[int, int], dict[str, list[float]]]


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds of one model's passes over `sizes` new tokens a row on `contexts` cached ones.

    `samples` [sizes, contexts, repeats] are the timed seconds, the same number from each of the
    `processes` in turn; `seconds` [..., sizes, contexts] are their medians, made monotone.
    """

    sizes: Ints
    contexts: Ints
    samples: Floats
    seconds: Floats
    processes: int = 1
    # Where a pass over one token takes clearly longer than one over several, at every context:
    # their number, and the seconds of both passes at the middle context.
    slow_step: tuple[int, float, float] | None = None

    @classmethod
    def of(cls, sizes: Ints, contexts: Ints, samples: Floats, processes: int = 1) -> Surface:
        """The surface through the medians of `samples` [sizes, contexts, repeats]."""
        medians = _median(samples)
        slow = _slow_step(sizes, medians)
        return cls(sizes, contexts, samples, _monotone(medians, slow), processes, slow)

    def at(self, size: npt.ArrayLike, context: npt.ArrayLike) -> Floats:
        """Seconds by linear interpolation, at fractional sizes too; the arguments broadcast."""
        low, high, above = _neighbours(self.sizes, size)
        left, right, beyond = _neighbours(self.contexts, context)
        values = self.seconds
        shorter = (1 - above) * values[..., low, left] + above * values[..., high, left]
        longer = (1 - above) * values[..., low, right] + above * values[..., high, right]
        seconds: Floats = (1 - beyond) * shorter + beyond * longer
        return seconds

    def along(self, contexts: Floats) -> PassesAlong:
        """The passes of responses, each at its own context [responses]."""
        return _along(self, contexts.tobytes())

    def covers(self, size: npt.ArrayLike, context: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether a pass lies within what was timed."""
        return _inside(self.sizes, size) & _inside(self.contexts, context)

    def raised(self, fewer_rows: Surface) -> Surface:
        """This surface, nowhere under that of a smaller batch, as far as the smaller was timed."""
        grid = self.sizes[:, None], self.contexts[None, :]
        known = fewer_rows.covers(*grid)
        if fewer_rows.slow_step is not None:
            known &= grid[0] > 1
        floor = np.where(known, fewer_rows.at(*grid), -np.inf)
        seconds = np.maximum(self.seconds, floor)
        samples = self.samples + (seconds - self.seconds)[..., None]
        return replace(self, samples=samples, seconds=seconds)

    @cached_property
    def redrawn(self) -> Surface:
        """The surface with its visits resampled, `seconds` [draws, sizes, contexts]; from three
        processes on these are drawn first, since one differs from another by more than its visits.

        All passes of a block are resampled by the same visits, and both samples of a visit
        together: what disturbed one pass disturbed its neighbours. Draws of few visits are spread
        as intervals of few are widened: with 6 visits 95% of the draws cover the truth in 92 to 97
        of 100 cases, unspread in 86 to 93. A stall counts as the longest pass that did not stall:
        spread it would be thousands of steps, and without it c of 3, 6 and 12 visits of which up to
        30% stalled is covered in 94 to 98 of 100 cases.
        """
        samples = _without_stalls(self.samples)
        repeats = self.samples.shape[-1] // self.processes
        together = min(SAMPLES_PER_VISIT, repeats)
        visits = repeats // together
        generator = generator_of()
        drawn = generator.integers(visits, size=(_DRAWS, self.processes, visits))
        units, first = self.processes * visits, np.arange(self.processes)
        if self.processes >= MIN_PROCESSES:
            units = self.processes
            first = generator.integers(units, size=(_DRAWS, units))
        at = first[..., None, None] * repeats + drawn[..., None] * together + np.arange(together)
        medians = _median(samples[..., at.reshape(_DRAWS, -1)])
        middle = _median(samples)[..., None]
        spread = middle * (medians / middle) ** widening(units)
        return replace(self, seconds=_monotone(np.moveaxis(spread, -1, 0), self.slow_step))


@dataclass(frozen=True, eq=False)
class PassesAlong:
    """Seconds of one model's passes over `sizes` new tokens at the context of each response [...,
    sizes, responses].
    """

    sizes: Ints
    seconds: Floats

    def over(self, size: npt.ArrayLike) -> Floats:
        """Seconds of passes over `size` tokens by linear interpolation: [..., responses] for one
        size, [..., n, responses] for several [n].
        """
        low, high, above = _neighbours(self.sizes, size)
        above = above[..., None]
        seconds: Floats = (1 - above) * self.seconds[..., low, :] + above * self.seconds[
            ..., high, :
        ]
        return seconds


# Asked for at every k.
@lru_cache(maxsize=256)
def _along(surface: Surface, contexts: bytes) -> PassesAlong:
    return PassesAlong(surface.sizes, surface.at(surface.sizes[:, None], np.frombuffer(contexts)))


def between(
    by_rows: Mapping[int, Surface],
    rows: int,
    bend: npt.ArrayLike = 0.0,
    bend_of_steps: npt.ArrayLike = 0.0,
) -> Surface | None:
    """The surface at a batch size that lies between two of those timed (`by_rows`), on the sizes
    and contexts that its neighbours both cover; None where there are none.

    From one neighbour to the other seconds rise as they do over the tokens of a pass, rows × new
    tokens, of all timed batches together: those are flat as long as the weights are what is waited
    for, then rise, whatever the tokens are of.

    Args:
        bend: how the curves of seconds over tokens run between their points, from -1, the least
            that they may be there, to 1, the most; of several [n] the samples and seconds of the
            surface begin with an axis of n.
        bend_of_steps: the same for passes over one token a row.
    """
    low, high = max(b for b in by_rows if b < rows), min(b for b in by_rows if b > rows)
    fewer, more = by_rows[low], by_rows[high]
    sizes = _common(fewer.sizes, more.sizes)
    contexts = _common(fewer.contexts, more.contexts)
    if not (len(sizes) and len(contexts)):
        return None
    timed = tuple(by_rows.items())
    curves = [_token_curve(timed, context) for context in contexts.tolist()]
    tokens = np.outer((low, rows, high), sizes)
    bends = np.where(sizes == 1, np.asarray(bend_of_steps)[..., None], np.asarray(bend)[..., None])
    passes = np.stack([curve.at(tokens, bends[..., None, :]) for curve in curves], axis=-1)
    below, here, above = np.moveaxis(passes, -3, 0)
    straight = np.full_like(here, (rows - low) / (high - low))
    share = np.divide(here - below, above - below, out=straight, where=above > below)

    def mixed(one: Surface, other: Surface, share: Floats) -> Floats:
        grid = sizes[:, None], contexts[None, :]
        return (1 - share) * one.at(*grid) + share * other.at(*grid)

    processes = min(fewer.processes, more.processes)
    repeats = min(each.samples.shape[-1] // each.processes for each in (fewer, more))
    # Samples are mixed as the medians are: here `seconds` are [samples, sizes, contexts].
    of_samples = []
    for each in (fewer, more):
        by_process = each.samples.reshape(*each.samples.shape[:2], each.processes, -1)
        chosen = by_process[..., :processes, :repeats].reshape(*each.samples.shape[:2], -1)
        of_samples.append(replace(each, seconds=np.moveaxis(chosen, -1, 0)))
    one, other = of_samples
    samples = np.moveaxis(mixed(one, other, share[..., None, :, :]), -3, -1)
    slow = fewer.slow_step or more.slow_step
    seconds = _monotone(mixed(fewer, more, share), slow)
    return Surface(sizes, contexts, samples, seconds, processes, slow)


@dataclass(frozen=True, eq=False)
class _TokenCurve:
    """Seconds of a pass at one context over its tokens, from the passes of all batches."""

    tokens: Ints
    seconds: Floats

    def at(self, wanted: Ints, bend: Floats) -> Floats:
        """Seconds of passes over `wanted` tokens; `bend` is -1 for the least, 1 for the most that
        they may be, 0 half-way.

        Between two points the seconds may rise along the line through both, or with the slope
        before the first, or with the slope after the second: a bend where both of these lie on one
        side of the line, else a step. The nearer of the two to the line sets how far they may be
        from it.
        """
        if len(self.tokens) == 1:
            return np.full(wanted.shape, self.seconds[0])
        last = len(self.tokens) - 2
        at = np.clip(np.searchsorted(self.tokens, wanted, "right") - 1, 0, last)
        slopes = np.diff(self.seconds) / np.diff(self.tokens)
        left, right = self.seconds[at], self.seconds[at + 1]
        done, left_over = wanted - self.tokens[at], self.tokens[at + 1] - wanted
        line = left + slopes[at] * done
        before = np.clip(left + slopes[np.maximum(at - 1, 0)] * done, left, right)
        after = np.clip(right - slopes[np.minimum(at + 1, last)] * left_over, left, right)
        near = np.minimum(np.abs(before - line), np.abs(after - line))
        least = np.where(np.minimum(before, after) < line, line - near, line)
        most = np.where(np.maximum(before, after) > line, line + near, line)
        seconds: Floats = (least + most) / 2 + bend * (most - least) / 2
        return seconds


# Every load between two timed ones asks for the same few.
@lru_cache(maxsize=256)
def _token_curve(timed: tuple[tuple[int, Surface], ...], context: int) -> _TokenCurve:
    of_passes = np.concatenate([rows * surface.sizes for rows, surface in timed])
    seconds = np.concatenate([surface.at(surface.sizes, context) for _, surface in timed])
    tokens, at = np.unique(of_passes, return_inverse=True)
    return _TokenCurve(tokens, isotonic(np.bincount(at, seconds) / np.bincount(at)))


def _common(one: Ints, other: Ints) -> Ints:
    """The points of two axes that lie within the range of both."""
    # Not np.union1d, which imports masked arrays.
    points = np.array(sorted({*one.tolist(), *other.tolist()}))
    inside: Ints = points[_inside(one, points) & _inside(other, points)]
    return inside


def _median(samples: Floats) -> Floats:
    """Over the last axis. np.median takes five times as long on as few samples, and imports masked
    arrays, which takes longer than all medians of a run.
    """
    ordered, count = np.sort(samples, axis=-1), samples.shape[-1]
    median: Floats = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return median


def _without_stalls(samples: Floats) -> Floats:
    """Every stall as the longest pass of the same kind that did not stall; medians stay."""
    alone = np.where(samples <= STALL * _median(samples)[..., None], samples, 0.0)
    capped: Floats = np.minimum(samples, alone.max(axis=-1, keepdims=True))
    return capped


def _slow_step(sizes: Ints, medians: Floats) -> tuple[int, float, float] | None:
    """`Surface.slow_step` of medians [sizes, contexts]."""
    times = np.divide(medians[:1], medians, out=np.ones_like(medians), where=medians > 0)
    times = times.min(axis=-1)
    at, middle = int(times.argmax()), medians.shape[-1] // 2
    if sizes[0] != 1 or times[at] <= 1 + SLOW_STEP:
        return None
    return int(sizes[at]), float(medians[at, middle]), float(medians[0, middle])


def _monotone(seconds: Floats, slow_step: object) -> Floats:
    """Least-squares monotone [..., sizes, contexts] along sizes, but for a slow step, then along
    contexts.
    """
    by_size, first = np.swapaxes(seconds, -1, -2).copy(), int(slow_step is not None)
    by_size[..., first:] = isotonic(by_size[..., first:])
    return isotonic(np.swapaxes(by_size, -1, -2))


def isotonic(values: Floats) -> Floats:
    """The non-decreasing sequence nearest to each row: max over starts of min over ends of means.

    It keeps the order of two rows, so a second axis does not undo the first (Barlow et al. 1972).
    """
    rising, falls = values.copy(), (np.diff(values, axis=-1) < 0).any(axis=-1)
    rows, length = values[falls], values.shape[-1]
    sums = np.concatenate([np.zeros((*rows.shape[:-1], 1)), np.cumsum(rows, axis=-1)], axis=-1)
    nearest = np.full_like(rows, -np.inf)
    for start in range(length):
        means = (sums[..., start + 1 :] - sums[..., start, None]) / np.arange(1, length - start + 1)
        lowest = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
        nearest[..., start:] = np.maximum(nearest[..., start:], lowest)
    rising[falls] = nearest
    return rising


def _neighbours(axis: Ints, wanted: npt.ArrayLike) -> tuple[Ints, Ints, Floats]:
    """The indices of the timed points around each wanted one, and what share of the way from the
    lower to the upper it lies.
    """
    points = np.asarray(wanted, np.float64)
    return _around(axis.tobytes(), points.tobytes(), points.shape)


# The contexts of the traffic are asked for at every k and every load.
@lru_cache(maxsize=256)
def _around(points: bytes, wanted: bytes, shape: tuple[int, ...]) -> tuple[Ints, Ints, Floats]:
    axis = np.frombuffer(points, np.int64)
    # Not np.clip, which costs more than the rest of it on arrays as short as these.
    clamped = np.minimum(np.maximum(np.frombuffer(wanted).reshape(shape), axis[0]), axis[-1])
    last = len(axis) - 1
    high = np.minimum(np.maximum(axis.searchsorted(clamped), min(1, last)), last)
    low = np.maximum(high - 1, 0)
    share: Floats = (clamped - axis[low]) / np.maximum(axis[high] - axis[low], 1)
    return low, high, share


def _inside(axis: Ints, wanted: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    points = np.asarray(wanted)
    inside: npt.NDArray[np.bool_] = (axis[0] <= points) & (points <= axis[-1])
    return inside


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """The timed passes of one candidate and of the target in its block; None where not timed.

    Seconds are those of all rows of the batch together. Exactly one of `draft` (passes of a draft
    model) and `proposal` (prompt lookup: one cost per round, whatever k) is set. Where times come
    from a file, those of target passes over more than `longest` tokens are unknown.
    """

    target: Surface
    draft: Surface | None
    proposal: Surface | None
    prefill: Surface | None
    draft_prefill: Surface | None
    longest: int | None = None

    @cached_property
    def redrawn(self) -> BlockCosts:
        """The same with visits resampled, every surface by the same draws."""
        return self._with(lambda surface: surface.redrawn)

    @cached_property
    def first(self) -> BlockCosts:
        """The first of several costs that `costs_between` holds in the first axis of surfaces."""
        return self._with(
            lambda surface: replace(surface, samples=surface.samples[0], seconds=surface.seconds[0])
        )

    def _with(self, changed: Callable[[Surface], Surface]) -> BlockCosts:
        """With other steps; prefills stay."""
        return replace(
            self,
            target=changed(self.target),
            draft=self.draft and changed(self.draft),
            proposal=self.proposal and changed(self.proposal),
        )

    def draft_cost_ratio(self, context: float) -> Estimate:
        """c: one draft step (prompt lookup: one whole proposal) over one target step."""
        drafting = self.draft or self.proposal
        assert drafting is not None
        return self._over_a_step(drafting, 1, context)

    def verify_ratio(self, tokens: int, context: float) -> Estimate:
        """v(n): a target pass over `tokens` over one of a single token."""
        return self._over_a_step(self.target, tokens, context)

    def _over_a_step(self, passes: Surface, tokens: int, context: float) -> Estimate:
        """A ratio of medians with its 95% interval over visits, or over processes."""
        value = passes.at(tokens, context) / self.target.at(1, context)
        draws = passes.redrawn.at(tokens, context) / self.target.redrawn.at(1, context)
        return Estimate(float(value), *quantiles(draws, (0.025, 0.975)))


def block_costs(run: Run, candidate: Candidate) -> dict[int, BlockCosts]:
    """The costs of a candidate's block by the batch sizes that were timed, ascending.

    Empty where the draft's or the target's quantization level has no real kernel. More rows never
    cost less than fewer.
    """
    both = (run.facts_of(candidate), run.facts_of(None))
    if any(facts is not None and not facts.has_kernel for facts in both):
        return {}
    timed: defaultdict[tuple[Candidate | None, str, int], _Samples] = defaultdict(
        lambda: defaultdict(dict)
    )
    for point in run.costs:
        if point.block == str(candidate):
            samples = timed[point.candidate, point.what, point.batch]
            by_process = samples[point.new_tokens, point.context]
            by_process.setdefault(point.process, []).extend(point.seconds)
    draft = None if candidate.draft == SELF else candidate
    one_lookup = _surface(timed[draft, "proposal", 1])
    prefill, draft_prefill = (_surface(timed[model, "prefill", 1]) for model in (None, draft))
    fewer_rows: dict[Candidate | None, Surface] = {}
    by_batch = {}
    for batch in sorted({batch for _, _, batch in timed}):
        steps: dict[Candidate | None, Surface] = {}
        for model in {None, draft}:
            surface = _surface(timed[model, "step", batch])
            if surface is not None:
                before = fewer_rows.get(model)
                steps[model] = surface.raised(before) if before else surface
        fewer_rows |= steps
        proposal = _surface(timed[draft, "proposal", batch])
        if proposal is None and one_lookup is not None:
            # The host looks the rows up one after the other.
            proposal = replace(
                one_lookup,
                samples=one_lookup.samples * batch,
                seconds=one_lookup.seconds * batch,
            )
        if None in steps and (draft in steps or proposal):
            by_batch[batch] = BlockCosts(
                target=steps[None],
                draft=steps.get(draft),
                proposal=proposal,
                prefill=prefill,
                draft_prefill=draft_prefill,
            )
    return by_batch


def _surface(samples: _Samples) -> Surface | None:
    """The surface through samples. A context that was not timed at every size is left out, and so
    is a process that did not time every point; None where nothing is left.
    """
    sizes = sorted({size for size, _ in samples})
    contexts = sorted({context for _, context in samples})
    complete = [c for c in contexts if all((size, c) in samples for size in sizes)]
    if not complete:
        return None
    cells = [[samples[size, c] for c in complete] for size in sizes]
    every = [cell for row in cells for cell in row]
    processes = [name for name in every[0] if all(name in cell for cell in every)]
    if not processes:
        return None
    repeats = min(len(cell[name]) for cell in every for name in processes)
    grid = np.array([[[cell[p][:repeats] for p in processes] for cell in row] for row in cells])
    flat = grid.reshape(len(sizes), len(complete), -1)
    return Surface.of(np.array(sizes), np.array(complete), flat, len(processes))


def costs_between(timed: Mapping[int, BlockCosts], rows: int) -> BlockCosts | None:
    """Costs at a batch size between two timed ones; prefill, of one row at a time, as it is.

    Surfaces begin with an axis of three: the middle of what the timed points allow
    (`BlockCosts.first`), then the fastest rounds that they allow with the slowest plain decoding,
    and the slowest rounds with the fastest plain decoding.
    """
    slower = np.array([0.0, -1.0, 1.0])

    def surface(passes: str, steps: Floats) -> Surface | None:
        by_rows = {batch: getattr(costs, passes) for batch, costs in timed.items()}
        return None if None in by_rows.values() else between(by_rows, rows, slower, steps)

    target, draft = surface("target", -slower), surface("draft", slower)
    proposal = surface("proposal", slower)
    if target is None or (draft is None and proposal is None):
        return None
    longest = min((each.longest for each in timed.values() if each.longest), default=None)
    first = next(iter(timed.values()))
    return replace(first, target=target, draft=draft, proposal=proposal, longest=longest)


def context_of(trajectory: Trajectory) -> float:
    """Tokens in the cache half-way through a response."""
    return trajectory.prompt_tokens + trajectory.output_tokens / 2


def pass_seconds(
    costs: BlockCosts,
    rounds: Rounds,
    context: Floats,
    batch: int = 1,
    weights: Floats | None = None,
) -> Floats:
    """Seconds of every response's draft steps and target passes [..., responses], by the formulas
    above.

    Args:
        context: cached tokens of each response.
        weights: how often each response occurs in the traffic, for the other rows of the batch;
            None: once each.
    """
    all_rounds = rounds.by_draft_length.sum(axis=1)
    widths = np.arange(rounds.k + 1)
    target, drafting = costs.target.along(context), costs.draft or costs.proposal
    assert drafting is not None
    draft = drafting.along(context)
    draft_step = draft.over(1)
    if batch == 1:
        verifying: Floats = (rounds.by_draft_length.T * target.over(widths + 1)).sum(axis=-2)
        if costs.draft is None:
            return verifying + all_rounds * draft_step
        after_full = rounds.after_full[:, 1:].sum(axis=1)
        longer = draft.over(2) - draft_step
        return verifying + (rounds.proposed * draft_step + after_full * longer)
    if weights is None:
        weights = np.ones(len(context))
    by_draft_length = weights @ rounds.by_draft_length
    total = by_draft_length.sum()
    if total == 0:  # nothing is decoded
        return all_rounds * target.over(1)
    shares = by_draft_length / total
    verify = target.over(1 + shares @ widths)
    if costs.draft is None:
        return all_rounds * (verify + draft_step)
    after_full = (weights @ rounds.after_full[:, 1:]).sum() / total
    some_row_drafts = 1 - np.cumsum(shares)[:-1] ** batch
    first = some_row_drafts[0] * draft.over(1 + after_full)
    return all_rounds * (verify + (first + some_row_drafts[1:].sum() * draft_step))
