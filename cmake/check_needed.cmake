# Fails the build of a shared library that needs more at run time than libc and the dynamic linker.
# Before glibc 2.34, threads and dlopen are in libraries of their own. musl's is libc.so.
# Called by: the post-build step of every shared library, with READELF and LIBRARY set.
execute_process(COMMAND ${READELF} --wide --dynamic ${LIBRARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*\\[[^]\n]+\\]" entries "${dynamic}")
foreach(entry IN LISTS entries)
  string(REGEX REPLACE ".*\\[(.+)\\]$" "\\1" name "${entry}")
  if(NOT name MATCHES "^(libc\\.so(\\.6)?|libpthread\\.so\\.0|libdl\\.so\\.2|ld-linux[-a-z0-9_]*\\.so\\.[0-9]+)$")
    message(FATAL_ERROR "${LIBRARY} needs ${name}; it may need libc.so.6 only")
  endif()
endforeach()
if(dynamic MATCHES "TEXTREL")
  message(FATAL_ERROR "${LIBRARY} has text relocations: something in it is not position-independent")
endif()
