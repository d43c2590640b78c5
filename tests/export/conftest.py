"""What engines are to serve, and a small run folder made by hand."""

import random

import pytest
import scenes

from draftbench.drafts.speculation import speculation_of
from draftbench.export.serve_plan import ServePlan
from draftbench.records import Candidate, NGramSizes
from draftbench.run_folder.folder import RunFolder


@pytest.fixture
def plan():
    """A greedy Qwen pair at k = 4; changes by keyword, of the plan or of how it drafts. Without
    a draft it looks up n-grams of 5 to 2 tokens.
    """

    def make(draft="Qwen/Qwen2.5-0.5B", **changes):
        drafts = {name: changes.pop(name) for name in ("quant", "mode", "stop") if name in changes}
        speculation = speculation_of(
            draft or "ngram", changes.pop("k", 4), lookup=NGramSizes(5, 2), **drafts
        )
        fields = {
            "target": "Qwen/Qwen2.5-1.5B",
            "target_quant": "none",
            "speculation": speculation,
            "sampled": False,
            "vocabularies": (151936, 151936),
            "on_gpu": False,
        }
        return ServePlan(**fields | changes)

    return make


def _costs(candidate, seconds):
    for side, most, time in ((None, 3, 1.0), (candidate, 2, seconds)):
        for tokens in range(1, most + 1):
            for context in (0, 1000):
                sizes = {"new_tokens": tokens, "context": context, "block": str(candidate)}
                yield scenes.step(side, *[time] * 3, **sizes)


@pytest.fixture
def make_run(tmp_path):
    """Thirty-two requests with one draft that is always right, or never; its step costs `step`.
    `others` are more drafts that are always right, each with the cost of its step. `weights` are
    the bytes of the first draft.
    """

    def make(
        *,
        accept=1.0,
        step=0.1,
        draft="small",
        drafts=("org/small",),
        timed=True,
        sizes=(100, 100),
        others=(),
        weights=1,
        specs=None,
        **question,
    ):
        if specs is None:
            specs = {each.rpartition("/")[2]: each for each in drafts}
        head = scenes.manifest(target="org/target", drafts=drafts, specs=specs, **question)
        folder = RunFolder.create(tmp_path / "run", head)
        names = [f"r{i}" for i in range(32)]
        with folder.writer() as writer:
            writer.append(map(scenes.trajectory, names))
            writer.append([scenes.facts(None, vocab_size=sizes[0])])
            first = Candidate(draft=draft)
            writer.append([scenes.facts(first, vocab_size=sizes[1], weight_bytes=weights)])
            writer.append(scenes.facts(Candidate(draft=name)) for name, _ in others)
            for each, rate, cost in ((draft, accept, step), *((o, 1.0, c) for o, c in others)):
                candidate = Candidate(draft=each)
                drawn = random.Random(0)
                for name in names:
                    accepted = [float(drawn.random() < rate) for _ in range(8)]
                    writer.append([scenes.replay(accepted, candidate, request=name)])
                writer.append(_costs(candidate, cost) if timed else ())
        folder.note_sweep(head, None)
        return folder.path

    return make
