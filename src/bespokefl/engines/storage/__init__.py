"""Client states and checkpoints, in memory and on disk.

checkpoint_format   the files of one checkpoint
checkpoints         the checkpoints of one run: when they are written, which one is loaded
client_states       the states of all clients between rounds
mapped_files        tensors in memory-mapped files
safetensors_writer  writes safetensors files without a copy in memory
"""
