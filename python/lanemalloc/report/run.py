"""One recording, as the report looks at it: series over time, what threads met at,
and the moments that are shown whole."""

from __future__ import annotations

import shlex
from typing import Any

from lanemalloc.recording import Recording, Sample, live_bytes

# Options that `lanemalloc run` sets for itself.
MOST_LOST = 3
OWN_OPTIONS = ("stats", "stats_format", "stats_file")


class Run:
    """`letter`: "" where there is only one, else A or B."""

    def __init__(self, recording: Recording, letter: str = "") -> None:
        self.recording = recording
        self.letter = letter
        self.samples = recording.samples
        self.times = [sample.at for sample in self.samples]
        self.end = recording.end
        last = self.samples[-1].snapshot if self.samples else {}
        self.last: dict[str, Any] = last
        self.peak: Sample | None = max(self.samples, key=live_bytes) if self.samples else None
        self.figures: dict[str, int] = self.end.get("figures") or last.get("figures") or {}
        self.contention: list[dict[str, Any]] = (
            self.end.get("contention") or last.get("contention") or []
        )
        self.entry = str(self.end.get("entry") or last.get("entry") or "?")

    @property
    def command(self) -> str:
        return shlex.join(self.recording.command) or "?"

    @property
    def seconds(self) -> float:
        return float(self.end.get("seconds") or (self.times[-1] if self.times else 0.0))

    @property
    def peak_resident(self) -> int:
        return int(self.end.get("peak_resident_bytes") or self.recording.peak_resident)

    @property
    def peak_live(self) -> int:
        return max(
            int(self.end.get("peak_live_bytes") or 0),
            self.recording.peak_live,
            self.figures.get("live_bytes", 0),
        )

    @property
    def threads(self) -> int:
        return int(self.end.get("peak_threads") or self.recording.peak_threads)

    @property
    def own_threads(self) -> int:
        """Of these, the library's."""
        return int(self.end.get("library_threads") or 0)

    @property
    def waits(self) -> int:
        return sum(int(cell["waits"]) for cell in self.contention)

    @property
    def failures(self) -> int:
        return sum(int(cell["failures"]) for cell in self.contention)

    @property
    def waited(self) -> float:
        """Seconds, of all threads together."""
        return sum(int(cell["waited_ns"]) for cell in self.contention) / 1e9

    def options(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in self.recording.options.split(",") if pair)
        return {key: value for key, _, value in pairs if key not in OWN_OPTIONS}

    def name(self, text: str) -> str:
        return f"{self.letter}: {text}" if self.letter else text

    # --- Over time.
    def series(self, figure: str) -> list[float]:
        return [float(sample.snapshot.get("figures", {}).get(figure, 0)) for sample in self.samples]

    def resident(self) -> list[float]:
        return [
            float(sample.snapshot.get("process", {}).get("resident_bytes", 0))
            for sample in self.samples
        ]

    def of_cell(self, cell: str, what: str) -> list[float]:
        """A counter of a contention cell."""
        found = []
        for sample in self.samples:
            cells = {one["at"]: one for one in sample.snapshot.get("contention", [])}
            found.append(float(cells.get(cell, {}).get(what, 0)))
        return found

    def rates(self, counter: list[float]) -> list[float]:
        """A second, since the moment before; counters begin with 0 at the start. A counter that
        went back began anew (exec)."""
        found = []
        before, then = 0.0, 0.0
        for at, value in zip(self.times, counter):
            grown = value - before if value >= before else value
            found.append(grown / max(at - then, 1e-3))
            before, then = value, at
        return found

    def notes(self) -> list[str]:
        """What a reader must know of how far this can be trusted."""
        found = []
        if not self.end and self.recording.is_cut_off:
            found.append(
                "The recording has no end: it was cut off. "
                "Used as far as it goes: "
                f"{len(self.samples)} moments, the last after {self.seconds:.1f} s."
            )
        if self.recording.lost:
            found.append(
                f"The recording is damaged; {len(self.recording.lost)} of its lines were left out: "
                + "; ".join(self.recording.lost[:MOST_LOST])
                + ("; and more." if len(self.recording.lost) > MOST_LOST else ".")
            )
        if not self.samples:
            found.append(
                "Nothing was recorded: the program did not use the library, "
                "or ended before it could be read. "
                "lanemalloc doctor -- PROGRAM tells what is in the way."
            )
        elif len(self.samples) < 3:
            found.append(
                f"Only {len(self.samples)} moments were recorded: "
                "the program was short, and curves say little."
            )
        if self.end and self.end.get("from") == "last":
            found.append(
                "The program left no figures as it ended; these are the last that were seen, "
                "at most half a second before."
            )
        return found
