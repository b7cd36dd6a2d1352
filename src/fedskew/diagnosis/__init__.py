"""How the clients' data differ, with and without pooling their rows."""
