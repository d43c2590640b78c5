"""Records of a run that no sweep made: a field with a default is changed by name."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from draftbench.acceptance.definitions import ACCEPTED_PER_DRAFTED, Figure, Sample, quotient
from draftbench.drafts.stack.replay import StackReplay
from draftbench.engines.pair_rules import Overlap, PairFacts, TokenizerFacts, Vocabulary
from draftbench.models.check_result import ModelSheet
from draftbench.planner.recommendation import Evaluation, Recommendation
from draftbench.records import (
    AnyObservation,
    Candidate,
    Confidences,
    CostPoint,
    Decode,
    DraftingMode,
    DraftLength,
    EngineFacts,
    Environment,
    Failure,
    LookupReplay,
    ModelFacts,
    Replay,
    RoundCounts,
    Sampling,
    Served,
    Trajectory,
)
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.manifest import SCHEMA_VERSION, Effort, Manifest, Question, TrafficFacts
from draftbench.run_folder.run import Run, run_of
from draftbench.traffic import TrafficQuery

ROOT = Path(__file__).parents[1]
# The first twelve requests of suite:completion.
FEW = Path(__file__).parent / "few.jsonl"
REFERENCE = ROOT / "results" / "reference"
EMBEDDED = ROOT / "draftbench" / "embedded"
SMALL, BIG = Candidate(draft="small"), Candidate(draft="big")


def named(draft: str | None, quant: str = "none") -> Candidate | None:
    """A draft at a level; None for the target."""
    return None if draft is None else Candidate(draft=draft, quant=quant)


QUESTION = Question(
    target="target",
    target_quant="none",
    dtype="float32",
    device="cpu",
    drafts=("small",),
    quants=("none",),
    simulate_quant=False,
    ks=(1, 2),
    mode=DraftingMode.GREEDY,
    lookup_longest=4,
    lookup_shortest=2,
    traffic="prod.jsonl",
    traffic_digest="d",
    responses="target",
    samples=1,
    max_new_tokens=None,
    temperature=None,
)
ENVIRONMENT = Environment(
    platform="Linux",
    processor="cpu",
    cores=2,
    threads=1,
    accelerator=None,
    python="3.12.0",
    packages={"torch": "2.12"},
)
TRAFFIC = TrafficFacts(form="prompt", rows=1, requests=1, merged=0, dropped={})
MANIFEST = Manifest(
    schema_version=SCHEMA_VERSION,
    draftbench="0.1.0",
    created="2026-01-01T00:00:00Z",
    command="draftbench sweep",
    key_id="key",
    question=QUESTION,
    traffic=TRAFFIC,
    environment=ENVIRONMENT,
    effort=Effort(measure="best", measure_requests=30, controls=True),
    specs={"small": "small"},
    run="run",
)


def manifest(**changes: Any) -> Manifest:
    """A manifest; a field of its own or of one of its parts is changed by name.

    Raises:
        TypeError: no part has a field of this name.
    """
    parts = {"question": QUESTION, "traffic": TRAFFIC, "environment": ENVIRONMENT}
    made: dict[str, Any] = {}
    for name, value in changes.items():
        owner = next((part for part in parts if hasattr(parts[part], name)), None)
        if owner is not None:
            parts[owner] = msgspec.structs.replace(parts[owner], **{name: value})
        else:
            made[name] = value
    return msgspec.structs.replace(MANIFEST, **parts, **made)


def trajectory(request: str = "r", length: int = 9, **changes: Any) -> Trajectory:
    """A response of `length` tokens without near ties, at temperature 0."""
    fields: dict[str, Any] = {
        "sample": 0,
        "segment": None,
        "weight": 1.0,
        "sampling": Sampling(),
        "prompt_tokens": 10,
        "output_tokens": length,
        "limit": length,
        "finish": "length",
        "origin": "target",
        "margins": (5.0,) * length,
        "argmax": (1,) * length,
        "digest": "",
    }
    return Trajectory(request=request, **fields | changes)


def replay(accept: Sequence[float], candidate: Candidate = SMALL, **changes: Any) -> Replay:
    """A replay of a candidate that accepts so at each position: greedy, if each is 0 or 1."""
    greedy = {0.0, 1.0}.issuperset(accept)
    fields: dict[str, Any] = {
        "request": "r",
        "sample": 0,
        "mode": DraftingMode.GREEDY if greedy else DraftingMode.SAMPLED,
        "draftable": len(accept),
        "confidence": (0.9,) * len(accept),
        "margin": (5.0,) * len(accept),
        "rank": (0,) * len(accept),
    }
    return Replay(candidate=candidate, accept=tuple(accept), **fields | changes)


def lookup(
    proposed: tuple[int, ...], matched: tuple[int, ...], window: int = 4, request: str = "r"
) -> LookupReplay:
    """A replay of prompt lookup."""
    return LookupReplay(
        request=request,
        sample=0,
        candidate=Candidate(draft="ngram"),
        window=window,
        proposed=proposed,
        matched=matched,
    )


def replayed(
    accept: Sequence[float], request: str = "r", **changes: Any
) -> tuple[Trajectory, Replay]:
    """A response one token longer than `accept` and a replay of it; a field of either by name."""
    of_response = {name: changes[name] for name in Trajectory.__struct_fields__ if name in changes}
    of_replay = {name: changes[name] for name in Replay.__struct_fields__ if name in changes}
    response = trajectory(request, len(accept) + 1, **of_response)
    return response, replay(accept, **{"request": request} | of_replay)


def decode(candidate: Candidate, k: int, seconds: float, **changes: Any) -> Decode:
    """Decoding of a response in a candidate's block; k = 0 is the baseline."""
    fields: dict[str, Any] = {
        "request": "r",
        "sample": 0,
        "candidate": candidate if k else None,
        "mode": DraftingMode.GREEDY,
        "repeat": 0,
        "proposed": (),
        "accepted": (),
        "cut": (),
        "draft_seconds": (),
        "verify_seconds": (),
        "prefill_seconds": 0.1,
        "draft_prefill_seconds": None,
        "output_tokens": 5,
        "digest": "",
        "first_difference": None,
        "tie": None,
        "block": str(candidate),
        "concurrency": 1,
        "process": "p1",
    }
    return Decode(k=k, decode_seconds=seconds, **fields | changes)


