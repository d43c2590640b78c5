"""Did drafting get worse? Compares two runs, paired by request. In the order of data:

`make_baseline` chooses what of a run is kept and reduces it to counts per request; `baseline` is
that, and its file. `pair` pairs the requests of two baselines, or refuses. `metrics` are what may
be limited, and `judge` decides by non-inferiority (`noninferiority`). `result` is the verdict,
`words` says it, and `ci` writes it for CI systems. `compare` shows everything that differs between
two runs, without a verdict. No model runs here.
"""
