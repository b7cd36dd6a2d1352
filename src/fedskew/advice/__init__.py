"""Which method to reach for first, from a table of our own runs."""
