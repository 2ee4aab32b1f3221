"""Real programs under an allocator: PROGRAMS, each run(library, work, scale) -> Sample.

Called by: bench/suite/, and by hand: `python3 -m programs --list` in bench/.
"""

from .gxx import Gxx
from .program import DATA, Program, Sample
from .python import Python
from .redis import Redis
from .sqlite import Sqlite

PROGRAMS: tuple[Program, ...] = (Redis(), Python(), Gxx(), Sqlite())

__all__ = ["DATA", "PROGRAMS", "Program", "Sample"]