def lengths(*ks: int) -> tuple[DraftLength, ...]:
    """Draft lengths without a rule to stop by."""
    return tuple(map(DraftLength, ks))


def served(candidate: Candidate | None, k: int, *arrivals: float, **changes: Any) -> Served:
    """An engine's answer, one token a piece of the stream unless `chunks` says otherwise; what of
    `changes` are counts of rounds becomes those.
    """
    fields: dict[str, Any] = {
        "request": "r",
        "sample": 0,
        "mode": DraftingMode.GREEDY,
        "repeat": 0,
        "server": f"s{k}",
        "process": "p1",
        "load": "closed",
        "concurrency": 1,
        "sent": 0.0,
        "chunks": (1,) * len(arrivals),
        "prompt_tokens": 8,
        "cached_tokens": 0,
        "finish": "length",
        "digest": "",
    }
    told = {name: changes.pop(name) for name in RoundCounts.__struct_fields__ if name in changes}
    fields |= {"counts": RoundCounts(**told) if told else None} | changes
    fields.setdefault("output_tokens", sum(fields["chunks"]))
    return Served(candidate=candidate, k=k, arrivals=arrivals, **fields)


def engine_facts(candidate: Candidate | None, k: int, **changes: Any) -> EngineFacts:
    """What a vLLM that draftbench started told of itself."""
    fields: dict[str, Any] = {
        "server": f"s{k}",
        "process": "p1",
        "engine": "vllm",
        "version": "0.1",
        "model": "big",
        "started": True,
        "command": None,
        "settings": {},
        "context_length": None,
        "prefix_cache": None,
        "ready_seconds": None,
    }
    return EngineFacts(candidate=candidate, k=k, **fields | changes)


def step(candidate: Candidate | None, *seconds: float, **changes: Any) -> CostPoint:
    """Timed steps of a draft, or of the target (None)."""
    fields: dict[str, Any] = {
        "what": "step",
        "concurrency": 1,
        "new_tokens": 1,
        "context": 64,
        "block": str(candidate),
        "runner": "lean",
        "process": "p1",
    }
    return CostPoint(candidate=candidate, seconds=seconds, **fields | changes)


def facts(candidate: Candidate | None, **changes: Any) -> ModelFacts:
    """Facts of a loaded draft, or of the target (None)."""
    fields: dict[str, Any] = {
        "quant": candidate.quant if candidate else "none",
        "dtype": "float32",
        "parameters": 1,
        "weight_bytes": 1,
        "quantized_share": 0.0,
        "kv_bytes_per_token": 1,
        "context_length": 1000,
        "vocab_size": 100,
        "runner": "lean",
        "fingerprint": "",
        "caveats": (),
        "has_kernel": True,
        "replay_disagreement": None,
    }
    return ModelFacts(candidate=candidate, **fields | changes)


