"""Types and functions that every other package uses: records, vectors, the algorithm base class, tasks, seeding, errors."""
