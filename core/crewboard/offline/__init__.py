"""The embedded model: a loopback server that speaks the Messages API, and is no language model.

`http` and `service` answer requests that `wire` checked as strictly as the API does, with `faults` where a test asks
for them. `respond` picks the next step from the conversation alone: the turn of a `scenario`, else the tools that the
`phrasebook` (a data file of patterns) names for what was said. Answers quote what the tools returned, and what no
pattern matches is said not to be understood.
"""
