"""`--saturate-tiles`: the best program that equality saturation finds, by predicted cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from superopt.errors import BadInput, BadOption
from superopt.transforms.search_pass import SearchPass
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.transforms.optimizers import Proposals
    from superopt.transforms.partition.segments import Segment


@dataclass(frozen=True)
class SaturateTiles(SaturationOptimizer, SearchPass):
    """Rewrite the program as tile loops in every way that the rules allow; take the one predicted to be fastest.

    The result is certified (unless `certify=false`); `--superoptimize` also compiles it and checks numerics.
    Remarks report how large the e-graphs became and, with `statistics`, what each rule did.
    """

    flag: ClassVar[str] = "saturate-tiles"

    print_egraph: str | None = None
    """Write the first e-graph of the whole program to this file, whose name must end in .dot or .json."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.print_egraph is not None:
            path = Path(self.print_egraph)
            if path.suffix not in (".dot", ".json"):
                raise BadOption(f"expected print-egraph to name a .dot or .json file, got '{path}'")
            if not path.absolute().parent.is_dir():
                raise BadOption(f"expected print-egraph to name a file in a folder that exists, got '{path}'")

    def searched(self, found: Proposals, part: Segment, diagnostics: Diagnostics) -> None:
        """Write the drawing that was asked for; raises BadInput where it cannot be written."""
        from superopt.transforms.tile_saturation.print_egraph import as_dot, as_json
        from superopt.transforms.tile_saturation.search import Saturations

        if self.print_egraph is None or not part.whole:
            return
        assert isinstance(found, Saturations)
        if not found.saturations:
            return
        path = Path(self.print_egraph)
        encoder = found.saturations[0].encoder
        try:
            path.write_text(as_dot(encoder) if path.suffix == ".dot" else as_json(encoder))
        except OSError as error:
            raise BadInput(f"cannot write '{path}': {error.strerror}") from None
