"""Measures a target and its candidates; the files in the order in which a sweep uses them.

    prompts        a request → the target's token ids (by `templates`, in its own process)
    trajectories   prompts → the target's responses, and its scores of their tokens
    replay         responses → what a draft's proposals would have matched, for every k at once
    step_costs     passes of the target and of a draft (timed_passes), timed in turn
    decoding       responses decoded at some k's, timed beside k = 0

`candidate` has what all of these share and need of a draft; `teacher` passes over given responses.
"""
