"""Flower's two apps, as thin as they can be: records in, records out."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import http_grid

from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.blob import UnreadableError
from bespokefl.engines.transports.flower.node import Node
from bespokefl.engines.transports.flower.supernode import eager_pull


def client_app(node: Callable[[], Node]) -> ClientApp:
    """The node's app. `node` makes it when the first message comes, from the node's own configuration."""
    app = ClientApp()
    made: list[Node] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if not made:
            made.append(node())
        return answer(made[0], message)

    return app


def answer(node: Node, message: Message) -> Message:
    """A node's answer to a message."""
    try:
        values = records.unpack(message.content)
    except UnreadableError as error:
        values = {"what": f"a request that cannot be read ({error})"}
    return Message(records.pack(node.answer(values)), reply_to=message)


def server_app(run: Callable[[Grid, str], None]) -> ServerApp:
    """The server's app: the only thing that it is told is the name of the run."""
    app = ServerApp()
    http_grid.pull_objects = eager_pull  # type: ignore[attr-defined]

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid, str(context.run_config.get("run", "")))

    return app
