"""Engines run a method: the round loop, its parts, and the plain reference that it is compared with.

loop                the round loop, the same for simulations and deployments
federation          the server's side of a federation: its state, who is drawn, which uploads count
client              the clients' side: their data and their half of the method
simulation          both sides on one machine
settings            the settings of the engines
chunks              how a cohort is cut into chunks
features            features of a frozen backbone, computed once
stacking            several federations trained as one
clipping            bounds uploads and adds noise to them before they leave a client
shares              limits the share of one client in means
screening           rejects uploads that the server cannot use
faults              simulated failures of clients
evaluation          scores of models
constant_predictor  the majority class or mean value, which every model should beat
callbacks           calls the callbacks of a run
interrupts          delays Ctrl-C until the current step is complete
outcome             what a run reports after every round and at its end
reference           a plain PyTorch training loop
storage/            client states and checkpoints, in memory and on disk
transports/         carry messages to clients and bring their uploads back
"""
