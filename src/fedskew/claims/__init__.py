"""Claims of documents, tested on stored runs. Each claim holds, fails, or is undecided."""
