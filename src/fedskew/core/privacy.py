"""Whether a component of an experiment leaves the guarantee of a private method intact.

A private method (``Contract.privacy``) clips each client's update, sums the updates and adds noise. Its privacy loss is bounded if

- a client's update does not depend on who else takes part;
- the model depends on the updates only through the noisy sum;
- clients take part at random, as the accountant assumes.

Every component has a method ``private(self, privacy)``. It returns which of these conditions the component breaks and what to use
instead, or an empty text. Most components use one of the two functions below, ``private = alone``. A component without the method
is refused. A subclass does not inherit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedskew.core.errors import require

if TYPE_CHECKING:
    from fedskew.core.records import Privacy


def alone(component: object, privacy: Privacy) -> str:
    """For a component whose effect on a client depends only on that client, on chance and on earlier models."""
    return ""


def after_noise(component: object, privacy: Privacy) -> str:
    """For a component whose effect on the model depends on the clients only through the noisy sum."""
    return ""


def check_part(method: str, section: str, part: object, privacy: Privacy) -> None:
    """Raise `BadInput` if the component of a section breaks the method's guarantee."""
    kind, own = type(part).__name__, vars(type(part))
    require(
        "private" in own,
        f"{method} bounds its privacy loss, and {section} {kind} does not say whether that holds beside it; use another, or write "
        f"`private = alone` into {kind} if what it does to one client does not depend on the others (fedskew.core.privacy)",
    )
    reason = own["private"](part, privacy)
    require(not reason, f"{method} bounds its privacy loss, which does not hold here: {reason}")
