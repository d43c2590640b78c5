"""What preparing a sweep of the built-in decoder has of its own: its device, workers and levels.
The order is `preparation`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

import torch

from draftbench.decoder.device import (
    card_names,
    device_of,
    device_words,
    dtype_of,
    environment_threads,
    one_thread_is_faster,
    set_threads,
)
from draftbench.drafts.heads.config import checkpoint_of
from draftbench.drafts.kinds import kind_of, parsed
from draftbench.errors import ModelError, UsageError
from draftbench.hub import names_model
from draftbench.measure.prompts import Prompt, TargetText
from draftbench.models.compatibility import check_writes, context_length_of
from draftbench.models.quantize import Build, check_level
from draftbench.models.source import ModelSource
from draftbench.records import LOOKUP, SELF, Candidate, DraftingMode, Environment
from draftbench.run_folder.manifest import Question, cores_here
from draftbench.sweep.options import SweepOptions, Watcher


class BuiltInDecoder:
    """The decoder with its `options`, as the machine or the cluster allows them, and its `build`.

    Raises:
        DraftbenchError: the input cannot be used.
    """

    machine: Environment | None = None  # the one that times, if it is not this one
    may_draft = False
    servers = None

    def __init__(self, options: SweepOptions, specs: dict[str, str], watcher: Watcher) -> None:
        device = device_of(options.device)
        _check_cards(options, device, watcher)
        if options.cluster:
            if find_spec("ray") is None:
                raise UsageError(
                    f"--workers {options.cluster} needs Ray, which is not installed",
                    hint="pip install 'ray[client]', in the version of the cluster's nodes",
                )
            from draftbench.sweep.ray_cluster import workers_of

            cluster, threads, self.machine = workers_of(options, device, watcher)
            options = replace(options, workers=cluster, threads=threads)
        usual, workers = environment_threads(), options.worker_count
        each = max(1, cores_here() // workers) if workers > 1 and device == "cpu" else None
        self.asked_threads = options.threads or usual or each
        if options.threads is None and (usual or each):
            reason = "from OMP_NUM_THREADS" if usual else f"for each of {workers} workers"
            watcher.note(
                f"CPU threads: {self.asked_threads}, {reason}; --threads sets another number"
            )
        self.options, self.specs, self.watcher = options, specs, watcher
        self.build = Build(
            dtype_of(options.dtype, device),
            options.target_quant,
            device,
            simulate=options.simulate_quant,
            two_layouts=not options.one_layout,
        )
        self.target = ModelSource(options.target, options.trust)
        drafting = [s for s in specs.values() if s != SELF and not kind_of(s).from_text]
        for spec in drafting:
            kind = kind_of(spec)
            if not kind.built_in:
                raise UsageError(
                    f"`{spec}`: only a serving engine can draft this way",
                    hint="name it with --engine",
                )
            if not kind.samples and options.mode is not DraftingMode.GREEDY:
                raise UsageError(
                    f"`{spec}`: the built-in decoder drafts greedily with {kind.noun}",
                    hint=f"leave `--mode` out, or leave the {kind.noun.removeprefix('a ')} out",
                )
        self.models = [spec for spec in drafting if not kind_of(spec).parts(spec)]
        for spec in (options.target, *(spec for spec in self.models if parsed(spec)[1])):
            checkpoint_of(spec, options.trust)

    def threads(self) -> int:
        """How many CPU threads are used from here on. If no number was asked for, it takes seconds
        to find whether other processes leave room for more than one.
        """
        used, on_cpu = set_threads(self.asked_threads), self.build.device == "cpu"
        if self.asked_threads is None and on_cpu and one_thread_is_faster(used):
            self.watcher.note(
                f"other processes use this machine's cores, so {used} CPU threads are no faster "
                "than one: the sweep uses one; --threads sets another number"
            )
            used = set_threads(1)
        self.watcher.note(f"device: {device_words(self.build.device)}", always=True)
        return used

    def read_target(self) -> tuple[TargetText, int]:
        """What makes its prompts, and its context length.

        Raises:
            ModelError: it cannot be used, or no level can be computed here.
        """
        options, device, simulate = self.options, self.build.device, self.build.simulate
        check_level(options.target_quant, device, simulate=simulate)
        self.refused_levels = dict[str, ModelError]()
        for level in options.quants:
            try:
                check_level(level, device, simulate=simulate)
            except ModelError as error:
                self.refused_levels[level] = error
        if self.refused_levels.keys() == set(options.quants):
            raise self.refused_levels[options.quants[0]]
        models = (options.target, *(parsed(spec)[1] for spec in self.models))
        for spec in filter(names_model, models):
            self.watcher.note(f"{spec} is fetched from the model hub unless it is cached")
        check_writes(self.target)
        self.target.check_weights()
        context = context_length_of(self.target)
        if context is None:
            raise ModelError(
                f"`{self.target.name}` names no context length, as recurrent models do",
                hint="choose a target whose layers keep keys and values",
            )
        return TargetText(self.target), context

    def replays_over(self, prompts: Sequence[Prompt], rows: int) -> None:
        """No engine: drafts are replayed over what this decoder writes."""

    def candidates(
        self,
        checked: dict[Candidate, None],
        sources: Mapping[str, ModelSource],
        prompts: Sequence[Prompt],
    ) -> tuple[Candidate, ...]:
        """The candidates with the controls; finds the longest context of the `build`."""
        # The last timed pass may begin where the longest response ends, and a recorded pass writes
        # as much again.
        longest = max(len(prompt.tokens) + prompt.limit for prompt in prompts)
        longest += 2 * (max(self.options.ks) + 1)
        self.build = replace(self.build, longest=longest)
        controls = (LOOKUP, SELF) if self.options.controls else ()
        return tuple(checked | dict.fromkeys(Candidate(draft=draft) for draft in controls))

    def question(self, question: Question) -> Question:
        """The question, to which this decoder adds nothing."""
        return question


def _check_cards(options: SweepOptions, device: str, watcher: Watcher) -> None:
    """Raise a UsageError if the workers cannot have the GPUs that --cards names."""
    if options.cards is None:
        return
    if options.workers is not None:
        raise UsageError(
            "--cards with --workers", hint="leave --workers out: each card has one worker"
        )
    if device != "cuda":
        raise UsageError(
            f"--cards with the device `{device}`",
            hint="it is for several NVIDIA GPUs; on a CPU, --workers 4 shares the work",
        )
    missing = [card for card in options.cards if card >= torch.cuda.device_count()]
    if missing:
        raise UsageError(
            f"--cards: there is no GPU {missing[0]}",
            hint=f"{torch.cuda.device_count()} are visible, numbered from 0",
        )
    names = [card_names(f"cuda:{card}") for card in options.cards]
    if len(set(names)) > 1:
        watcher.note(f"the GPUs differ: all times are taken on the {names[0]}", always=True)
