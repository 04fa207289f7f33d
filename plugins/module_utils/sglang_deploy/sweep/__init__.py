"""The sweep: which launch specs to try, in which order, what they are worth, and what to keep of it.

space, prune and order decide; measure and agreement judge a running server; trials, pin and report keep the evidence.
What runs on the managed host (trials, measure, agreement, gpu) needs the standard library alone.
"""
