"""Models as users name them: whether they can work together, and how they are loaded.

A checkpoint
    source           a folder, .gguf file or hub id → configuration, tokenizer, weights
    checkpoint       refuses hostile files before a library reads them
    prequantized     checkpoints whose weights are stored quantized
    quantize         a model at a level → a runner, and its facts
A pair
    compatibility    whether one model can draft for another; translation: tokens by their text
    known_pairs      drafts and heads in use with a target, or carried by it → `suggest`
    check            one model's sizes, and what keeps it from being measured; check_result: the
                     records of `drafts/check.py`
"""
