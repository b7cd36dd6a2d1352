"""The fixed protocol behind the packaged evidence. `protocol.toml` has its data sets, skews, methods, learning rates and seeds."""

import tomllib
from importlib.resources import files
from typing import Any, Literal

import msgspec


class Planned(msgspec.Struct, frozen=True):
    """A case of the protocol: a data set, a skew, and the local work in a round."""

    data: str
    skew: tuple[str, ...]
    local: Literal["epochs", "steps"] = "epochs"
    model: str = "mlp:norm=group"

    @property
    def title(self) -> str:
        return f"{self.data}, {' + '.join(self.skew)}"

    def settings(self) -> dict[str, Any]:
        """Return the settings that are equal for all methods, as keywords of `Experiment`."""
        return {
            "dataset": self.data,
            "skew": list(self.skew),
            "model": self.model,
            "clients": {"number": 10, "held_out": HELD_OUT},
            "server_data": {"share": SERVER_SHARE},
            "local": TABLE["local"][self.local],
            "training": {"rounds": ROUNDS, "threads": 1},
            "evaluation": {"every": ROUNDS, "local_models": False},
            "checkpoint": {"every": ROUNDS},
            "engine": "stacked",
        }


TABLE = tomllib.loads((files("fedskew.advice") / "protocol.toml").read_text(encoding="utf-8"))
ROUNDS: int = TABLE["rounds"]
RATES: list[float] = TABLE["rates"]
TUNING_SEED: int = TABLE["tuning_seed"]
PASSES: list[list[int]] = TABLE["passes"]
SEEDS = [seed for part in PASSES for seed in part]
HELD_OUT: float = TABLE["held_out"]
SERVER_SHARE: float = TABLE["server_share"]
REFERENCE: str = TABLE["reference"]
ADAPTED: str = TABLE["adapted"]
BOUNDS: list[str] = TABLE["bounds"]
PUBLISHED: list[str] = TABLE["published"]
METHODS: list[str] = TABLE["methods"]
NEEDS: dict[str, str] = TABLE["needs"]
CASES = msgspec.convert(TABLE["cases"], tuple[Planned, ...])
