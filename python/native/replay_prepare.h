// Makes plans. Called by: replay.cpp's main.
#pragma once

namespace lanemalloc::trace {

// Writes the plan of the raw events on standard input to a file. Returns the exit status.
int prepare(const char* path);

}  // namespace lanemalloc::trace
