# Builds the libraries for musl, with Debian's musl-gcc (musl-tools) and the headers of its libstdc++,
# which are made for glibc (musl-gcc.h). Where musl is the system's C library, as on Alpine, no
# toolchain file is needed.
# Called by: tests/packages/musl.sh.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_HOST_SYSTEM_PROCESSOR})
set(CMAKE_C_COMPILER musl-gcc)
set(CMAKE_CXX_COMPILER g++)
set(triplet ${CMAKE_SYSTEM_PROCESSOR}-linux)
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -dumpversion OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
# musl has no headers of the kernel's.
set(kernel ${CMAKE_BINARY_DIR}/kernel)
file(MAKE_DIRECTORY ${kernel})
file(CREATE_LINK /usr/include/linux ${kernel}/linux SYMBOLIC)
file(CREATE_LINK /usr/include/asm-generic ${kernel}/asm-generic SYMBOLIC)
file(CREATE_LINK /usr/include/${triplet}-gnu/asm ${kernel}/asm SYMBOLIC)
set(CMAKE_C_FLAGS_INIT "-idirafter ${kernel}")
set(CMAKE_CXX_FLAGS_INIT "-specs=/usr/lib/${triplet}-musl/musl-gcc.specs -nostdinc++ -isystem /usr/include/c++/${version} \
-isystem /usr/include/${triplet}-gnu/c++/${version} -isystem /usr/include/${triplet}-musl -idirafter ${kernel} \
-include ${CMAKE_CURRENT_LIST_DIR}/musl-gcc.h")
# It links no program in C++.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
