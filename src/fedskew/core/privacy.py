"""Check that no component of an experiment breaks the guarantee of a private method.

A private method (``Contract.privacy``) clips each client's update, sums the updates and adds noise. Its privacy loss is bounded if

- a client's update does not depend on who else takes part;
- the model depends on the updates only through the noisy sum;
- clients take part at random, as the accountant assumes.

Every component has a method ``private(self, privacy)``. If the component breaks one of these conditions, it returns which one, and
what to use instead; otherwise an empty text. Most components use one of the two functions below: ``private = alone``. A component
without this method is refused. A subclass does not inherit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedskew.core.errors import require

if TYPE_CHECKING:
    from fedskew.core.records import Privacy


def alone(component: object, privacy: Privacy) -> str:
    """For a component whose effect on a client depends only on that client, on chance and on earlier models."""
    return ""


after_noise = alone
"""For a component whose effect on the model depends on the clients only through the noisy sum."""


def check_part(method: str, section: str, part: object, privacy: Privacy) -> None:
    """Raise `BadInput` if the component of a section breaks the method's guarantee."""
    kind, members = type(part).__name__, vars(type(part))
    require(
        "private" in members,
        f"{method} bounds its privacy loss, but {section} {kind} does not say if it keeps this bound; use another one, or write "
        f"`private = alone` into {kind} if its effect on one client does not depend on the others (fedskew.core.privacy)",
    )
    reason = members["private"](part, privacy)
    require(not reason, f"{method} bounds its privacy loss, but this bound does not hold here: {reason}")
