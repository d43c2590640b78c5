"""What is accepted of a draft; the files in the order in which data goes through them.

rounds              replays → the expected rounds at any k
candidate_rounds    a candidate's rounds in a run, from replays or as counted
faults              signs that replays or the set-up are wrong
definitions         rounds → figures; intervals: their confidence intervals
breakdown           where in the traffic tokens are accepted; trees: what fixed trees would reach
summary             all of these → `AcceptanceReport`
running             the figures of a sweep that is still running
"""
