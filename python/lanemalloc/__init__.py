"""lanemalloc's command line: runs programs under the allocator, and shows where memory and
contention are."""
