"""Real programs under an allocator: PROGRAMS, each run(library, work, scale) -> Sample.

Called by: bench/suite/, and by hand: `python3 -m programs --list` in bench/.
"""

from .git import Git
from .gxx import Gxx
from .node import Node
from .postgres import Postgres
from .program import DATA, Program, Sample
from .python import Python
from .redis import Redis
from .rocksdb import Rocksdb
from .sqlite import Sqlite

PROGRAMS: tuple[Program, ...] = (
    Redis(),
    Postgres(),
    Python(),
    Gxx(),
    Sqlite(),
    Node(),
    Rocksdb(),
    Git(),
)

__all__ = ["DATA", "PROGRAMS", "Program", "Sample"]
