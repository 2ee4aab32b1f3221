"""A report of a run as one HTML file, from a recording; of two runs, one over the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lanemalloc import outputs

if TYPE_CHECKING:
    from lanemalloc.recording import Recording
    from lanemalloc.report.run import Run

Made = TypeVar("Made")


def write(recording: Recording, path: Path, other: Recording | None = None) -> None:
    """Raises OSError where the file cannot be written, and Problem where what was recorded makes no
    sense."""
    from lanemalloc.report.page import page

    text = guarded(runs_of(recording, other), page)
    outputs.write_text(path, text)


def as_json(recording: Recording, other: Recording | None = None) -> dict[str, Any]:
    """What the report says in figures."""
    return guarded(runs_of(recording, other), facts)


def runs_of(recording: Recording, other: Recording | None) -> list[Run]:
    from lanemalloc.report.run import Run

    return [Run(recording)] if other is None else [Run(recording, "A"), Run(other, "B")]


def guarded(runs: list[Run], make: Callable[[list[Run]], Made]) -> Made:
    """A recording that is well-formed JSON may still have been damaged, or written by somebody
    else."""
    from lanemalloc.ui import Problem

    try:
        return make(runs)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Problem(
            f"the recording is damaged: {type(error).__name__}: {error}", "record the program again"
        ) from error


def facts(runs: list[Run]) -> dict[str, Any]:
    from lanemalloc.report.differences import differences
    from lanemalloc.report.page import sentences

    told: dict[str, Any] = {
        "runs": [
            {
                "command": run.recording.command,
                "library": run.recording.library,
                "options": run.options(),
                "machine": run.recording.machine,
                "seconds": run.seconds,
                "moments": len(run.samples),
                "said": sentences(run),
                "notes": run.notes(),
                "peak_resident_bytes": run.peak_resident,
                "peak_live_bytes": run.peak_live,
                "peak_threads": run.threads,
                "entry": run.entry,
                "figures": run.figures,
                "contention": run.contention,
            }
            for run in runs
        ]
    }
    if len(runs) == 2:
        told["differences"] = differences(runs[0], runs[1])
    return told
