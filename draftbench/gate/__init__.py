"""A pinned baseline and a new run → did drafting get worse? A verdict that CI can trust.

`pinning` reduces a run to counts per request, `baseline` keeps them in a file, `comparison` decides
by non-inferiority, `ci` shows the verdict where CI systems look, `history` watches verdicts over
time. Works from run folders alone: no model runs here.
"""
