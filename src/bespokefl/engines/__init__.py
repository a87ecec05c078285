"""Engines run a method: the round loop, its parts, and the plain reference that it is compared with.

loop                the round loop, the same for simulations and deployments
federation          the server's side of a federation: its state, who is drawn, which uploads count
client              the clients' side: their data and their half of the method
simulation          both sides on one machine
settings            the settings of the engines
faults              simulated failures of clients
evaluation          scores of models
constant_predictor  the majority class or mean value, which every model should beat
callbacks           calls the callbacks of a run
interrupts          delays Ctrl-C until the current step is complete
outcome             what a run reports after every round and at its end
reference           a plain PyTorch training loop
cohorts/            how a cohort is cut into chunks and computed; several federations trained as one
protection/         rejects, bounds and limits uploads
storage/            client states and checkpoints, in memory and on disk
transports/         carry messages to clients and bring their uploads back
"""
