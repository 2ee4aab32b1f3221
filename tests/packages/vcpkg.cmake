# Runs a port as vcpkg does, for a release build alone: it sets the variables that a portfile may
# use, and has those of vcpkg's functions that ours calls, with vcpkg's names and arguments.
#   cmake -DPORT=NAME -DPORT_FOLDER=FOLDER -DROOT=FOLDER -P vcpkg.cmake
# Called by: foreign.sh.
cmake_minimum_required(VERSION 3.21)
set(VCPKG_TARGET_TRIPLET linux)
set(CURRENT_PORT_DIR ${PORT_FOLDER})
set(CURRENT_BUILDTREES_DIR ${ROOT}/buildtrees/${PORT})
set(CURRENT_PACKAGES_DIR ${ROOT}/packages/${PORT})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 of "" SOURCE_PATH OPTIONS)
  run(${CMAKE_COMMAND} -G Ninja -S ${of_SOURCE_PATH} -B ${CURRENT_BUILDTREES_DIR} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} -DCMAKE_INSTALL_LIBDIR=lib ${of_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
  run(${CMAKE_COMMAND} --build ${CURRENT_BUILDTREES_DIR} --target install)
endfunction()

# Moves the CMake files to share/PORT, and tells them so.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 of "" CONFIG_PATH "")
  file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share)
  file(RENAME ${CURRENT_PACKAGES_DIR}/${of_CONFIG_PATH} ${CURRENT_PACKAGES_DIR}/share/${PORT})
  foreach(name ${PORT}Targets ${PORT}Config)
    set(file ${CURRENT_PACKAGES_DIR}/share/${PORT}/${name}.cmake)
    file(READ ${file} text)
    string(REGEX REPLACE
      "get_filename_component\\(_IMPORT_PREFIX \"\\\${CMAKE_CURRENT_LIST_FILE}\" PATH\\)(\nget_filename_component\\(_IMPORT_PREFIX \"\\\${_IMPORT_PREFIX}\" PATH\\))*"
      "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)"
      text "${text}")
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endfunction()

# The files' paths are relative to where they lie, as vcpkg makes them: there is nothing to do.
function(vcpkg_fixup_pkgconfig)
  file(GLOB files ${CURRENT_PACKAGES_DIR}/lib/pkgconfig/*.pc)
  foreach(file ${files})
    file(STRINGS ${file} prefix REGEX "^prefix=")
    if(NOT prefix MATCHES "^prefix=\\\${pcfiledir}")
      message(FATAL_ERROR "${file}: ${prefix}")
    endif()
  endforeach()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 of "" "" FILE_LIST)
  file(INSTALL ${of_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT} RENAME copyright)
endfunction()

include(${PORT_FOLDER}/portfile.cmake)
