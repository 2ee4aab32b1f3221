# Builds for systems from glibc 2.28 on, with this system's gcc and the C library that
# tools/old-glibc has unpacked in LANEMALLOC_SYSROOT (for amd64 or arm64, as the folder's name says).
# The programs have the C++ library in them; the libraries need none.
# Called by: tools/wheels.
set(CMAKE_SYSTEM_NAME Linux)
if(NOT LANEMALLOC_SYSROOT)
  set(LANEMALLOC_SYSROOT $ENV{LANEMALLOC_SYSROOT})
endif()
if(LANEMALLOC_SYSROOT MATCHES "arm64$")
  set(CMAKE_SYSTEM_PROCESSOR aarch64)
else()
  set(CMAKE_SYSTEM_PROCESSOR x86_64)
endif()
set(CMAKE_C_COMPILER ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu-g++)
set(CMAKE_SYSROOT ${LANEMALLOC_SYSROOT})
# The compiler would look among its own system's headers and libraries first.
set(triplet ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=include OUTPUT_VARIABLE own OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
set(headers ${LANEMALLOC_SYSROOT}/usr/include)
set(c "-isystem ${own} -isystem ${headers}/${triplet} -isystem ${headers}")
set(CMAKE_C_FLAGS_INIT "-nostdinc ${c}")
set(CMAKE_CXX_FLAGS_INIT "-nostdinc -isystem ${headers}/c++/10 -isystem ${headers}/${triplet}/c++/10 ${c}")
set(libraries ${LANEMALLOC_SYSROOT}/usr/lib)
set(libraries "-B${libraries}/${triplet} -B${libraries}/gcc/${triplet}/10 -L${LANEMALLOC_SYSROOT}/lib/${triplet}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT ${libraries})
set(CMAKE_EXE_LINKER_FLAGS_INIT "${libraries} -static-libstdc++ -static-libgcc")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LANEMALLOC_SYSROOT)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
