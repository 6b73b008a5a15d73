"""The offline model: a local server that speaks the Messages API, and is no language model.

`http` and `service` answer requests, and `conversation` splits each request into entries. `respond` chooses the reply:
the next turn of a `scenario`, else calls of the tools that the `phrasebook`, a file of patterns, names for what was
said. `plans` writes the plan of work that needs a plan. `reply` puts the reply into the API's form. Answers quote what
the tools returned; where no pattern matches, the answer says that it was not understood.
"""
