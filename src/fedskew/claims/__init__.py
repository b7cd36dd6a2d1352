"""What a document says, as predicates over stored runs: each holds, fails, or is undecided, with the numbers that say so."""
