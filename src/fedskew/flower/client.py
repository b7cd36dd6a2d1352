"""The client's side in Flower. Flower starts a process for each message. It passes the message to the node's own process.

It does not load PyTorch.
"""

import sys
from collections.abc import Mapping
from multiprocessing.connection import Client

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

NAME, COMMAND = "fedskew", "flwr-clientapp"


def content(data: bytes) -> RecordDict:
    """Convert bytes to Flower's arrays. Many bytes are split into pieces."""
    array = Array(dtype="uint8", shape=(len(data),), stype=NAME, data=data)
    return RecordDict({NAME: ArrayRecord({NAME: array})})


def data_of(message: Message) -> bytes:
    """Return the bytes of a message from `content`, and no bytes for any other message."""
    record = message.content.get(NAME)
    array = record.get(NAME) if isinstance(record, ArrayRecord) else None
    return array.data if array is not None and array.stype == NAME else b""


def client_app() -> ClientApp:
    """Return the client's app. It asks the node that ``fedskew flower node`` runs beside the SuperNode."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        return Message(content(pass_on(data_of(message), context.node_config)), reply_to=message)

    for register in (app.query(), app.train(), app.evaluate()):
        register(handle)
    return app


def pass_on(data: bytes, config: Mapping[str, object]) -> bytes:
    """Send a message to the socket in the SuperNode's configuration, and return the node's reply."""
    if "socket" not in config:
        raise ValueError("no fedskew node runs next to this SuperNode; start it with `fedskew flower node`")
    with Client(str(config["socket"]), family="AF_UNIX") as connection:
        connection.send_bytes(data)
        return connection.recv_bytes()


def run_command(arguments: list[str]) -> None:
    """Run Flower's command for one message in this process."""
    from flwr.supernode.cli import flwr_clientapp

    sys.argv = arguments
    flwr_clientapp()
