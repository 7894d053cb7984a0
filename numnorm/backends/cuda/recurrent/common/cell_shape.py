"""The number of threads that compute a step of a recurrent cell for one row of the batch."""

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.threads.group_reductions import WARP
from numnorm.backends.cuda.threads.row_shape import RowShape

# Steps run one after the other, on few rows. To use many threads, each has one vector of 16 bytes
# of each gate, and blocks are small.
_TEAMS = (1, 2, 4, 8, 16, WARP, 64, 128, 256, 512)


def cell_shape(units: int, element: ElementType, *, whole: bool) -> RowShape:
    """Return the shape for cells; `whole` says that each gate's units fill vectors of 16 bytes.

    Raises
    ------
    NotImplementedError
        If a row's units do not fit the registers.
    """
    for team in _TEAMS:
        if units <= team * element.vector:
            return RowShape(team, max(1, WARP // team), 1, whole)
    widest = _TEAMS[-1] * element.vector
    raise NotImplementedError(
        f"recurrent cells of {units} units in {element.name} are wider than the {widest} that are "
        "there for arrays of a CUDA device: bring them to the host"
    )
