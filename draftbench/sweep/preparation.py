"""Prepares a sweep: checks traffic, pairs and levels, and renders prompts, before weights load.

Only configurations and tokenizers are read. What passes may still fail later, for lack of memory or
because of a damaged file.
"""

from __future__ import annotations

import time
import uuid
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec
import torch

import draftbench
from draftbench.decoder.device import (
    card_names,
    device_of,
    device_words,
    dtype_of,
    environment_threads,
    set_threads,
)
from draftbench.drafts.built_in import SERVED, WITH_WEIGHTS
from draftbench.drafts.heads.config import checkpoint_of
from draftbench.drafts.kinds import draft_name, kind_of, parsed
from draftbench.drafts.loading import Pairing
from draftbench.engines.secrets import without_values
from draftbench.errors import (
    DraftbenchError,
    ModelError,
    PairError,
    RefusedError,
    TrafficError,
    UsageError,
)
from draftbench.hub import names_model
from draftbench.measure.prompts import LostAnswerError, Prompt, TargetText
from draftbench.models.compatibility import check_writes, context_length_of
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import Build, check_level
from draftbench.models.source import ModelSource
from draftbench.records import (
    LOOKUP,
    SELF,
    Candidate,
    DraftingMode,
    Environment,
    Failure,
    Request,
)
from draftbench.run_folder.key import key_id, keyed_hash
from draftbench.run_folder.manifest import (
    SCHEMA_VERSION,
    Effort,
    Manifest,
    Question,
    TrafficFacts,
    cores_here,
    environment,
    portable,
)
from draftbench.sweep.failures import failure, known_error
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.prepared import Prepared
from draftbench.traffic import Traffic, load
from draftbench.traffic.summary import TrafficSummary, first_request

DEFAULT_LIMIT = 256


class PromptMaker(Protocol):
    """Turns requests into token ids: `measure.prompts.TargetText`, or a server."""

    def prompt(self, request: Request, limit: int, context_length: int) -> Prompt | None: ...

    def answer(self, request: Request) -> list[int]: ...

    def shown(self, tokens: Sequence[int]) -> str | None: ...


