"""rocksdb's db_bench with two threads: random writes through memtables and compactions, then random
reads."""

import dataclasses
import tempfile
from pathlib import Path

from common import Library

from .program import Sample, prove, run_command, scaled

WRITES = 100_000  # of each thread
READS = 40_000


@dataclasses.dataclass(frozen=True)
class Rocksdb:
    name: str = "rocksdb"
    packages: tuple[str, ...] = ("rocksdb-tools",)
    about: str = "db_bench: fillrandom and readrandom, two threads"

    def prepare(self, work: Path) -> None:
        pass

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        prove(self.name, "db_bench", ["db_bench", "--version"], library)
        with tempfile.TemporaryDirectory(prefix="db-", dir=work) as directory:
            command = [
                "db_bench",
                f"--db={directory}",
                "--benchmarks=fillrandom,readrandom",
                "--threads=2",
                "--seed=1",
            ]
            command += [
                f"--num={scaled(WRITES, scale)}",
                f"--reads={scaled(READS, scale)}",
                "--value_size=200",
            ]
            command += [
                "--write_buffer_size=8388608",
                "--target_file_size_base=8388608",
                "--cache_size=16777216",
            ]
            command += [
                "--compression_type=lz4",
                "--disable_wal=true",
                "--max_background_jobs=2",
                "--histogram=false",
            ]
            return run_command(self.name, command, library)
