"""The defaults of an experiment. Each run stores them: reports hide default values, and a later version may change them."""

import dataclasses

import msgspec

from fedskew.experiment.config import COMPONENTS, SETTINGS, SEVERAL, Experiment


def defaults_of(cls: type) -> dict[str, object]:
    """Return the default of each option of a component or section, as TOML values. Options without a default are left out."""
    found = {}
    for f in dataclasses.fields(cls):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if default is not dataclasses.MISSING:
            found[f.name] = msgspec.to_builtins(default)
    return found


def defaults(experiment: Experiment) -> dict[str, dict[str, object]]:
    """Return, by section, the default options of its component. The name is included if the component itself is the default."""
    found = {section: defaults_of(cls) for section, cls in SETTINGS.items()}
    own, usual = experiment.table(), Experiment(dataset=experiment.dataset).table()
    for section in COMPONENTS.keys() - SEVERAL.keys():
        found[section] = defaults_of(type(getattr(experiment, section)))
        if own[section]["name"] == usual[section]["name"]:
            found[section]["name"] = own[section]["name"]
    return found
