"""Claims of documents, judged on stored runs: each holds, fails or is undecided."""
