"""vLLM: the JSON of `--speculative-config`. k is its `num_speculative_tokens`."""

from __future__ import annotations

import json
import shlex

from draftbench.errors import UsageError
from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import Version, WriterResult, other_lookup, too_old
from draftbench.models.drafting import vllm_fields
from draftbench.records import DraftingMode

# The first version that knows all fields written here, and lets engines with a schedule run in
# parallel, according to vLLM's wheels on PyPI.
_OLDEST = (0, 26)
# From these on, draft models and n-grams run on vLLM's second runner by default.
_DRAFT_RUNNER, _NGRAM_RUNNER = (0, 31), (0, 32)


def write(plan: ServePlan, version: Version) -> WriterResult:
    """The configuration for one version.

    Raises:
        UsageError: this version cannot draft like this.
    """
    if version < _OLDEST:
        raise too_old("vLLM", "0.26", "configuration that draftbench knows")
    words = ["vllm", "serve", plan.target]
    how = plan.speculation
    if plan.target_revision:
        words += ["--revision", plan.target_revision]
    to_do: list[str] = []
    fields = vllm_fields(plan.speculation_at(plan.longest))
    if plan.schedule:
        fields["num_speculative_tokens_per_batch_size"] = [list(step) for step in plan.schedule]
        if plan.draft and not plan.translated and version >= _DRAFT_RUNNER:
            to_do.append(
                "set VLLM_USE_V2_MODEL_RUNNER=0: vLLM's default runner (0.31 to 0.33) drafts "
                f"{plan.longest} tokens at every load and verifies only the schedule's"
            )
    if plan.survival:
        fields["rejection_sample_method"] = "synthetic"
        fields["synthetic_acceptance_rates"] = list(plan.survival)
    mode = None
    if how.method == "ngram" and version < _NGRAM_RUNNER:
        to_do += other_lookup(plan, "vllm", "takes the first match in the prompt")
    elif how.method == "draft-model":
        greedy = how.mode is DraftingMode.GREEDY
        if plan.translated and not greedy:
            raise UsageError(
                "vLLM refuses this pair: its vocabularies differ",
                hint="it translates tokens of greedy drafts; sweep with --mode greedy",
            )
        if not plan.translated and version >= _DRAFT_RUNNER:
            to_do.append(
                "measure the speed there: vLLM's default runner (0.31 to 0.33) runs a draft model "
                "without CUDA graphs, so that a small draft costs more than was measured here"
            )
        mode = DraftingMode.GREEDY if greedy else DraftingMode.SAMPLED_TEMPERATURE_ONLY
        fields.setdefault("draft_sample_method", "greedy")
    command = f'{shlex.join(words)} --speculative-config "$(cat FILE)"'
    return WriterResult(json.dumps(fields), mode, bool(plan.schedule), command, to_do)
