"""Trains one method on one federation and returns the result.

api                 `bespokefl.run`, `bespokefl.resume` and their command-line counterparts
settings            every option of a run, declared once
toml                writing of config.toml
client_loading      loading clients, and holding some out of training
task_builder        building the task and the model
initial_weights     given initial weights
convert             conversion between clients and an engine's data
trainer             the three steps of a run: build, simulate, package
packaging           making a `Result` from an engine's outcome
resume              finding the run to resume in a directory
privacy_accounting  (ε, δ) of every client
code_fingerprint    noticing changes of a user's own code
jobs                running independent trainings in parallel
"""
