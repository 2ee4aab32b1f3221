"""The page of a simulation: transfers of cache lines by the number of cores. Used by: the command
sim."""

from __future__ import annotations

from lanemalloc.coherence import ENTRIES, Figures
from lanemalloc.report.drawing import CELL_COLOURS
from lanemalloc.report.markup import Plot, Section, Table
from lanemalloc.report.page import document

LEAST_SHOWN = 1e-4  # transfers an operation; a logarithmic axis has no 0


def page(figures: list[Figures], allocators: tuple[str, ...], line: int) -> str:
    """A curve for each allocator; those of models are dashed."""
    workload = figures[0].cell.workload
    cores = sorted({one.cell.cores for one in figures})
    found = {(one.cell.allocator, one.cell.cores): one.transfers(line) for one in figures}
    unit = f"transfers of {line}-byte lines an operation"
    curves = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": allocator,
            "x": cores,
            "y": [max(found[allocator, n], LEAST_SHOWN) for n in cores],
            "line": {
                "color": CELL_COLOURS[i % len(CELL_COLOURS)],
                "dash": "solid" if allocator in ENTRIES else "dash",
                "width": 2,
            },
            "hovertemplate": "%{y:.4f}",
        }
        for i, allocator in enumerate(allocators)
    ]
    table = Table(
        unit,
        ("cores", *allocators),
        [[str(n), *(f"{found[name, n]:.4f}" for name in allocators)] for n in cores],
    )
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "cores"},
            "tickvals": cores,
            "ticktext": [str(n) for n in cores],
        },
        "yaxis": {"type": "log", "title": {"text": unit}},
    }
    text = "cache lines that the allocator makes go from core to core; both axes are logarithmic"
    plot = Plot("transfers", "Transfers by cores", text, curves, layout, 420, table)
    section = Section("simulation", f"Workload: {workload}", "", "Transfers", [plot])
    return document("lanemalloc sim", f"{workload}, up to {cores[-1]} cores", [], "", [section], "")
