"""Train one method: settings, clients, training loop, results."""