def ratio(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike = 10.0,
    names: str | None = None,
    figure: Figure = ACCEPTED_PER_DRAFTED,
) -> Sample:
    """A quotient of sums over requests of weight 1."""
    over = np.array(numerator, float)
    addends = np.stack([over, np.broadcast_to(np.array(denominator, float), over.shape)], axis=1)
    requests = tuple(names or map(str, range(len(addends))))
    return Sample(figure, requests, np.ones(len(requests)), addends, quotient)


def failure(draft: str, reason: str, quant: str = "none", **changes: Any) -> Failure:
    """A failure of a draft at a level."""
    fields = {"candidate": named(draft, quant), "stage": "measure", "reason": reason, "hint": "h"}
    return Failure(**fields | changes)


def private_text(request: str) -> PrivateText:
    """Two tokens of a response to three."""
    return PrivateText(request=request, sample=0, prompt=(1, 2, 3), tokens=(4, 5), log_p=())


def query(source: Path | str, **changes: Any) -> TrafficQuery:
    """All requests of a source."""
    return TrafficQuery(str(source), **{"key": b"key"} | changes)


def sheet(name: str = "big", size: int = 20_000_000, **changes: Any) -> ModelSheet:
    """What is counted of a model whose weights take so many bytes."""
    counted: dict[str, Any] = {
        "family": "llama",
        "layers": 2,
        "width": 64,
        "dtype": "bfloat16",
        "parameters": size // 2,
        "active_parameters": size // 2,
        "weight_bytes": {"none": size, "int4": size // 4},
        "read_bytes": {"none": size, "int4": size // 4},
        "kv_bytes_per_token": 1000,
        "context": 4096,
    }
    return ModelSheet(name=name, **counted | changes)


TOKENIZER = TokenizerFacts(
    kind="BPE",
    special={"bos_token": "<s>", "eos_token": "</s>"},
    ids={"bos_token": 1, "eos_token": 2},
    adds_bos=True,
    adds_eos=False,
    has_template=True,
)


def pair_facts(**changes: Any) -> PairFacts:
    """A pair with the same thousand words; a field of it, of its vocabularies or of the draft's
    tokenizer is changed by name, `target_tokenizer` by a mapping.
    """
    firsts = [name for name in Vocabulary.__struct_fields__ if name.startswith("first_")]
    counts = ("target_rows", "draft_rows", "target_tokens", "draft_tokens", "same")
    words: dict[str, Any] = {**dict.fromkeys(counts, 1000), **dict.fromkeys(firsts)}
    words |= {"shared": 1000, "all_tokens": Overlap(1.0, 1.0), "traffic": None}
    pair: dict[str, Any] = {"target": "t", "draft": "d", "template_difference": ()}
    pair |= {"target_context": 4096, "draft_context": 4096, "target_recurrent": False}
    side = {name: changes.pop(name) for name in list(changes) if hasattr(TOKENIZER, name)}
    words = {name: changes.pop(name, value) for name, value in words.items()}
    return PairFacts(
        vocabulary=Vocabulary(**words),
        target_tokenizer=msgspec.structs.replace(TOKENIZER, **changes.pop("target_tokenizer", {})),
        draft_tokenizer=msgspec.structs.replace(TOKENIZER, **side),
        **pair | changes,
    )


def with_fields(file: Path, **fields: Any) -> Path:
    """A file of JSON in which some fields are replaced."""
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return file


def stranger(folder: Path) -> Path:
    """The embedded draft with a tokenizer of which the target has no word but the end."""
    path = Path(shutil.copytree(EMBEDDED / "draft", folder / "stranger"))
    words = {f"word {i}": i for i in range(1, 2048)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "word 1"}
    with_fields(path / "tokenizer.json", model=model)
    return path


INT4 = Candidate(draft="small", quant="int4")
SELF_DRAFT, NGRAM = Candidate(draft="self"), Candidate(draft="ngram")
# Seconds of a pass by its tokens.
TARGET, CHEAP = {1: 1.0, 2: 1.1, 3: 1.2}, {1: 0.1, 2: 0.15}
DRAFT = {1: 0.1, 2: 0.1}
# Up to 16 tokens of all rows a pass takes 1 s, then as much longer as it has more.
STEPS = {rows: {n: max(1.0, rows * n / 16) for n in (1, 2, 3)} for rows in (1, 8, 32)}
ALL, NONE = [1.0] * 8, [0.0] * 8
# Of a decoding run that wrote another text from the first drafted token on, so that its rounds need
# not be those of the replay.
OTHER_TEXT = {"first_difference": 1, "tie": True}


class Scene:
    """Collects records of a run: a test states the few numbers it is about. Contexts 0 … 1000 are
    timed unless a test says otherwise.
    """

    def __init__(self) -> None:
        self.records: list[AnyObservation] = []

    def request(self, name: str, length: int = 9, **changes: Any) -> None:
        """A greedy response of `length` tokens that ends by its limit."""
        self.records.append(trajectory(name, length, **changes))

    def replay(
        self, name: str, accept: Sequence[float], candidate: Candidate = SMALL, **changes: Any
    ) -> None:
        """What a model draft is accepted with at the positions 1 … L-1."""
        self.records.append(replay(tuple(accept), candidate, request=name, **changes))

    def lookup(self, name: str, proposed: Sequence[int], matched: Sequence[int]) -> None:
        """What prompt lookup finds at the starts 1 … L-1."""
        self.records.append(lookup(tuple(proposed), tuple(matched), window=8, request=name))

    def requests(self, count: int, accept: Sequence[float], *candidates: Candidate) -> None:
        """`count` equal requests, made where missing, with a replay of each candidate."""
        known = {r.request for r in self.records if isinstance(r, Trajectory)}
        for name in (f"r{i}" for i in range(count)):
            if name not in known:
                self.request(name, len(accept) + 1)
            for candidate in candidates or (SMALL,):
                self.replay(name, accept, candidate)

    def times(
        self,
        target: Mapping[int, float | Sequence[float]],
        draft: Mapping[int, float | Sequence[float]] | None = None,
        candidate: Candidate = SMALL,
        **changes: Any,
    ) -> None:
        """Step times by tokens of the target and the draft in the candidate's block."""
        for name, steps in ((None, target), (candidate.draft, draft or {})):
            for tokens, seconds in steps.items():
                self.cost(name, candidate, tokens, seconds, **changes)

    def timed(self, count: int, draft: Mapping[int, float] = CHEAP) -> None:
        """`count` requests whose every token is accepted, by a draft that was timed."""
        self.requests(count, ALL)
        self.times(TARGET, draft)

    def cost(
        self,
        draft: str | None,
        candidate: Candidate,
        tokens: int,
        seconds: float | Sequence[float],
        contexts: Sequence[int] = (0, 1000),
        **changes: Any,
    ) -> None:
        """One timed size, the same at all contexts."""
        samples = (seconds,) * 3 if isinstance(seconds, (int, float)) else tuple(seconds)
        fields: dict[str, Any] = {"new_tokens": tokens, "block": str(candidate), "runner": "cpu"}
        self.records += [
            step(named(draft, candidate.quant), *samples, context=context, **fields | changes)
            for context in contexts
        ]

    def prefills(self, target: float, draft: float, candidate: Candidate = SMALL) -> None:
        """Seconds that both models take for a prompt."""
        for name, seconds in ((None, target), (candidate.draft, draft)):
            self.cost(name, candidate, 10, seconds, contexts=(0,), what="prefill")

    def decode(
        self, name: str, k: int, seconds: float, candidate: Candidate = SMALL, **changes: Any
    ) -> None:
        """A run that took `seconds` and gave 9 tokens: 8 plain steps, or rounds of k whose draft is
        always right; or as many such rounds as `verify_seconds` tells.
        """
        accepted = tuple(min(k, 8 - at - 1) for at in range(0, 8, k + 1))
        if "verify_seconds" in changes:
            accepted = changes.get("accepted", (k,) * len(changes["verify_seconds"]))
        rounds = len(accepted)
        fields: dict[str, Any] = {
            "request": name,
            "proposed": accepted,
            "accepted": accepted,
            "cut": (0,) * rounds,
            "draft_seconds": (0.0,) * rounds,
            "verify_seconds": (seconds / rounds,) * rounds,
            "prefill_seconds": 1.0,
            "draft_prefill_seconds": 1.0 if k else None,
            "output_tokens": 1 + sum(accepted) + rounds,
        }
        self.records.append(decode(candidate, k, seconds, **fields | changes))

    def decodes(
        self,
        count: int,
        k: int,
        seconds: float,
        candidate: Candidate = SMALL,
        *,
        plain: float = 8.0,
        process: str = "p1",
        **changes: Any,
    ) -> None:
        """The first `count` requests decoded without speculation in `plain` seconds, and at k."""
        for name in (f"r{i}" for i in range(count)):
            self.decode(name, 0, plain, candidate, process=process)
            self.decode(name, k, seconds, candidate, process=process, **changes)

    def batch_run(
        self, name: str, k: int, accepted: Sequence[int], seconds: Sequence[float], **changes: Any
    ) -> None:
        """A row of a batch of two, always both active: every round proposes k and takes `seconds`
        for both rows.
        """
        rounds = len(accepted)
        fields: dict[str, Any] = {
            "proposed": (k,) * rounds,
            "accepted": tuple(accepted),
            "cut": (0,) * rounds,
            "draft_seconds": (0.0,) * rounds,
            "verify_seconds": tuple(seconds),
            "concurrency": 2,
            "active": (2,) * rounds,
        }
        self.decode(name, k, sum(seconds), **fields | changes)

    def facts(self, draft: str | None, quant: str = "none", **changes: Any) -> None:
        """A model of 100 bytes and one byte of cache per token."""
        fields: dict[str, Any] = {"parameters": 25, "weight_bytes": 100, "replay_disagreement": 0.0}
        self.records.append(facts(named(draft, quant), quant=quant, **fields | changes))

    def failure(self, draft: str, reason: str) -> None:
        """A candidate that could not be measured."""
        self.records.append(failure(draft, reason))

    def observed(self, *ks: int, **changes: Any) -> Run:
        """All of it as a run over the draft lengths `ks`; `changes` are of the manifest."""
        return run_of(manifest(ks=ks, **changes), self.records)


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def evaluation(found: Recommendation, draft: str = "small", k: int | None = None) -> Evaluation:
    """The figures of a draft at one k, or at its only one."""
    (one,) = (e for e in found.evaluations if e.draft == draft and k in (None, e.k))
    return one


def says(found: Recommendation, *words: str) -> bool:
    """Whether some caveat has all of the words."""
    return any(all(word in caveat.text for word in words) for caveat in found.caveats)


def rounds_of_stack(record: StackReplay, response: Trajectory, k: int) -> Iterator[tuple[int, int]]:
    """(proposed, accepted) of the rounds that a stack's replay says, one after the other."""
    at = 1
    while at < response.output_tokens:
        room, part = min(k, response.limit - at - 1), record.drafting_at(at)
        if isinstance(part, Replay):
            accepts = [*part.accept[at - 1 : at - 1 + room], 0]
            proposed, matched = room, accepts.index(0)
        else:
            proposed, matched = part.proposed[at - 1], part.matched[at - 1]
        proposed = min(proposed, room)
        accepted = min(matched, proposed, response.output_tokens - at)
        yield proposed, accepted
        at += accepted + 1


# Draft lengths, and seconds of passes, of the runs below.
TELLING_KS = (1, 2, 3, 4, 6, 8)
TELLING_TARGET = {n: 1 + 0.05 * (n - 1) for n in range(1, 10)}
TELLING_DRAFT = {1: 0.15, 2: 0.15}


def telling_pairs(
    count: int, tells: bool = True, seed: int = 0, length: int = 60
) -> tuple[tuple[Trajectory, Replay], ...]:
    """Responses with replays of a draft that is right with a chance that its confidence `tells`, or
    not; of what it drafts after a wrong token it is rarely sure.
    """
    generator, found = np.random.default_rng(seed), []
    for name in (f"r{at}" for at in range(count)):
        chance = generator.beta(2.0, 1.0, length - 1)
        right = (generator.random(length - 1) < chance).astype(float)
        told = chance if tells else generator.permutation(chance)
        confidence = tuple(np.floor(told * 1000) / 1000)
        after = [0.5, 0.3, 0.05]
        runs = int((right == 0).sum()) + 1
        flat = tuple(after * runs)
        record = replay(
            right,
            request=name,
            draftable=length,
            confidence=confidence,
            confidence_of_ten=confidence,
            off_path=Confidences(lengths=(len(after),) * runs, of_all=flat, of_ten=flat),
        )
        found.append((trajectory(name, length), record))
    return tuple(found)


def telling_run(count: int, tells: bool = True) -> Run:
    """A run of such responses, replayed and timed."""
    scene = Scene()
    scene.records += chain.from_iterable(telling_pairs(count, tells))
    scene.times(TELLING_TARGET, TELLING_DRAFT)
    return scene.observed(*TELLING_KS, stop=("none", "confidence"))
