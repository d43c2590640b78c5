"""What the kinds have in common that draft from the target's own states.

config  what a head's config.json says of the target that it fits
head    the interface of a head, and its rounds
draft   its replay and its timed passes
"""
