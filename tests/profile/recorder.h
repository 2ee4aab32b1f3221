// What known.cpp calls in recorder.cpp.
#pragma once

#include <stddef.h>

extern "C" {
void start_recording(bool by_tables);
// Of the `count` objects, `freed` are freed again.
void record_allocations(unsigned count, size_t size, unsigned freed);
void record_waits(unsigned count, unsigned long ns);
// Writes the two profiles to files, and the two largest leaks to standard output. False if that
// failed.
bool write_records(const char* heap, const char* contention);
}