def prepare_models(options: SweepOptions, command: str, watcher: Watcher) -> Prepared:
    """Prepare a sweep of the built-in decoder.

    Raises:
        DraftbenchError: nothing could be measured, or the input cannot be used.
    """
    device = device_of(options.device)
    _check_cards(options, device, watcher)
    machine: Environment | None = None
    if options.cluster:
        if find_spec("ray") is None:
            raise UsageError(
                f"--workers {options.cluster} needs Ray, which is not installed",
                hint="pip install 'ray[client]', in the version of the cluster's nodes",
            )
        from draftbench.sweep.ray_cluster import workers_of

        cluster, threads, machine = workers_of(options, device, watcher)
        options = replace(options, workers=cluster, threads=threads)
    usual, workers = environment_threads(), options.worker_count
    each = max(1, cores_here() // workers) if workers > 1 and device == "cpu" else None
    threads = set_threads(options.threads or usual or each)
    watcher.note(f"device: {device_words(device)}", always=True)
    if options.threads is None and (usual or each):
        reason = "from OMP_NUM_THREADS" if usual else f"for each of {workers} workers"
        watcher.note(f"CPU threads: {threads}, {reason}; --threads sets another number")
    build = Build(
        dtype_of(options.dtype, device),
        options.target_quant,
        device,
        simulate=options.simulate_quant,
        two_layouts=not options.one_layout,
    )
    target = ModelSource(options.target, options.trust)
    specs = specs_of(options)
    drafting = [spec for spec in specs.values() if spec not in (LOOKUP, SELF)]
    models = [spec for spec in drafting if not kind_of(spec).parts(spec)]
    for spec in drafting:
        (_, model), kind = parsed(spec), kind_of(spec)
        if not kind.built_in:
            folder = "" if model else f"; a folder of this name is ./{spec}"
            raise UsageError(
                f"`{spec}`: only a serving engine can draft this way",
                hint=f"name it with --engine{folder}",
            )
        if not kind.samples and options.mode is not DraftingMode.GREEDY:
            raise UsageError(
                f"`{spec}`: the built-in decoder drafts greedily with {kind.noun}",
                hint=f"leave `--mode` out, or leave the {kind.noun.removeprefix('a ')} out",
            )
    for spec in (options.target, *(spec for spec in models if parsed(spec)[1])):
        checkpoint_of(spec, options.trust)
    traffic = read_requests(options, watcher)
    check_level(options.target_quant, device, simulate=options.simulate_quant)
    refused: dict[str, ModelError] = {}  # by level
    for level in options.quants:
        try:
            check_level(level, device, simulate=options.simulate_quant)
        except ModelError as error:
            refused[level] = error
    if refused.keys() == set(options.quants):
        raise refused[options.quants[0]]
    for spec in filter(names_model, (options.target, *(parsed(spec)[1] for spec in models))):
        watcher.note(f"{spec} is fetched from the model hub unless it is cached")
    check_writes(target)
    target.check_weights()
    # Prompts come first, so that a fault of the target is not blamed on its drafts.
    context = context_length_of(target)
    if context is None:
        raise ModelError(
            f"`{target.name}` names no context length, as recurrent models do",
            hint="choose a target whose layers keep keys and values",
        )
    prompts, summary = render(options, traffic, TargetText(target), context)
    pairing = Pairing(target, counts_of(prompts), chats=summary.chats > 0)
    checked = check_drafts(options, specs, pairing, refused)
    if not checked.candidates:
        raise checked.no_draft
    if options.controls:
        checked.candidates |= dict.fromkeys((Candidate(draft=LOOKUP), Candidate(draft=SELF)))
    # The last timed pass may begin where the longest response ends, and a recorded pass writes as
    # much again.
    longest = max(len(prompt.tokens) + prompt.limit for prompt in prompts)
    longest += 2 * (max(options.ks) + 1)
    question = question_of(options, traffic, build)
    manifest = manifest_of(
        options, command, question, traffic_facts(traffic, summary), threads, specs
    )
    if machine is not None:
        manifest = msgspec.structs.replace(manifest, environment=machine)
    return Prepared(
        options,
        target,
        drafts=checked.sources,
        candidates=tuple(checked.candidates),
        failures=tuple(checked.failures),
        caveats=checked.caveats,
        prompts=prompts,
        traffic=summary,
        manifest=manifest,
        build=replace(build, longest=longest),
    )


def manifest_of(
    options: SweepOptions,
    command: str,
    question: Question,
    traffic: TrafficFacts,
    threads: int,
    specs: Mapping[str, str],
) -> Manifest:
    """The head of the run folder."""
    timing = f"cuda:{options.cards[0]}" if options.cards else question.device
    return Manifest(
        schema_version=SCHEMA_VERSION,
        draftbench=draftbench.__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        run=uuid.uuid4().hex,
        command=portable(without_values(command) if options.serving else command),
        key_id=key_id(options.traffic.key),
        question=question,
        traffic=traffic,
        environment=environment(threads, card_names(timing)),
        effort=Effort(
            measure=options.measure,
            measure_requests=options.measure_requests,
            controls=options.controls,
            sample=options.traffic.sample,
            processes=options.repeats,
        ),
        specs={name: portable(spec) for name, spec in specs.items()},
    )


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


def specs_of(options: SweepOptions) -> dict[str, str]:
    """The entries of `--drafts` by the names that the run gives them: the short name of the model,
    unless it is taken. What is put together comes after its parts, which are measured too.
    """
    specs: dict[str, str] = {}
    parts = {draft: kind_of(draft).parts(draft) for draft in options.drafts}
    alone = (draft for draft, of in parts.items() if not of)
    with_weights = (of[-1] for of in parts.values() if of)
    others = chain.from_iterable(of[:-1] for of in parts.values())
    for spec in dict.fromkeys((*alone, *with_weights, *others)):
        is_model = parsed(spec)[0] == "draft-model" and spec != SELF
        name = ModelSource(spec).name if is_model else draft_name(spec)
        # A folder may be called like a way of drafting.
        reserved = is_model and (name == SELF or kind_of(name).method != "draft-model")
        taken = name in specs or reserved
        specs[portable(spec) if taken else name] = spec
    names = {spec: name for name, spec in specs.items()}
    together = {"+".join(names[part] for part in of): draft for draft, of in parts.items() if of}
    return specs | together


def read_requests(options: SweepOptions, watcher: Watcher) -> Traffic:
    """Read the requests.

    Raises:
        TrafficError: there is none.
    """
    watcher.note(f"reading traffic from {options.traffic.source}")
    if options.traffic.on_hub:
        watcher.note("it is fetched from the dataset hub unless it is cached")
    return load(options.traffic)


def render(
    options: SweepOptions, traffic: Traffic, text: PromptMaker, context: int
) -> tuple[tuple[Prompt, ...], TrafficSummary]:
    """Render every request; those that cannot be replayed are counted among the rows left out.

    Args:
        context: how many tokens the target reads.

    Raises:
        TrafficError: the template refuses a request (unless `skip_bad`), or no request is left.
    """
    prompts: list[Prompt] = []
    dropped: Counter[str] = Counter()
    refused: dict[str, list[RefusedError]] = {}
    first: Request | None = None
    chats = 0
    for request in traffic.requests:
        if options.responses == "log" and not request.response:
            dropped["no logged answer"] += 1
            continue
        sampling = request.sampling
        if options.temperature is not None:
            sampling = msgspec.structs.replace(sampling, temperature=options.temperature)
        limits = filter(None, (request.max_tokens, options.max_new_tokens))
        sampled = msgspec.structs.replace(request, sampling=sampling)
        try:
            prompt = text.prompt(sampled, min(limits, default=DEFAULT_LIMIT), context)
            if prompt is not None and options.responses == "log":
                prompt = replace(prompt, logged=array("i", text.answer(request)[: prompt.limit]))
        except RefusedError as error:
            refused.setdefault(error.reason, []).append(error)
            continue
        except LostAnswerError as error:
            dropped[f"its logged answer had {error}"] += 1
            continue
        if prompt is None:
            dropped["longer than the target's context"] += 1
        elif options.responses == "log" and not prompt.logged:
            dropped["a logged answer without any token"] += 1
        else:
            first = first or request
            chats += request.messages is not None
            prompts.append(prompt)
    if refused and not (options.traffic.skip_bad and prompts):
        count, firsts = sum(map(len, refused.values())), [each[0] for each in refused.values()]
        many = f"{count} of {len(traffic.requests)} requests cannot be turned into prompts: "
        reasons = "; ".join(error.message for error in firsts)
        raise TrafficError(many * (count > 1) + reasons, hint=firsts[0].hint)
    dropped.update({reason: len(errors) for reason, errors in refused.items()})
    if first is None:
        raise TrafficError(
            f"no request can be replayed ({_listed(dropped)})",
            hint="let the target answer itself: `--responses target`"
            if options.responses == "log"
            else f"the target reads {context} tokens: take shorter prompts, or another target",
        )
    summary = traffic.summary
    shown = options.show_prompt or options.traffic.source.startswith("suite:")
    rendered = text.shown(prompts[0].tokens) if shown else None
    return tuple(prompts), msgspec.structs.replace(
        summary,
        source=Path(options.traffic.source).name,
        requests=len(prompts),
        left_out={**summary.left_out, **dropped},
        assumed=summary.assumed if options.temperature is None else {},
        constrained=sum(prompt.request.constraint is not None for prompt in prompts),
        chats=chats,
        first=first_request(first, rendered, shown=shown),
    )


def counts_of(prompts: Sequence[Prompt]) -> Mapping[int, float]:
    """How often each of the target's tokens occurs in logged answers, or else in the prompts."""
    return Counter(chain.from_iterable(p.logged or p.tokens for p in prompts))


def traffic_facts(traffic: Traffic, summary: TrafficSummary) -> TrafficFacts:
    """What the run folder keeps of the traffic."""
    bad = {"bad row": traffic.bad} if traffic.bad else {}
    return TrafficFacts(
        form=summary.form,
        rows=summary.rows,
        requests=summary.requests,
        merged=summary.merged,
        dropped={**bad, **summary.left_out},
        revision=traffic.revision,
        constrained=summary.constrained,
        chats=summary.chats,
    )


def _listed(reasons: Mapping[str, int]) -> str:
    return "; ".join(f"{reason}: {count}" for reason, count in reasons.items())


@dataclass
class CheckedDrafts:
    """The drafts that can be measured, with sources and caveats by name; and the refused ones."""

    sources: dict[str, ModelSource] = field(default_factory=dict)
    caveats: dict[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: dict[Candidate, None] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    refusals: list[DraftbenchError] = field(default_factory=list)

    @property
    def no_draft(self) -> DraftbenchError:
        """Why there is no draft to measure."""
        hint = "give --drafts a smaller model of the target's family, or `ngram` (no model)"
        return next(iter(self.refusals), UsageError("no draft is given", hint=hint))


def check_drafts(
    options: SweepOptions,
    specs: Mapping[str, str],
    pairing: Pairing,
    refused_levels: Mapping[str, ModelError] = MappingProxyType({}),
) -> CheckedDrafts:
    """Find out which drafts can be measured at which levels, before any weights load; a checkpoint
    that is stored at a level has no other.
    """
    checked = CheckedDrafts()
    checks = SERVED if pairing.serving else WITH_WEIGHTS
    for name, spec in specs.items():
        # What holds for the part with weights, which comes before, holds for the whole.
        if parts := kind_of(name).parts(name):
            last = parts[-1]
            if last in checked.sources:
                checked.sources[name] = checked.sources[last]
                checked.caveats[name] = checked.caveats[last]
            levels = [each.quant for each in checked.candidates if each.draft == last]
            checked.candidates |= dict.fromkeys(Candidate(draft=name, quant=q) for q in levels)
            checked.failures += [
                msgspec.structs.replace(each, candidate=Candidate(draft=name, quant=of.quant))
                for each in checked.failures
                if (of := each.candidate) is not None and of.draft == last
            ]
            continue
        method, model = parsed(spec)
        if spec == SELF or method not in checks:
            checked.candidates[Candidate(draft=name)] = None
            continue
        # The checkpoint of layers that the target carries is the target's own.
        source, quants = ModelSource(model or options.target, options.trust), options.quants
        try:
            caveats = checks[method].check(source, pairing)
            if caveats is None:
                checked.candidates[Candidate(draft=name)] = None
                continue
            if not kind_of(spec).reads_states and (stored := stored_level(source)):
                quants = (stored,)
        # A checkpoint's own code may raise anything; the other drafts are still measured.
        except Exception as error:
            checked.refusals.append(known_error(f"the draft {name}", error))
            stage = "pair" if isinstance(error, PairError) else "load"
            refused = (Candidate(draft=name, quant=level) for level in quants)
            checked.failures += [failure(candidate, error, stage) for candidate in refused]
            continue
        checked.sources[name], checked.caveats[name] = source, caveats
        for level in quants:
            candidate, obstacle = Candidate(draft=name, quant=level), refused_levels.get(level)
            if obstacle is None:
                checked.candidates[candidate] = None
            else:
                checked.failures.append(failure(candidate, obstacle, "load"))
    return checked


def question_of(options: SweepOptions, traffic: Traffic, build: Build) -> Question:
    """The question of a run, from the options of the same names; an engine adds more."""
    chosen = "".join(request.id for request in traffic.requests)
    resolved = {
        "target": portable(options.target),
        "dtype": str(build.dtype).removeprefix("torch."),
        "device": build.device,
        "drafts": tuple(map(portable, options.drafts)),
        "lookup_longest": options.lookup.longest,
        "lookup_shortest": options.lookup.shortest,
        "concurrency": options.concurrency,
        "traffic": Path(options.traffic.source).name,
        "traffic_digest": keyed_hash(options.traffic.key, (traffic.digest + chosen).encode()),
    }
    named = vars(options).keys() & Question.__struct_fields__
    return Question(**{name: getattr(options, name) for name in named} | resolved)
