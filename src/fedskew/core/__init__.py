"""The vocabulary that every other room speaks: records, vectors, the algorithm base class, tasks, seeding, errors."""
