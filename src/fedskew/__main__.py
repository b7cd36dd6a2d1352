"""``python -m fedskew`` is the command line."""

from fedskew.cli.main import entry

if __name__ == "__main__":
    entry()
