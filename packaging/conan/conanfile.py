"""The recipe of Conan 2 for lanemalloc: the libraries, headers and CMake files, as installed.

conan create packaging/conan --build=missing
"""

from pathlib import Path

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class Lanemalloc(ConanFile):
    name = "lanemalloc"
    description = "A memory allocator for programs with many threads"
    license = "Apache-2.0"
    topics = ("allocator", "malloc", "memory")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False]}  # noqa: RUF012  (Conan's form)
    default_options = {"shared": True}  # noqa: RUF012

    @property
    def _sources(self):
        return Path(self.recipe_folder).parent.parent

    def set_version(self):
        text = load(self, str(self._sources / "CMakeLists.txt"))
        self.version = text.split("project(lanemalloc VERSION ", 1)[1].split()[0]

    def export_sources(self):
        for name in ("CMakeLists.txt", "LICENSE", "cmake/*", "docs/*", "include/*", "src/*", "tools/*"):
            copy(self, name, str(self._sources), self.export_sources_folder)

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            from conan.errors import ConanInvalidConfiguration

            raise ConanInvalidConfiguration("lanemalloc is for Linux on x86-64 and aarch64")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.variables["LANEMALLOC_TOOL"] = False
        # What hits compile to is the project's own choice, in every build type.
        toolchain.cache_variables["CMAKE_BUILD_TYPE"] = "Release"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, str(Path(self.package_folder) / "licenses"))

    def package_info(self):
        # The package brings its own CMake files, with all four targets.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/lanemalloc"]
        self.cpp_info.set_property("pkg_config_name", "lanemalloc")
        self.cpp_info.libs = ["lanemalloc"]
        self.cpp_info.system_libs = ["pthread", "dl"]
