"""The Flower apps of a deployment."""

from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from bespokefl.engines.transports.flower import adapter

client_app = ClientApp()  # Flower requires one; nodes answer messages without it (see supernode.py)


def server_app(run: Callable[[Grid, str], None]) -> ServerApp:
    """The server's app: calls `run` with Flower's grid and the name of the run, the app's only setting."""
    app = ServerApp()
    adapter.pull_replies_sooner()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid, str(context.run_config.get("run", "")))

    return app
