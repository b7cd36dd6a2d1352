"""The local loop of a client, and the rounds of the server."""
