"""The command line, as tests use it."""

import io
from contextlib import redirect_stderr, redirect_stdout

from fedskew.cli.main import main


def output_of(*words: object, code: int = 0) -> str:
    """Return what a command prints on standard output. It must end with this exit code."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main([str(word) for word in words]) == code
    return printed.getvalue()


def line_of(*words: object, code: int = 0) -> str:
    """Return it as one line: a terminal may break lines anywhere."""
    return " ".join(output_of(*words, code=code).split())


def error_of(*words: object, code: int = 2) -> str:
    """Return what a command says on standard error as it ends with this exit code."""
    with redirect_stderr(io.StringIO()) as said:
        assert main([str(word) for word in words]) == code
    return said.getvalue()
