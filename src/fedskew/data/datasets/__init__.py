"""One loader a file."""
