"""vLLM: the JSON of `--speculative-config`. k is its `num_speculative_tokens`."""

from __future__ import annotations

import json
import shlex

from draftbench.errors import UsageError
from draftbench.export.setting import Setting
from draftbench.export.written import Version, Written, match_taken, too_old
from draftbench.models.drafting import vllm_fields
from draftbench.models.engine_rules import ENGINE_RULES
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
    notes, to_do = [ENGINE_RULES["vllm"].form], []
    translated = setting.method == "draft-model" and setting.sizes is not None
    fields = vllm_fields(setting.drafting_at(setting.longest), translated=translated)
    if setting.schedule:
        fields["num_speculative_tokens_per_batch_size"] = [list(step) for step in setting.schedule]
        notes += _of_schedule(setting, version)
        if setting.draft and not setting.sizes and version >= _DRAFT_RUNNER:
            to_do.append(
                "set VLLM_USE_V2_MODEL_RUNNER=0: vLLM's default runner (0.31 to 0.33) drafts "
                f"{setting.longest} tokens at every load and verifies only the schedule's"
            )
    if setting.survival:
        fields["rejection_sample_method"] = "synthetic"
        fields["synthetic_acceptance_rates"] = list(setting.survival)
    mode = None
    if setting.method == "ngram":
        notes.append(_match(setting, version))
    elif setting.method == "draft-model":
        mode = _draft_model(setting, version, notes)
        fields.setdefault("draft_sample_method", "greedy")
    command = f'{shlex.join(words)} --speculative-config "$(cat FILE)"'
    return Written(json.dumps(fields), notes, mode, bool(setting.schedule), command, to_do)


def _draft_model(setting: Setting, version: Version, notes: list[str]) -> DraftingMode:
    """The mode in which vLLM will draft with a model, with notes on how it does."""
    greedy = setting.mode is DraftingMode.GREEDY
    if setting.sizes:
        if not greedy or version < _VOCABULARIES:
            raise UsageError(
                f"vLLM refuses this pair: its vocabularies have {setting.sizes} entries",
                hint="from 0.25 it maps them where the draft is greedy; sweep with --mode greedy",
            )
        notes.append(
            f"the vocabularies have {setting.sizes} entries: vLLM drafts only tokens that are in "
            "both, and only on its older runner"
        )
    elif version >= _DRAFT_RUNNER:
        notes.append(
            "vLLM's default runner (0.31 to 0.33) runs a draft model without CUDA graphs, so that "
            "a small draft costs more than was measured here"
        )
    return DraftingMode.GREEDY if greedy else DraftingMode.SAMPLED_TEMPERATURE_ONLY


def _match(setting: Setting, version: Version) -> str:
    """A note on which match prompt lookup takes, which depends on the runner."""
    if version < _NGRAM_RUNNER:
        return f"vLLM before 0.32 {match_taken(first=True, measured_first=setting.first_match)}"
    taken = match_taken(first=False, measured_first=setting.first_match)
    return (
        f"vLLM's default runner {taken}; before 0.32, and with VLLM_USE_V2_MODEL_RUNNER=0, it is "
        "the first"
    )


def _of_schedule(setting: Setting, version: Version) -> list[str]:
    """Notes on how vLLM treats draft lengths by load."""
    parallel = "under data parallelism vLLM ignores the schedule: `num_speculative_tokens` holds"
    if version < _PARALLEL:
        parallel = "under data parallelism vLLM before 0.26 may hang with a schedule"
    notes = [
        f"beyond {setting.schedule[-1][1]} requests vLLM keeps the last draft length",
        parallel,
    ]
    if any(k == 0 for _, _, k in setting.schedule):
        notes.append(
            "where the schedule drafts nothing, measure vLLM with and without it: 0.27 was slower "
            "with it by 7% at 2 requests and 22% at 189 (gemma-4-31B, older runner; pull request "
            "52087)"
        )
    return notes
