// The names of malloc's functions, which differ in the library with a prefix. That library can live
// beside another malloc. Sources that include this file are compiled for each library.
// Called by: process/ and abi/, where they define or call what has such a name.
#pragma once

#if defined(LANEMALLOC_WITHOUT_NAMES)
#error "this source is compiled once for all libraries (CMakeLists.txt)"
#endif

#if defined(LANEMALLOC_PREFIXED)
#define LANE_NAME(name) lane_##name
#else
#define LANE_NAME(name) name
#endif
