"""``python -m fedskew`` is the command line."""

from fedskew.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
