"""Loaders of the built-in data sets. Each file has one loader, or a few related ones; `sources.toml` says where their files are."""

from pathlib import Path

import msgspec

from fedskew.data.find import Files

SOURCES = msgspec.toml.decode(Path(__file__).with_name("sources.toml").read_bytes(), type=dict[str, Files])
"""By the name of a data set, its files."""
