"""Estimates by arithmetic how long a prepared sweep will take with the built-in decoder.

A pass reads its weights once, takes some time for every layer, and a little more
for each further token.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from statistics import mean, median

import torch

from draftbench.measure.decoding import WARM_TOKENS, repeats_of
from draftbench.measure.step_costs import LEAST_TURNS, PREFILL_TURNS, CostGrid
from draftbench.measure.trajectories import RESPONSE_ROWS
from draftbench.models.check_result import ModelSheet
from draftbench.records import SAMPLES_PER_VISIT, SELF
from draftbench.sweep.preparation import Prepared

# Until a process loads a model: libraries, tokenizers, traffic.
START_SECONDS = 5.0
# How many contexts steps are timed at, with one row and with several; how many prompts are timed;
# and how many tokens a draft's steps read.
_CONTEXTS, _CONTEXTS_OF_ROWS, _PROMPTS, _DRAFT_SIZES = 3, 2, 3, (1, 2)
# Passes of a visit, with the untimed one before it.
_VISIT, _PROMPT_VISIT = SAMPLES_PER_VISIT + 1, 2


@dataclass(frozen=True)
class DeviceSpeed:
    """What is assumed of a device."""

    reading: float  # bytes of weights that a pass reads in a second
    layer: float  # seconds of a layer
    token: float  # what each further token of a pass takes, in steps
    loading: float  # weights loaded in a second


def speed_of(device: str) -> DeviceSpeed:
    """Assumed of one data-centre card, too slow for the best, and of two cores of a server, which
    lay out all weights anew as they load them. How fast a CPU reads is measured, on more than its
    caches hold: that differs most.
    """
    if device != "cpu":
        return DeviceSpeed(1.5e12, 3e-5, 1 / 100, 5e8)
    numbers, seconds = torch.ones(1 << 25), []
    for _ in range(5):
        begun = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - begun)
    return DeviceSpeed(numbers.nbytes / median(seconds), 1e-4, 1 / 10, 1e8)


@dataclass(frozen=True)
class _Model:
    """Seconds of its step and of loading it; `token` as the device's. Prompt lookup takes none."""

    step: float = 0.0
    loading: float = 0.0
    token: float = 0.0

    def one_pass(self, tokens: float) -> float:
        """Seconds of a pass over a few tokens."""
        return (1 + (tokens - 1) * self.token) * self.step

    def reading(self, tokens: float) -> float:
        """Seconds of long passes over so many tokens together."""
        return tokens * self.token * self.step


def seconds_of(
    prepared: Prepared, target: ModelSheet, drafts: Mapping[str, ModelSheet], speed: DeviceSpeed
) -> float:
    """About how long the sweep takes, if responses reach their limits, every candidate is decoded
    at as many k's as may be, and steps are timed no longer than they must be.

    Args:
        drafts: by name.
    """
    options, prompts = prepared.options, prepared.prompt_tokens
    ours = _model(target, options.target_quant, speed)
    theirs = {
        candidate: _model(drafts[candidate.draft], candidate.quant, speed)
        for candidate in prepared.candidates
        if candidate.draft in drafts
    }
    models = {
        candidate: ours if candidate.draft == SELF else theirs.get(candidate, _Model())
        for candidate in prepared.candidates
    }
    # Separate processes each load the target: one that writes its responses, and in every turn one
    # for each candidate.
    apart = options.isolate or options.processes > 1
    children = 1 + options.processes * len(models) if apart else 0
    seconds = (1 + children) * START_SECONDS + (children or 1) * ours.loading
    seconds += options.processes * sum(draft.loading for draft in theirs.values())
    # The target writes several responses side by side, and reads its prompts for that; then each
    # model reads all of it once, the target first.
    read = sum(tokens for tokens, _ in prompts) * options.samples
    written = sum(limit for _, limit in prompts) * options.samples
    if options.responses != "log":
        rows = min(RESPONSE_ROWS, len(prompts) * options.samples)
        seconds += written / rows * ours.one_pass(rows) + ours.reading(read)
    seconds += sum(model.reading(read + written) for model in (ours, *models.values()))
    if options.measure != "replay":
        seconds += options.processes * _step_times(prepared, ours, models.values())
    if options.most_ks:
        decoded = [draft for candidate, draft in models.items() if options.decodes(candidate)]
        seconds += options.processes * _decoding(prepared, ours, decoded)
    return seconds


def _model(sheet: ModelSheet, level: str, speed: DeviceSpeed) -> _Model:
    step = sheet.bytes_at(level) / speed.reading + sheet.layers * speed.layer
    return _Model(step, sheet.parameters / speed.loading, speed.token)


def _step_times(prepared: Prepared, target: _Model, drafts: Iterable[_Model]) -> float:
    options = prepared.options
    prompt = mean(tokens for tokens, _ in prepared.prompt_tokens)
    seconds = 0.0
    for batch, draft in product(options.batches, drafts):
        grid = CostGrid((), max(options.ks), (), (), batch)
        visits = LEAST_TURNS * _VISIT * (_CONTEXTS if batch == 1 else _CONTEXTS_OF_ROWS)
        prompts = PREFILL_TURNS * _PROMPT_VISIT * (_PROMPTS if batch == 1 else 0)
        timed = [(target, grid.verify_sizes)]
        if draft is not target and draft.step > 0:
            timed.append((draft, _DRAFT_SIZES))
        for model, sizes in timed:
            seconds += visits * sum(model.one_pass(batch * size) for size in sizes)
            seconds += prompts * model.reading(prompt)
    return seconds


def _decoding(prepared: Prepared, target: _Model, drafts: Iterable[_Model]) -> float:
    """Seconds of decoding as fast as without a draft."""
    options, cells = prepared.options, 1 + prepared.options.most_ks
    prompt = mean(tokens for tokens, _ in prepared.prompt_tokens)
    limit = mean(limit for _, limit in prepared.prompt_tokens)
    warm = min(limit, WARM_TOKENS + mean(options.ks))
    requests = min(options.measure_requests, len(prepared.prompt_tokens))
    seconds = 0.0
    for batch, draft in product(options.batches, drafts):
        # (responses, their tokens), the first batch once more to warm up
        of_all = requests * repeats_of(requests, batch)
        for rows, tokens in ((of_all, limit), (batch, warm)):
            seconds += cells * rows * tokens / batch * target.one_pass(batch)
            seconds += cells * rows * (target.reading(prompt) + draft.reading(prompt))
    return seconds
