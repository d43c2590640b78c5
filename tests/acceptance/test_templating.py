"""A chat template is suspected where prompts are chats and the draft may have learned another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scenes import manifest, named

from draftbench.acceptance.breakdown import TEMPLATE
from draftbench.acceptance.card import acceptance_report
from draftbench.acceptance.templating import template_may_differ
from draftbench.records import Candidate, ModelFacts, Replay, Trajectory
from draftbench.run_folder.run import Run, run_of

SMALL, SELF = Candidate(draft="small"), Candidate(draft="self")


def facts(draft: str | None, template: str | None) -> ModelFacts:
    fields: dict[str, Any] = dict.fromkeys(("parameters", "weight_bytes", "vocab_size"), 1)
    return ModelFacts(
        candidate=named(draft),
        quant="none",
        dtype="float32",
        quantized_share=0.0,
        kv_bytes_per_token=1,
        context_length=100,
        runner="cpu",
        fingerprint="",
        caveats=(),
        has_kernel=True,
        replay_disagreement=None,
        parts={} if template is None else {"chat template": template},
        **fields,
    )


def run(form: str, target: str | None = "a", draft: str | None = "b") -> Run:
    return run_of(manifest(form=form), [facts(None, target), facts("small", draft)])


@pytest.mark.parametrize(
    ("form", "differs"),
    [
        ("prompt", False),
        ("--prompt-field, prompt", False),
        ("messages", True),
        ("messages, prompt", True),
        ("OpenAI request", True),
    ],
)
def test_plain_prompts_have_no_template(form: str, differs: bool) -> None:
    assert template_may_differ(run(form), SMALL) == differs


def test_one_template_of_both_is_none_to_suspect() -> None:
    assert not template_may_differ(run("messages", "a", "a"), SMALL)
    assert not template_may_differ(run("messages"), SELF)
    # Older runs did not keep them.
    assert template_may_differ(run("messages", None, None), SMALL)


@pytest.mark.parametrize(("form", "suspected"), [("prompt", False), ("messages", True)])
def test_low_acceptance_early_in_responses_blames_a_template_only_of_chats(
    trajectory: Callable[..., Trajectory],
    replay: Callable[..., Replay],
    form: str,
    suspected: bool,
) -> None:
    records: list[Any] = [facts(None, "a"), facts("small", "b")]
    for name in "abcde":
        records += [trajectory(name, 7), replay([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], name)]
    report = acceptance_report(run_of(manifest(form=form), records), [SMALL], (1,), 0.02)
    (card,) = report.cards
    assert card.breakdown is not None
    reading = str(card.breakdown.reading)
    assert reading.startswith("fewer tokens are accepted early in a response than late")
    assert (TEMPLATE in reading) == suspected
    assert ("template" in reading) == suspected
