"""The embedded model: a loopback server that speaks the Messages API, and what it "thinks".

Everything but the thinking is real: the HTTP, the streams, the checks of each request, the errors. The thinking is
a function of the request alone: scenarios (data files) for the demo, and for free prompts a few rules that pick
tools and answer from the tools' true output. It is no language model, and says so.
"""
