"""Trains one method on one federation and returns the result.

api                 `bespokefl.run`, `bespokefl.resume` and their command-line counterparts
settings            every option of a run, declared once
toml                writing of config.toml
client_loading      loading clients, and holding some out of training
task_builder        building the task and the model
initial_weights     given initial weights
convert             conversion of clients to an engine's data, and of its outcome to a `Result`
trainer             the three steps of a run: build, simulate, package
resume              finding the run to resume in a directory
code_fingerprint    noticing changes of a user's own code
jobs                running independent trainings in parallel
"""
