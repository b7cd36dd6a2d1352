"""The users' own tables: reading files, deciding what columns are, fitting a preprocessing, and what a site shares of them."""
