"""From nothing to a run over several machines: what is written for each of them, and what runs there."""
