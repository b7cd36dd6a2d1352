"""The same methods between real machines, on Flower: the server's rounds here, each client's rows and state on its own node."""
