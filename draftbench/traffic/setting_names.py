"""The names of settings in all APIs: harmless ones, other APIs' names for one, those that cannot be
applied, and marks and media beside them.
"""

from __future__ import annotations

import re
from typing import Any

# fmt: off
# Fields of request bodies that do not change the target's text.
HARMLESS = frozenset({
    "model", "user", "metadata", "store", "stream", "stream_options",
    "logprobs", "top_logprobs", "prompt_logprobs", "echo", "service_tier", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "prediction", "request_id", "priority",
    "cache_salt", "timeout", "return_tokens_as_token_ids", "return_token_ids",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "include_reasoning", "separate_reasoning", "stream_reasoning",
    # vLLM 0.33 and SGLang 0.5.23
    "session_id", "return_token_offsets", "return_prompt_text", "logprob_token_ids",
    "return_weight_versions", "return_mm_kwargs", "kv_transfer_params", "ec_transfer_params",
    "stream_interval", "rid", "extra_key", "data_parallel_rank", "return_hidden_states",
    "return_meta_info", "return_cached_tokens_details", "return_spec_tokens_details",
    "no_stop_trim", "return_logprob", "return_text_in_logprobs", "logprob_start_len",
    "top_logprobs_num", "token_ids_logprob", "guided_decoding_backend",
    "guided_whitespace_pattern",
    "do_sample", "reasoning",
    # Responses (its truncation cuts only what would not fit), TGI, Ollama, LiteLLM, LangChain
    "include", "truncation", "background", "max_tool_calls", "details", "decoder_input_details",
    "return_full_text", "top_n_tokens", "keep_alive", "num_ctx", "num_keep", "num_gpu",
    "num_thread", "num_batch", "main_gpu", "low_vram", "use_mmap", "use_mlock", "numa",
    "litellm_metadata", "litellm_trace_id", "litellm_session_id", "num_retries", "max_retries",
    "fallbacks", "extra_headers", "extra_query", "request_timeout", "streaming", "model_name",
    "_type", "encoding_formats", "drop_params", "allowed_openai_params", "caching", "cache",
    "api_base", "api_version", "base_url", "custom_llm_provider",
    # OpenRouter (whose `transforms` and `plugins` do change a prompt), Gemini
    "usage", "provider", "models", "route", "safetySettings", "labels", "responseLogprobs",
    # Anthropic, Bedrock (whose schemas and guards are of the answer)
    "anthropic_version", "anthropic_beta", "betas", "container", "schemaVersion",
    "performanceConfig", "requestMetadata", "additionalModelResponseFieldPaths",
    "cache_control", "modelId",
    # llama.cpp; the last two lines have no effect where what they shape is off
    "cache_prompt", "id_slot", "n_probs", "min_keep", "n_keep", "timings_per_token",
    "return_tokens", "return_progress", "post_sampling_probs",
    "repeat_last_n", "penalize_newline", "mirostat_tau", "mirostat_eta", "dynatemp_exponent",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
    "xtc_threshold", "rep_pen_range", "rep_pen_slope", "max_context_length",
})
# Other APIs' names for settings.
ALIASES = {
    "max_new_tokens": "max_tokens", "max_output_tokens": "max_tokens", "maxTokens": "max_tokens",
    "maxOutputTokens": "max_tokens", "num_predict": "max_tokens", "n_predict": "max_tokens",
    "stop_sequences": "stop", "stopSequences": "stop", "topP": "top_p", "topK": "top_k",
    "sampling_seed": "seed", "choice.count": "n", "reasoning.level": "reasoning_effort",
    "min_new_tokens": "min_tokens", "repeat_penalty": "repetition_penalty",
    "max_gen_len": "max_tokens", "max_tokens_to_sample": "max_tokens",
    "frequencyPenalty": "frequency_penalty", "presencePenalty": "presence_penalty",
    "candidateCount": "n", "random_seed": "seed",
    "ls_temperature": "temperature", "ls_max_tokens": "max_tokens", "ls_stop": "stop",
    # koboldcpp, lm-eval
    "max_length": "max_tokens", "stop_sequence": "stop", "rep_pen": "repetition_penalty",
    "typical": "typical_p", "tfs": "tfs_z", "until": "stop", "max_gen_toks": "max_tokens",
}
# Marks that no model reads: where a provider may cache, where an agent's step begins, what only a
# provider reads, and a block's number.
MARKS = ("cachePoint", "cache_control", "step-start", "thoughtSignature", "index")
# Parts of a prompt that are not text.
MEDIA = (
    *("image", "images", "audio", "audios", "video", "videos"),
    *("image_url", "files", "attachments", "experimental_attachments"),
)
# Fields that change the distribution or the prompt and cannot be applied → values without effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,),
    "length_penalty": (1,), "logit_bias": ({}, []), "bad_words": ([],), "bad_words_ids": ([],),
    "typical_p": (1,), "min_tokens": (0,), "ignore_eos": (False,), "stop_token_ids": ([],),
    "stop_regex": ([],), "best_of": (1,), "use_beam_search": (False,), "num_beams": (1,),
    "no_repeat_ngram_size": (0,), "logits_processors": ([],), "custom_logit_processor": (),
    "vllm_xargs": ({},), "lora_path": (), "modalities": (["text"],), "history": ([],),
    "previous_response_id": (),
    **dict.fromkeys(MEDIA, ([], {}, 0)), "tool_choice": ("auto", {"type": "auto"}, {"auto": {}}),
    "parallel_tool_calls": (True,), "functions": ([],), "thinking": ({"type": "disabled"},),
    "guardrailConfig": (), "responseMimeType": ("text/plain",),
    "thinking_token_budget": (-1,), "gen_ai.output.type": ("text",),
    "add_generation_prompt": (True,), "continue_final_message": (False,), "chat_template": (),
    "template": (), "suffix": (),
    "truncate_prompt_tokens": (-1,),
    "allowed_token_ids": ([],),
    # what a provider adds to the prompt
    "safe_prompt": (False,), "web_search_options": (), "search_parameters": (),
    # samplers of llama.cpp and its like
    "mirostat": (0,), "tfs_z": (1,), "watermark": (False,), "top_a": (0,), "dry_multiplier": (0,),
    "xtc_probability": (0,), "dynatemp_range": (0,), "top_n_sigma": (-1, 0),
}
# Settings that are also columns of data sets: only in a request sent to a server are they settings.
COLUMNS = frozenset({
    "n", "format", "template", "think", "thinking", "grammar", "regex", "json_schema",
    "max_length", "stop_sequence", "typical", "tfs", "until",
})
# Arguments of the renderer that a log must not set: with `chat_template` the log's template would
# run.
TEMPLATE_RESERVED = frozenset({
    "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})
# fmt: on

# Words in the names of samplers' settings, of which nobody knows all.
_SAMPLER = re.compile(
    r"(^|_)(ban(s|ned)?|bias|beams?|cfg|cutoff|dry|dynatemp|guidance|logits?|mirostat|n?sigma"
    r"|pen(alty|alties)?|rep_pen|repetition|repeat|samplers?|smoothing|temp(erature)?|tfs|top_[a-z]"
    r"|typical|xtc)(_|$)"
)

# What tables write in a cell if the row does not have that field.
PADDING = ("nan", "NaN", "None", "null")


def is_sampler(name: str, value: Any) -> bool:
    """Whether an unknown field beside known settings is one of a sampler, and not off."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return bool(value) and not isinstance(value, str) and _SAMPLER.search(words) is not None
