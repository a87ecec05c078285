"""Neural network modules: inspection, faster layers, losses and multiple heads."""
