"""What an experiment is: its settings and components, its TOML, and its keywords in Python and on the command line."""
