"""Did drafting get worse? Compares two runs, paired by request.

`make_baseline` reduces a run to counts per request, and `baseline` keeps them in a file.
`pair_requests` pairs the requests of two baselines, and `judge` decides by non-inferiority
(`noninferiority`) within `limits`. `result` has the verdict, `notes` the sentences below it, and
`ci` writes it for CI systems. `compare` shows everything that differs between two runs, without a
verdict. No model runs here.
"""
