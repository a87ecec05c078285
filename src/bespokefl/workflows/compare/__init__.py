"""Compare methods over several seeds on the same clients.

api             `bespokefl.compare`
candidates      the methods that take part: names, order, default grids
budget          how much each method may compute
pilot           short runs that measure gradients or processor time
plan            carry out a comparison: tune and train what is missing, several runs at once
tuning          tune all methods by the same schedule, within a limited time
storage         the directory of a comparison
existing_runs   `bespokefl.compare_runs`: compare runs on disk
result          `Comparison`: scores, gains, tests and verdicts
statistics      the figures of one method
qualification   what limits a verdict: untuned methods, and unequal work
demo            the comparison that `bespoke demo` shows
description     the comparison in sentences for a paper
document        compare.json, with the rounds of each run and remarks on the figures
"""
