"""Writes a Flower app: three small files. The app runs the experiment in its configuration."""

import dataclasses
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import tomli_w

from fedskew.core.errors import require
from fedskew.core.files import write_whole
from fedskew.experiment.config import Experiment
from fedskew.flower.diagnosis import CLIENTS, OUTPUT
from fedskew.flower.nodes import PREFIX, Deployment
from fedskew.flower.server import deployable

SERVER = '''"""The server: the rounds of the experiment in this app's configuration, into a fedskew run store."""

from fedskew.flower.app import server_app

app = server_app()
'''
CLIENT = '''"""A client: it asks the node that runs on its machine, which holds the rows."""

from fedskew.flower.client import client_app

app = client_app()
'''


def write_app(folder: Path, experiment: Experiment, runs: str = "runs") -> Path:
    """Write the app of an experiment. Raises `BadInput` if it cannot run on nodes, or if the folder is not empty."""
    experiment = deployable(experiment, Deployment(labels=True))
    about = f"{experiment.name} on {experiment.table()['dataset']['name']}, by fedskew"
    return write_files(folder, about, Deployment(), {"recipe": experiment.toml(), "runs": runs, "resume": 0})


def write_diagnosis_app(folder: Path, clients: int, output: Path, deployment: Deployment) -> Path:
    """Write an app. It diagnoses ``clients`` sites, and writes the result to ``output``."""
    return write_files(folder, "a diagnosis by fedskew", deployment, {CLIENTS: clients, OUTPUT: str(output)})


def write_files(folder: Path, about: str, deployment: Deployment, config: Mapping[str, object]) -> Path:
    """Write an app with this configuration. Raises `BadInput` if the folder is not empty."""
    require(
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
        f"{folder} exists and is not empty",
    )
    package = f"{re.sub(r'[^a-z0-9]+', '_', folder.resolve().name.lower()).strip('_') or 'app'}_app"
    options = {f"{PREFIX}{key}": value for key, value in dataclasses.asdict(deployment).items()}
    app = {
        "publisher": "fedskew",
        "components": {"serverapp": f"{package}.server:app", "clientapp": f"{package}.client:app"},
        # `flwr run --run-config` overrides it
        "config": {**config, **options},
    }
    table = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": package.replace("_", "-"),
            "version": "1.0.0",
            "description": about,
            "license": "Apache-2.0",
            "dependencies": [f"flwr=={version('flwr')}", f"fedskew>={version('fedskew')}"],
        },
        "tool": {"hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}}, "flwr": {"app": app}},
    }
    files = {
        "pyproject.toml": tomli_w.dumps(table, multiline_strings=True),
        f"{package}/__init__.py": "",
        f"{package}/server.py": SERVER,
        f"{package}/client.py": CLIENT,
    }
    for name, text in files.items():
        write_whole(folder / name, text, "app")
    return folder
