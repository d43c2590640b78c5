"""Timed passes → seconds of any pass, and of the rounds that a draft needs, as draws.

Ratios between models are taken only within a block (one candidate and the target beside it), whose
points were timed in turn. Row 0 of every array has the medians, the other rows those of resampled
visits. A pass never costs less for more tokens, a longer context or more rows. One exception: a
one-token pass that is clearly slower than one over several keeps its measured time
(`Passes.slow_step`), because a library may be slow at one row, and plain decoding consists of such
passes. Seconds are linear between timed points and constant outside of them; `covers` says which is
which. So the seconds of anything are a weighted sum of the seconds of timed points.

With d(n) and t(n) the seconds of a draft's and of a target's pass over n tokens a row, and k' the
tokens that a round drafts, the rounds of one row take

    Σ [d(1), or d(2) after a fully accepted round, + (k'-1) · d(1) + t(k'+1)]

A head's first step in a round, its catch-up, reads the w tokens that the round before accepted and
produced: its rounds take

    Σ [catch-up(w) + (k'-1) · d(1) + t(k'+1)]

A block drafter drafts after its catch-up k tokens at once, however many of them are proposed:

    Σ [catch-up(w) + block(k) + t(k'+1)]

and b rows, which go through a round together,

    rounds · [P(some k' ≥ 1) · d(w) + Σ_{j=2..k} P(some k' ≥ j) · d(1) + t(1 + E k')]

In a stack the draft makes no passes in rounds that prompt lookup drafts; its next first pass reads
the tokens of all these rounds. Its widths and passes are counted over the rounds that it drafts,
and w is the mean over the rounds in which it drafts for some row.

The rows' tokens are packed side by side, so the linear layers, which are most of a pass, see the
mean width over rows: 1 + E k' in the verify pass, w = 1 + P(the row's previous round was full) in
the first draft pass, 1 + E accepted in a head's. There are as many draft passes as the row that
drafts most needs: P(some k' ≥ j) = 1 - P(k' < j)^b, with rows independent of each other. Seconds
are what a response waits for its rounds, not its share of them. Prompt lookup takes the same time
when it finds nothing. Not modelled: prefills of other rows between two rounds, and that passes
recorded on a GPU are as wide as their widest row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.intervals import Estimate, generator_of, quantiles, widening
from draftbench.acceptance.rounds import Floats, Ints, Rounds
from draftbench.records import SAMPLES_PER_VISIT, SELF, Candidate
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# How often visits are resampled.
PASS_DRAWS = 400
# A pass that took this many times the median of its repeats did not run alone: the machine stalled.
STALL = 3.0
# A step is slow if it takes longer than a pass over several tokens by more than this share, which
# is beyond timing noise.
SLOW_STEP = 0.05
# With at least this many processes, they are resampled too: they show how much processes differ.
MIN_PROCESSES = 3
# Seconds by new tokens and context, then by process.
_Samples = Mapping[tuple[int, int], Mapping[str, Sequence[float]]]


@dataclass(frozen=True, eq=False)
class Passes:
    """Seconds of one model's passes over `sizes` new tokens per row with `contexts` cached ones,
    all rows together: medians and resampled ones [1 + draws, sizes, contexts].
    """

    sizes: Ints
    contexts: Ints
    seconds: Floats
    # Set if a pass over one token takes clearly longer than one over several, at every context: how
    # many, and the seconds of both passes at the middle context.
    slow_step: tuple[int, float, float] | None = None

    def at(self, size: npt.ArrayLike, context: npt.ArrayLike) -> Floats:
        """Seconds of one pass by linear interpolation [1 + draws, n]."""
        sizes, contexts = np.broadcast_arrays(np.atleast_1d(size), np.atleast_1d(context))
        of_sizes, of_contexts = _shares(self.sizes, sizes), _shares(self.contexts, contexts)
        points = (of_sizes[:, :, None] * of_contexts[:, None, :]).reshape(len(sizes), -1)
        seconds: Floats = self.flat @ points.T
        return seconds

    @property
    def flat(self) -> Floats:
        """Seconds of every point [1 + draws, points]."""
        return self.seconds.reshape(len(self.seconds), -1)

    def covers(self, size: npt.ArrayLike, context: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether a pass lies within what was timed."""
        inside: npt.NDArray[np.bool_] = _inside(self.sizes, size) & _inside(self.contexts, context)
        return inside

    def raised(self, fewer_rows: Passes) -> Passes:
        """These passes, raised where the same passes of fewer rows took longer."""
        grid = self.sizes[:, None], self.contexts[None, :]
        sizes, contexts = (each.ravel() for each in np.broadcast_arrays(*grid))
        floor = fewer_rows.at(sizes, contexts).reshape(self.seconds.shape)
        known = fewer_rows.covers(*grid)
        if fewer_rows.slow_step is not None:
            known &= grid[0] > 1
        floor = np.where(known, floor, 0.0)
        return replace(self, seconds=np.maximum(self.seconds, floor))


