"""transformers' assisted generation, for which `export` writes; it is no server.

- The first round drafts the response's first token too. A draft stops after an end token.
- A draft's confidence is taken after the logits processors, of the token that it proposes: above
  temperature 0 one that was drawn. It is not compared where a draft has no rounds of its own, as
  with prompt lookup and the target's own layers.
- With scikit-learn the threshold moves to the best one of a ROC curve of the tokens so far.
"""

from __future__ import annotations

from dataclasses import replace

from draftbench.drafts.speculation import Speculation
from draftbench.engines.engine import KEEPS_DRAFTING, Engine, ServePlan, Source, Version, Written
from draftbench.engines.pair_rules import UNCHECKED
from draftbench.records import DraftingMode


def generate_arguments(speculation: Speculation) -> str:
    """The arguments of `generate`; to translate between vocabularies it needs both tokenizers."""
    if speculation.method == "mtp":
        return "use_mtp=True"
    if speculation.method == "ngram":
        longest = speculation.lookup.longest
        return f"prompt_lookup_num_tokens={speculation.k}, max_matching_ngram_size={longest}"
    both = ", tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" * speculation.translated
    return f"assistant_model=draft{both}"


def _write(plan: ServePlan, version: Version) -> Written:
    """A Python snippet, the same for every version. k is the draft's `num_assistant_tokens`, kept
    constant; by default it would change from round to round. So would a rule's threshold.
    """
    how = speculation = plan.speculation
    to_do = ["set each request's sampling: the most frequent is written"] if plan.mixed else []
    loading = 'dtype="auto", device_map="cuda"' if plan.on_gpu else 'dtype="auto"'
    target = _from_pretrained(plan.target, plan.target_revision)
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({target})",
        f"target = AutoModelForCausalLM.from_pretrained({target}, {loading})",
    ]
    if how.method == "mtp":
        mode = None
        to_do.append(
            "transformers drafts one token a round by each of the target's own layers, whatever k: "
            "measure it there"
        )
    elif plan.draft is None:
        mode = None
        down = "looks up n-grams down to one token and " * (how.lookup.shortest > 1)
        to_do += TRANSFORMERS.other_lookup(plan, f"{down}takes the first match in the prompt")
    else:
        mode = DraftingMode.SAMPLED
        draft = _from_pretrained(plan.draft, plan.draft_revision)
        threshold = 0.0 if how.stop is None else how.stop.threshold
        if how.stop is not None:
            lines.insert(1, "from transformers.generation import candidate_generator")
        lines += [
            f"draft = AutoModelForCausalLM.from_pretrained({draft}, {loading})",
            f"draft.generation_config.num_assistant_tokens = {how.k}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            f"draft.generation_config.assistant_confidence_threshold = {threshold}",
        ]
        if how.stop is not None:
            lines += [
                "# With scikit-learn the threshold would change from round to round.",
                "candidate_generator.is_sklearn_available = lambda: False",
            ]
            if plan.sampled:
                to_do.append(
                    "measure acceptance there: above temperature 0 transformers stops by the "
                    "probability of the token that was drawn, after temperature, top-k and top-p"
                )
        sizes = set(plan.vocabularies or ())
        speculation = replace(plan.speculation, translated=len(sizes) == 2)
        if plan.other_ids and len(sizes) == 1:
            to_do.append(
                "measure acceptance there: transformers takes vocabularies of one size for the "
                "same, and translates no token"
            )
        if len(sizes) == 2:
            lines.append(f"draft_tokenizer = AutoTokenizer.from_pretrained({draft})")
            if plan.sampling.temperature == 0:
                to_do.append(
                    "measure acceptance there: at temperature 0 transformers encodes the draft's "
                    "text again, and does not translate token by token"
                )
    sampling = plan.sampling
    settings: dict[str, object] = {"do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        settings["temperature"] = sampling.temperature
        settings["top_k"] = sampling.top_k or 0
        settings["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
        settings["min_p"] = sampling.min_p or 0.0
    settings |= {"repetition_penalty": 1.0, "max_new_tokens": plan.limit}
    in_python = ", ".join(f'"{name}": {value!r}' for name, value in settings.items())
    lines += [
        # The checkpoint's generation_config would decide what is not written here.
        f"settings = {{{in_python}}}",
        'inputs = tokenizer("Once upon a time", return_tensors="pt").to(target.device)',
        f"output = target.generate(**inputs, **settings, {generate_arguments(speculation)})",
    ]
    return Written("\n".join(lines), mode, to_do=to_do)


def _from_pretrained(name: str, revision: str | None) -> str:
    """The arguments that load a model; a .gguf file's folder and name are two arguments."""
    folder, _, file = name.rpartition("/")
    if file.endswith(".gguf"):
        return f"{folder or '.'!r}, gguf_file={file!r}"
    return f"{name!r}, revision={revision!r}" if revision else repr(name)


TRANSFORMERS = Engine(
    key="transformers",
    name="transformers",
    methods=("draft-model", "ngram", "mtp"),
    stops=("draft-model",),
    option=lambda how: f"generate({generate_arguments(how)})",
    # Equal vocab_size counts as the same tokenizer, and both tokenizers are then not allowed.
    rules=(
        ("recurrent", "refuses", "it assists no model with {}, as the target has"),
        ("other_size", "with an option", "{} rows: it treats the tokenizers as different"),
        ("other_word", "accepts", f"it compares only sizes; {UNCHECKED}"),
        ("rows", "accepts", "vocab_size is {} in both"),
    ),
    short_context=KEEPS_DRAFTING,
    reads_gguf=True,
    form="written for transformers 5.x; one request at a time, batches are not supported",
    write=_write,
    sources=(
        Source("arguments of generate", "5.23.0 generation/utils.py", "5.23.0"),
        Source("equal vocab_size, recurrent state", "5.23.0 generation/utils.py", "5.23.0"),
        Source("prompt lookup", "5.23.0 generation/candidate_generator.py", "5.23.0"),
        Source("use_mtp", "5.23.0 generation/candidate_generator.py", "5.23.0"),
        Source("the draft's confidence", "5.24.0 generation/stopping_criteria.py", "5.24.0"),
        Source("its threshold moved", "5.24.0 generation/candidate_generator.py", "5.24.0"),
    ),
)
