"""The defaults of an experiment. A run stores them, so that views can leave them out, whatever a later version's defaults are."""

import dataclasses

import msgspec

from fedskew.experiment.config import COMPONENTS, SETTINGS, SEVERAL, Experiment


def defaults_of(cls: type) -> dict[str, object]:
    """The options of a component or a section with their defaults, as TOML values; options without one are left out."""
    found = {}
    for f in dataclasses.fields(cls):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if default is not dataclasses.MISSING:
            found[f.name] = msgspec.to_builtins(default)
    return found


def defaults(experiment: Experiment) -> dict[str, dict[str, object]]:
    """By section: the default options of what the experiment holds there, with its name if that is the default, too."""
    found = {section: defaults_of(cls) for section, cls in SETTINGS.items()}
    own, usual = experiment.table(), Experiment(dataset=experiment.dataset).table()
    for section in COMPONENTS.keys() - SEVERAL.keys():
        found[section] = defaults_of(type(getattr(experiment, section)))
        if own[section]["name"] == usual[section]["name"]:
            found[section]["name"] = own[section]["name"]
    return found
