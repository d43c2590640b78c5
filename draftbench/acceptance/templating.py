"""A run → whether a chat template can be what a draft stumbles over.

Prompts are rendered by the target's template, and a draft that learned dialogues in another one
reads them worse. Plain prompts are rendered by none.
"""

from __future__ import annotations

from draftbench.records import SELF, Candidate, ModelFacts
from draftbench.run_folder.run import Run

# Forms of traffic whose prompts are texts; an OpenAI request may be either.
PLAIN = frozenset({"prompt", "--prompt-field"})


def template_may_differ(observed: Run, candidate: Candidate) -> bool:
    """Whether some prompts may be chats in a template that the draft did not learn: not where both
    models have the same one.
    """
    if candidate.draft == SELF or PLAIN.issuperset(observed.manifest.traffic.form.split(", ")):
        return False
    ours = _template(observed.facts_of(None))
    return ours is None or ours != _template(observed.facts_of(candidate))


def _template(facts: ModelFacts | None) -> str | None:
    """The hash of a model's template; None in runs that did not keep it."""
    return None if facts is None else facts.parts.get("chat template")
