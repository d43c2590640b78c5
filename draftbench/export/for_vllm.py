"""vLLM: the JSON of `--speculative-config`. k is its `num_speculative_tokens`."""

from __future__ import annotations

import json
import shlex

from draftbench.errors import UsageError
from draftbench.export.setting import Setting
from draftbench.export.written import Version, Written, other_lookup, too_old
from draftbench.models.drafting import vllm_fields
from draftbench.records import DraftingMode

# The first version that knows all fields written here but `use_heterogeneous_vocab`, according to
# vLLM's wheels on PyPI.
_OLDEST = (0, 24)
_VOCABULARIES, _PARALLEL = (0, 25), (0, 26)
# From these on, draft models and n-grams run on vLLM's second runner by default.
_DRAFT_RUNNER, _NGRAM_RUNNER = (0, 31), (0, 32)


def write(setting: Setting, version: Version) -> Written:
    """The configuration for one version.

    Raises:
        UsageError: this version cannot draft so.
    """
    if version < _OLDEST:
        raise too_old("vLLM", "0.24", "configuration that draftbench knows")
    words = ["vllm", "serve", setting.target]
    if setting.target_revision:
        words += ["--revision", setting.target_revision]
    to_do: list[str] = []
    translated = setting.method == "draft-model" and setting.sizes is not None
    fields = vllm_fields(setting.drafting_at(setting.longest), translated=translated)
    if setting.schedule:
        fields["num_speculative_tokens_per_batch_size"] = [list(step) for step in setting.schedule]
        if setting.draft and not setting.sizes and version >= _DRAFT_RUNNER:
            to_do.append(
                "set VLLM_USE_V2_MODEL_RUNNER=0: vLLM's default runner (0.31 to 0.33) drafts "
                f"{setting.longest} tokens at every load and verifies only the schedule's"
            )
        if version < _PARALLEL:
            to_do.append("use no data parallelism: vLLM before 0.26 may hang with a schedule")
        if any(k == 0 for _, _, k in setting.schedule):
            to_do.append(
                "measure vLLM with and without the schedule where it drafts nothing: 0.27 was up "
                "to 22% slower with it (pull request 52087)"
            )
    if setting.survival:
        fields["rejection_sample_method"] = "synthetic"
        fields["synthetic_acceptance_rates"] = list(setting.survival)
    mode = None
    if setting.method == "ngram":
        to_do += other_lookup(setting, "vLLM", first=version < _NGRAM_RUNNER)
    elif setting.method == "draft-model":
        mode = _draft_model(setting, version, to_do)
        fields.setdefault("draft_sample_method", "greedy")
    command = f'{shlex.join(words)} --speculative-config "$(cat FILE)"'
    return Written(json.dumps(fields), mode, bool(setting.schedule), command, to_do)


def _draft_model(setting: Setting, version: Version, to_do: list[str]) -> DraftingMode:
    """The mode in which vLLM will draft with a model, and what to do about how it does."""
    greedy = setting.mode is DraftingMode.GREEDY
    if setting.sizes and (not greedy or version < _VOCABULARIES):
        raise UsageError(
            f"vLLM refuses this pair: its vocabularies have {setting.sizes} entries",
            hint="from 0.25 it maps them where the draft is greedy; sweep with --mode greedy",
        )
    if not setting.sizes and version >= _DRAFT_RUNNER:
        to_do.append(
            "measure the speed there: vLLM's default runner (0.31 to 0.33) runs a draft model "
            "without CUDA graphs, so that a small draft costs more than was measured here"
        )
    return DraftingMode.GREEDY if greedy else DraftingMode.SAMPLED_TEMPERATURE_ONLY
