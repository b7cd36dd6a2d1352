"""Loaders of the built-in data sets. Each file has one loader, or a few related ones; `sources.toml` says where their files are."""

import tomllib
from pathlib import Path

import msgspec

from fedskew.data.find import Files

SOURCES = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8")), dict[str, Files]
)
"""By the name of a data set, its files."""
