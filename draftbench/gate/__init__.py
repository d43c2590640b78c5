"""Did drafting get worse? Compares two runs, paired by request.

`make_baseline` reduces a run to counts per request, `baseline` keeps them in a file,
`pair_requests` pairs the requests of two, `judge` decides by non-inferiority (`noninferiority`)
within `limits`, `result` has its verdict, `notes` the sentences below it, and `ci` writes it for CI
systems. `compare` shows everything that differs between two runs, without a verdict. No model runs
here.
"""
