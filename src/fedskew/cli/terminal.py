"""The terminal of the command line."""

from rich_argparse import RawDescriptionRichHelpFormatter

from fedskew.report.console import Console, say

__all__ = ["Console", "HelpFormatter", "say"]


class HelpFormatter(RawDescriptionRichHelpFormatter):
    """Prints help texts unchanged. Words in brackets are not read as markup."""

    help_markup = False
    text_markup = False
    group_name_formatter = str
