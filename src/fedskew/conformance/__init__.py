"""The promises of every method, and its cost, checked and measured on a miniature federation."""
