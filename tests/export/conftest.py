"""Settings as engines get them, and a small run folder made by hand."""

from __future__ import annotations

import pytest
from scenes import manifest, named

from draftbench.export.setting import Setting
from draftbench.records import (
    Candidate,
    CostPoint,
    DraftingMode,
    ModelFacts,
    Replay,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.folder import RunFolder


@pytest.fixture
def setting():
    """A greedy Qwen pair at k = 4; changes by keyword."""

    def make(**changes):
        fields = {
            "target": "Qwen/Qwen2.5-1.5B",
            "target_quant": "none",
            "draft": "Qwen/Qwen2.5-0.5B",
            "quant": "none",
            "k": 4,
            "mode": DraftingMode.GREEDY,
            "sampled": False,
            "lookup": (2, 5),
            "vocabularies": (151936, 151936),
            "on_gpu": False,
        }
        return Setting(**fields | changes)

    return make


def _trajectory(name):
    fields = {"segment": None, "weight": 1.0, "sampling": Sampling(), "digest": "", "sample": 0}
    facts = {"prompt_tokens": 10, "output_tokens": 9, "limit": 9, "finish": "length"}
    seen = {"origin": "target", "margins": (5.0,) * 9, "argmax": (1,) * 9}
    return Trajectory(request=name, **fields, **facts, **seen)


def _replay(name, draft, accept):
    return Replay(
        request=name,
        sample=0,
        candidate=Candidate(draft=draft),
        mode=DraftingMode.GREEDY,
        draftable=8,
        accept=(accept,) * 8,
        confidence=(0.9,) * 8,
        margin=(5.0,) * 8,
        rank=(0,) * 8,
    )


def _costs(draft, seconds):
    for name, tokens, time in (
        *((None, n, 1.0) for n in (1, 2, 3)),
        *((draft, n, seconds) for n in (1, 2)),
    ):
        own = {"what": "step", "batch": 1, "new_tokens": tokens, "process": "p"}
        for context in (0, 1000):
            yield CostPoint(
                candidate=named(name),
                context=context,
                seconds=(time,) * 3,
                block=draft,
                runner="cpu",
                **own,
            )


def _facts(draft, vocabulary):
    sizes = {"parameters": 1, "weight_bytes": 1, "kv_bytes_per_token": 1, "context_length": 1000}
    return ModelFacts(
        candidate=named(draft),
        quant="none",
        dtype="float32",
        quantized_share=0.0,
        vocab_size=vocabulary,
        runner="cpu",
        fingerprint="",
        caveats=(),
        has_kernel=True,
        replay_disagreement=0.0,
        **sizes,
    )


@pytest.fixture
def make_run(tmp_path):
    """Thirty-two requests with one draft that is always right, or never; its step costs a tenth.
    `others` are more drafts that are always right, each with the cost of its step.
    """

    def make(
        *,
        accept=1.0,
        draft="small",
        drafts=("org/small",),
        timed=True,
        sizes=(100, 100),
        others=(),
    ):
        folder = RunFolder.create(tmp_path / "run", manifest(target="org/target", drafts=drafts))
        names = [f"r{i}" for i in range(32)]
        with folder.writer() as writer:
            writer.append(map(_trajectory, names))
            writer.append([_facts(None, sizes[0]), _facts(draft, sizes[1])])
            for each, rate, cost in ((draft, accept, 0.1), *((o, 1.0, c) for o, c in others)):
                writer.append(_replay(name, each, rate) for name in names)
                writer.append(_costs(each, cost) if timed else ())
        return folder.path

    return make
