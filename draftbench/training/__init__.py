"""A draft fitted to one's own traffic: what it will gain, the training, and what it did gain.

settings        the recipe, by flags
examples        a run's responses, split by a keyed hash of their prompts
plan            the draft, the device, the memory, checked before anything is computed; its replay
trainable       the interface of a draft in training, which is in its kind's folder of `drafts`
fit             the training itself, by transformers' Trainer
held_out        how a draft is accepted on held-out requests, and what that is worth → `Proof`
forecast        the first parts of the training, and what all of it will gain → `Forecast`
course          all of these in their order, resumable → the checkpoint with `training.json`
outcome         what is said of all this, and kept
"""
