"""A draft fitted to one's own traffic: what it will gain, the training, and what it did gain.

examples        a run's responses, split by a keyed hash of their prompts
plan            the draft, the device, the memory: checked before anything is computed
draft_model     a draft model in training: batches, loss, checkpoint
writing         a disk that is full is an error to resume from
fit             the training itself, by transformers' Trainer
held_out        how a checkpoint is accepted along held-out responses, by replay
learning_curve  gains on small parts of the data → the gain on all of it
speed           rates of acceptance → speed-ups, by what the run measured
forecast        trainings on small parts → `Forecast`
proof           the original and the trained draft on requests never looked at → `Proof`
course          all of these in their order, resumable → the checkpoint with `training.json`
"""
