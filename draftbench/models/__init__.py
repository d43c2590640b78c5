"""Models as users name them: whether they can work together, and how they are loaded.

A checkpoint
    source           a folder, .gguf file or hub id → configuration, tokenizer, weights
    checkpoint       refuses hostile files before a library reads them
    prequantized     checkpoints whose weights are stored quantized
    quantize         a model at a level → a runner, and its facts
A pair
    compatibility    whether one model can draft for another; translation: tokens by their text
    heads            whether a head can, by its configuration; eagle, mtp: by its tensors
    head_file        EAGLE-3 heads in .gguf files
    own_draft        the layers with which a target drafts for itself
    known_pairs      drafts and heads in use with a target → `suggest`
    check            all of these for drafts and heads → `CheckResult`, whose records are in
                     check_result
A draft
    drafting         the kinds of draft, and what an entry of `--drafts` says
"""
