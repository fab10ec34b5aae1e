"""What of a grammar may have no text that is found in time: decided before a text begins.

A front end notes such parts as it comes upon them, each with the error that says where it stands
and what to do instead. Once texts begin nothing is refused any more, since a text would have to
fail for it: what nobody knows how to end is left out, and no budget lets a text begin it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixgen.errors import InvalidGrammar

if TYPE_CHECKING:
    from radixgen.grammars.expr import Node


@dataclass(slots=True)
class Doubts:
    """Those of one grammar and its parts. `found`: each with the error that is raised where an
    engine does not find a text of it either. `is_over`: whether texts have begun."""

    found: list[tuple["Node", InvalidGrammar]] = field(default_factory=list)
    is_over: bool = False
