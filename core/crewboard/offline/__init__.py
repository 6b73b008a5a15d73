"""The offline model: a loopback server that speaks the Messages API, and is no language model.

`http` and `service` answer requests, each taken apart into a `conversation`. `respond` picks the next step from that:
the turn of a `scenario`, else the tools that the `phrasebook`, a file of patterns, names for what was said. Answers
quote what the tools returned; what no pattern matches is said not to be understood.
"""
