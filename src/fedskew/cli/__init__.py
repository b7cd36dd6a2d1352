"""The command line: parsing, printing, progress."""