def exactly(seconds: Mapping[int, float]) -> Passes:
    """Passes with one known time for each size, the same at every context."""
    sizes = sorted(seconds)
    each = np.array([[seconds[size]] for size in sizes])
    return Passes(np.array(sizes), np.zeros(1, np.int64), np.repeat(each[None], PASS_DRAWS + 1, 0))


# A stand-in where an engine shows no passes: each counts as 1.
UNTIMED = exactly({1: 1.0})


def _shares(axis: Ints, wanted: npt.NDArray[Any]) -> Floats:
    """The weights of linear interpolation between the points of an axis [wanted, axis]."""
    points = np.arange(len(axis))
    off = np.interp(wanted, axis, points)[:, None] - points
    weights: Floats = np.maximum(1 - abs(off), 0.0)
    return weights


def _inside(axis: Ints, wanted: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    points = np.asarray(wanted)
    inside: npt.NDArray[np.bool_] = (axis[0] <= points) & (points <= axis[-1])
    return inside


def rising(values: Floats, axis: int = -1) -> Floats:
    """Monotone fit: the mean of the running maximum and the reversed running minimum. It keeps the
    order of two rows, so that a second axis does not undo the first.
    """
    above = np.maximum.accumulate(values, axis)
    below = np.flip(np.minimum.accumulate(np.flip(values, axis), axis), axis)
    found: Floats = (above + below) / 2
    return found


def _median(samples: Floats) -> Floats:
    """The median over the last axis. np.median takes five times as long on few samples, and imports
    masked arrays, which takes longer than all medians of a run.
    """
    ordered, count = np.sort(samples, axis=-1), samples.shape[-1]
    median: Floats = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return median


def _passes(samples: _Samples) -> Passes | None:
    """Passes from samples, with resampled visits; with three or more processes, processes are drawn
    first, since two of them differ by more than their visits do. A context that was not timed at
    every size is left out, and so is a process that did not time every point; None if nothing is
    left.

    All passes of a block are resampled by the same visits, and both samples of a visit together:
    what disturbed one pass disturbed its neighbours. Draws from few visits are spread, as intervals
    over few units are widened: with 6 visits, 95% of the draws cover the truth in 92 to 97 of 100
    cases, in 86 to 93 without. A stall counts as the longest pass that did not stall: spread, it
    would be thousands of steps. Treated so, c is covered in 94 to 98 of 100 cases, with 3, 6 and 12
    visits of which up to 30% stalled.
    """
    sizes = sorted({size for size, _ in samples})
    contexts = sorted({context for _, context in samples})
    contexts = [c for c in contexts if all((size, c) in samples for size in sizes)]
    cells = [samples[size, context] for size in sizes for context in contexts]
    names = [name for name in cells[0] if all(name in cell for cell in cells)] if cells else []
    if not names:
        return None
    repeats = min(len(cell[name]) for cell in cells for name in names)
    timed = np.array([[cell[name][:repeats] for name in names] for cell in cells])
    middle = _median(timed.reshape(len(cells), -1))[:, None]
    alone = np.where(timed <= STALL * middle[..., None], timed, 0.0).max(axis=(1, 2))
    together = min(SAMPLES_PER_VISIT, repeats)
    visits = repeats // together
    generator, units = generator_of("passes"), visits * len(names)
    visit = generator.integers(visits, size=(PASS_DRAWS, len(names), visits))
    process = np.arange(len(names))
    if len(names) >= MIN_PROCESSES:
        units = len(names)
        process = generator.integers(units, size=(PASS_DRAWS, units))
    of_visits = np.minimum(timed, alone[:, None, None])[..., : visits * together]
    of_visits = of_visits.reshape(len(cells), len(names), visits, together)
    drawn = of_visits[:, process[..., None], visit, :].reshape(len(cells), PASS_DRAWS, -1)
    whole = _median(of_visits.reshape(len(cells), -1))[:, None]
    ratio = np.divide(_median(drawn), whole, out=np.ones(drawn.shape[:2]), where=whole > 0)
    spread = middle * ratio ** widening(units)
    shape = -1, len(sizes), len(contexts)
    seconds = np.concatenate([middle, spread], axis=1).T.reshape(shape)
    steps, slow = seconds[0], None
    times = np.divide(steps[:1], steps, out=np.ones_like(steps), where=steps > 0).min(axis=-1)
    if sizes[0] == 1 and times.max() > 1 + SLOW_STEP:
        at, context = int(times.argmax()), len(contexts) // 2
        slow = sizes[at], float(steps[at, context]), float(steps[0, context])
    return Passes(np.array(sizes), np.array(contexts), _monotone(seconds, slow), slow)


def _monotone(seconds: Floats, slow_step: object) -> Floats:
    """Rising along sizes [..., sizes, contexts], but for a slow step, then along contexts."""
    by_size, first = seconds.copy(), int(slow_step is not None)
    by_size[..., first:, :] = rising(by_size[..., first:, :], -2)
    return rising(by_size, -1)


class Spent:
    """The passes that some responses need: for each model, how often each timed size and context
    counts [responses, …].
    """

    def __init__(self, contexts: Floats) -> None:
        self._contexts, self._parts = contexts, list[tuple[Passes, Floats, Floats]]()

    def add(self, passes: Passes, sizes: npt.ArrayLike, times: Floats) -> Spent:
        """Add passes over `sizes` new tokens, each made this many `times` [responses, sizes]."""
        by_size = times.reshape(len(times), -1) @ _shares(passes.sizes, np.atleast_1d(sizes))
        self._parts.append((passes, by_size, _shares(passes.contexts, self._contexts)))
        return self

    @property
    def seconds(self) -> Floats:
        """Seconds of every response, by the medians [responses]."""
        every = [((size @ p.seconds[0]) * context).sum(axis=1) for p, size, context in self._parts]
        return np.sum(every, axis=0)

    def drawn(self, weights: Floats) -> Floats:
        """Seconds of all responses together [1 + draws]."""
        often = [(p, (size.T * weights) @ context) for p, size, context in self._parts]
        return np.sum([p.flat @ points.ravel() for p, points in often], axis=0)


@dataclass(frozen=True, eq=False)
class Block:
    """The timed passes of one candidate and of the target beside it, at one concurrency.

    `draft` holds passes of a draft model, or of a head after its `catch_up`, which drafts all of a
    round's tokens if it takes no other; `block` those that draft whole blocks after it; `proposal`
    those of prompt lookup, which costs the same per round at every k; a stack has both. If times
    come from a file, target passes over more than `longest` tokens are unknown.
    """

    target: Passes
    draft: Passes | None = None
    proposal: Passes | None = None
    prefill: Passes | None = None
    draft_prefill: Passes | None = None
    longest: int | None = None
    catch_up: Passes | None = None
    block: Passes | None = None

    def steps(self, tokens: Floats, contexts: Floats) -> Spent:
        """Plain decoding of this many tokens of each response [responses]."""
        return Spent(contexts).add(self.target, 1, tokens)

    def rounds(self, rounds: Rounds, contexts: Floats, concurrency: int, weights: Floats) -> Spent:
        """The rounds of every response, by the formulas above.

        Args:
            weights: how often each response occurs in the traffic, for the other rows of the pass.
        """
        every, widths = rounds.by_draft_length.sum(axis=1), np.arange(rounds.k + 1)
        drafted = rounds.by_draft_length if rounds.by_draft is None else rounds.by_draft
        spent = Spent(contexts)
        # A round's first draft pass reads one token and those accepted before that the draft has
        # not read yet.
        read, unread = np.arange(1, 3), rounds.after_full[:, 1:].sum(axis=1, keepdims=True)
        if self.catch_up is not None:
            read, unread = 1 + widths, rounds.survived
        if concurrency == 1:
            spent.add(self.target, 1 + widths, rounds.by_draft_length)
            reaching = np.concatenate([rounds.with_draft[:, None], unread], axis=1)
            first = reaching - np.pad(reaching[:, 1:], ((0, 0), (0, 1)))
            if rounds.reads is not None:
                read, first = 1 + np.arange(rounds.reads.shape[1]), rounds.reads
            later = drafted @ widths - drafted[:, 1:].sum(axis=1)
        else:
            total = (weights @ every) or 1.0
            spent.add(self.target, 1 + (weights @ rounds.proposed) / total, every)
            some = 1 - (np.cumsum(weights @ drafted)[:-1] / total) ** concurrency
            read = 1 + (weights @ unread).sum(keepdims=True) / total
            if rounds.reads is not None:
                tokens = weights @ rounds.reads @ np.arange(1, 1 + rounds.reads.shape[1])
                read = np.array([tokens / total / (some[0] or 1.0)])
            first, later = every[:, None] * some[0], every * some[1:].sum()
        if self.proposal is not None:
            spent.add(self.proposal, 1, every)
        first_pass, later_pass = self.draft_passes
        if first_pass is not None:
            spent.add(first_pass, read, first)
        if self.block is not None:
            spent.add(self.block, rounds.k, first.sum(axis=1))
        if later_pass is not None:
            spent.add(later_pass, 1, later)
        return spent

    @property
    def draft_passes(self) -> tuple[Passes | None, Passes | None]:
        """The draft's first pass in a round, and its later ones."""
        return self.catch_up or self.draft, self.draft

    def prefills(self, prompts: Floats) -> Floats | None:
        """Seconds of prefill without speculation, and with it, where both models read the prompt
        [responses, 2]; None if that was not timed. Prompt lookup indexes the prompt, which takes at
        most a proposal per token.
        """
        if self.prefill is None:
            return None
        plain = drafting = self.prefill.at(prompts, 0)[0]
        if self.proposal is not None:
            drafting = drafting + prompts * self.proposal.at(1, prompts)[0]
        if self.draft_prefill is not None:
            drafting = drafting + self.draft_prefill.at(prompts, 0)[0]
        elif self.proposal is None or self.draft or self.catch_up:
            return None
        return np.stack([plain, drafting], axis=-1)

    @remembered
    def draft_cost_ratio(self, context: float) -> Estimate:
        """c: one draft step (for prompt lookup a whole proposal, for a head a step after its
        catch-up, for a block drafter the largest block) over one target step.
        """
        drafting = self.draft or self.block or self.catch_up or self.proposal
        assert drafting is not None
        return self._over_a_step(drafting, int(drafting.sizes[-1]) if self.block else 1, context)

    def verify_ratio(self, tokens: int, context: float) -> Estimate:
        """v(n): a target pass over `tokens` over one of a single token."""
        return self._over_a_step(self.target, tokens, context)

    def _over_a_step(self, passes: Passes, tokens: int, context: float) -> Estimate:
        """A ratio of medians with its 95% interval over visits, or over processes."""
        ratio = (passes.at(tokens, context) / self.target.at(1, context))[:, 0]
        return Estimate(float(ratio[0]), *quantiles(ratio[1:], (0.025, 0.975)))


def blocks_of(run: Run, candidate: Candidate) -> dict[int, Block]:
    """The passes of a candidate's block by timed concurrency, ascending; more rows never cost less.

    Empty if the draft's or the target's quantization level has no real kernel.
    """
    both = (run.facts_of(candidate), run.facts_of(None))
    if any(facts is not None and not facts.has_kernel for facts in both):
        return {}
    timed: defaultdict[
        tuple[Candidate | None, str, int], dict[tuple[int, int], dict[str, list[float]]]
    ]
    timed = defaultdict(dict)
    for point in run.costs:
        if point.block == str(candidate):
            samples = timed[point.candidate, point.what, point.concurrency]
            by_process = samples.setdefault((point.new_tokens, point.context), {})
            by_process.setdefault(point.process, []).extend(point.seconds)
    draft = None if candidate.draft == SELF else candidate
    one_lookup = _passes(timed[draft, "proposal", 1])
    prefill, draft_prefill = (_passes(timed[model, "prefill", 1]) for model in (None, draft))
    fewer_rows: dict[Candidate | None, Passes] = {}
    blocks = {}
    for concurrency in sorted({concurrency for _, _, concurrency in timed}):
        steps = {}
        for model in {None, draft}:
            passes = _passes(timed[model, "step", concurrency])
            if passes is not None:
                before = fewer_rows.get(model)
                steps[model] = passes.raised(before) if before else passes
        fewer_rows |= steps
        proposal, catch_up, block = (
            _passes(timed[draft, what, concurrency]) for what in ("proposal", "catch-up", "block")
        )
        if proposal is None and one_lookup is not None:
            # The host looks the rows up one after the other.
            proposal = replace(one_lookup, seconds=one_lookup.seconds * concurrency)
        if None in steps and (draft in steps or proposal or catch_up):
            blocks[concurrency] = Block(
                steps[None],
                steps.get(draft),
                proposal,
                prefill,
                draft_prefill,
                catch_up=catch_up,
                block=block,
            )
    return blocks


def between(timed: Mapping[int, Block], concurrency: int) -> Block | None:
    """The passes at a concurrency that was timed or lies between two that were; None elsewhere.

    From one timed load to the next, seconds rise as they do over the tokens of a pass, concurrency
    × new tokens, taken over all timed loads: flat as long as reading the weights takes longest,
    then rising, whichever rows the tokens belong to. Between two points of that curve seconds may
    follow the line through both, or the slope before the first or after the second; how far from
    the line is drawn, once for all passes.
    """
    if concurrency in timed:
        return timed[concurrency]
    around = next(((a, b) for a, b in pairwise(timed) if a < concurrency < b), None)
    if around is None:
        return None
    first, every = timed[around[0]], tuple(timed.items())
    names = "target", "draft", "proposal", "catch_up", "block"
    along = [_along(first, name, around, every) for name in names]
    target, draft, proposal, catch_up, block = (each and each(concurrency) for each in along)
    if target is None or not (draft or proposal or catch_up):
        return None
    longest = min((block.longest for block in timed.values() if block.longest), default=None)
    prefills = first.prefill, first.draft_prefill
    return Block(target, draft, proposal, *prefills, longest, catch_up, block)


@remembered
def _along(
    _: Block, name: str, around: tuple[int, int], timed: tuple[tuple[int, Block], ...]
) -> Callable[[int], Passes] | None:
    """One model's passes by concurrency, between the load of a block and the next timed one; None
    if some load lacks such passes, or the two loads share no size and context.
    """
    every: dict[int, Passes | None] = {n: getattr(block, name) for n, block in timed}
    by_load = {n: each for n, each in every.items() if each}
    if len(by_load) < len(every):
        return None
    low, high = (by_load[end] for end in around)
    sizes, contexts = _common(low.sizes, high.sizes), _common(low.contexts, high.contexts)
    if not (len(sizes) and len(contexts)):
        return None
    grid = [each.ravel() for each in np.broadcast_arrays(sizes[:, None], contexts[None, :])]
    shape = -1, len(sizes), len(contexts)
    fewer, more = (each.at(*grid).reshape(shape) for each in (low, high))
    # The tokens of passes at all loads, and seconds over these [1 + draws, tokens, contexts].
    # Not np.unique, which imports masked arrays.
    tokens = np.array(
        sorted({n * size for n, each in by_load.items() for size in each.sizes.tolist()})
    )
    total, often = np.zeros((PASS_DRAWS + 1, len(tokens), len(contexts))), np.zeros(len(tokens))
    for n, each in by_load.items():
        places = np.searchsorted(tokens, n * each.sizes)
        total[:, places] += each.seconds @ _shares(each.contexts, contexts).T
        often[places] += 1
    curve = rising(total / often[:, None], 1)
    below, above = (_bent(tokens, curve, end * sizes) for end in around)
    slow = low.slow_step or high.slow_step

    def at(concurrency: int) -> Passes:
        share = np.full_like(below, (concurrency - around[0]) / (around[1] - around[0]))
        risen = _bent(tokens, curve, concurrency * sizes) - below
        np.divide(risen, above - below, out=share, where=above > below)
        return Passes(sizes, contexts, _monotone(fewer + share * (more - fewer), slow), slow)

    return at


def _bent(tokens: Ints, curve: Floats, wanted: Ints) -> Floats:
    """The curve at some tokens, with a drawn bend from 0 (as low as it may lie) to 1 (as high): the
    slope that is nearer to the line sets how far from the line that is.
    """
    bend = generator_of("bend").random(PASS_DRAWS + 1)
    bend[0] = 0.5
    if len(tokens) == 1:
        return np.repeat(curve, len(wanted), axis=1)
    last = len(tokens) - 2
    at = np.clip(np.searchsorted(tokens, wanted, "right") - 1, 0, last)
    slopes = np.diff(curve, axis=1) / np.diff(tokens)[:, None]
    left, right = curve[:, at], curve[:, at + 1]
    done, rest = (wanted - tokens[at])[:, None], (tokens[at + 1] - wanted)[:, None]
    line = left + slopes[:, at] * done
    before = np.clip(left + slopes[:, np.maximum(at - 1, 0)] * done, left, right)
    after = np.clip(right - slopes[:, np.minimum(at + 1, last)] * rest, left, right)
    near = np.minimum(abs(before - line), abs(after - line))
    least = line - near * (np.minimum(before, after) < line)
    most = line + near * (np.maximum(before, after) > line)
    found: Floats = least + bend[:, None, None] * (most - least)
    return found


def _common(one: Ints, other: Ints) -> Ints:
    """The points of two axes that lie within the range of both."""
    # Not np.union1d, which imports masked arrays.
    points = np.array(sorted({*one.tolist(), *other.tolist()}))
    inside: Ints = points[_inside(one, points) & _inside(other, points)]
    return inside
