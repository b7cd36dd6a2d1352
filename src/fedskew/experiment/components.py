"""Find the kind of a component, given by name, file or object, and check its promises."""

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain
from operator import itemgetter

from fedskew.conformance import kinds
from fedskew.conformance.promises import Verdict, check as check_method
from fedskew.core.component import build, canonical, fitted, likeness, parse
from fedskew.core.errors import BadInput
from fedskew.core.user_code import MARK, load, module_of
from fedskew.experiment.combinations import COMBINATIONS, with_method
from fedskew.experiment.config import COMPONENTS, Experiment

KINDS = {section: catalogue for section, catalogue in COMPONENTS.items() if catalogue.contracts}
"""The kinds of components that users may write themselves."""


def check(spec: object) -> tuple[str, Iterator[Verdict]]:
    """Return the kind of a component and an iterator over the verdicts on its promises.

    ``spec`` is a name, FILE::CLASS, or an object. If several kinds have a component of this name, the method is taken, or else
    the kind that comes first in `Experiment`. Raises `BadInput` if ``spec`` is no component.
    """
    section = section_of(spec)
    if section != "algorithm":
        return section, kinds.check(section, build(section, KINDS[section], spec))
    experiment = with_method(Experiment(), spec)
    return section, check_method(experiment.algorithm, experiment.server, COMPONENTS["algorithm"])


def section_of(spec: object) -> str:
    """Return the section of `Experiment` to which a component belongs."""
    if not isinstance(spec, str):
        return kind_of(spec if callable(spec) else type(spec), "check")
    name = parse(spec, "check")[0]
    if MARK in name:
        return kind_of(load(name, "check")[0], name)
    names = {"algorithm": [*COMPONENTS["algorithm"], *COMBINATIONS]}
    names |= {section: [*catalogue] for section, catalogue in KINDS.items() if section != "algorithm"}
    for section, of_section in names.items():
        if canonical(name, of_section) in of_section:
            return section
    near = get_close_matches(name.lower(), chain.from_iterable(names.values()), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`fedskew list algorithms`, `list skews` and so on show all names"
    raise BadInput(f"check: there is no component {name!r}; {hint}")


def kind_of(cls: object, what: str) -> str:
    """Return the kind that a class fits. Otherwise raise `BadInput`, which says what it lacks to fit the most similar kind."""
    refused = {}
    for section, catalogue in KINDS.items():
        if catalogue.adapt(cls, what):
            return section
        try:
            fitted(cls, catalogue.contracts, catalogue.optional, what)
            return section
        except BadInput as error:
            refused[section] = likeness(cls, catalogue.contracts), error
    alike, nearest = max(refused.values(), key=itemgetter(0))
    if alike:
        raise nearest
    raise BadInput(
        f"{what} is no component: it has no method that fedskew calls; docs/how-to/own-method.md has an example"
    )


def classes_of(file: str) -> dict[str, str]:
    """Return, for each class that the file defines, its kind, or the reason why it is no component."""
    module, kinds_of_classes = module_of(file, "check"), {}
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__ and isinstance(value, type):
            try:
                kinds_of_classes[name] = kind_of(value, name)
            except BadInput as error:
                kinds_of_classes[name] = str(error)
    return kinds_of_classes
