"""The offline model: a local server that speaks the Messages API, and is no language model.

`http` and `service` answer requests, and `conversation` splits each into entries. `respond` chooses the reply: the next
turn of a `scenario`, else calls of the tools that the `phrasebook`, a file of patterns, names for what was said, with
`plans` for what needs one. `reply` puts it into the API's form. Answers quote what the tools returned; where no pattern
matches, the answer says that it was not understood.
"""
