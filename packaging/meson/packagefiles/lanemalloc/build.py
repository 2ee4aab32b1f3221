"""Builds the libraries by CMake, and puts them where Meson wants them.

Called by: meson.build, with cmake, the folder of the sources, one to build in, and the files.
"""

import shutil
import subprocess
import sys
from pathlib import Path

cmake, sources, folder, *outputs = sys.argv[1:]
subprocess.run([cmake, "-S", sources, "-B", folder, "-DLANEMALLOC_TOOL=OFF"], check=True)
subprocess.run([cmake, "--build", folder, "--parallel"], check=True)
for output in outputs:
    shutil.copy(Path(folder) / Path(output).name, output)
