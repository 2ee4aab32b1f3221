//! Compiles lanemalloc's C++ sources, which lie in `lanemalloc/`, as its CMake target `lanemalloc_prefixed` does: every function
//! is named `lane_*`, so the program's C code keeps the C library's malloc. Needs a C++20 compiler; links no C++ library.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn find_sources(folder: &Path, sources: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {}", folder.display(), e));
    for entry in entries {
        let path = entry.expect("a folder's entry").path();
        if path.is_dir() {
            find_sources(&path, sources);
        } else if path.extension().map_or(false, |e| e == "cpp") {
            sources.push(path);
        }
    }
}

// What flags the files are compiled with. An allocator is always optimised, also where the program is not, and must not be compiled
// as if the allocation functions were somebody else's.
fn set_flags(build: &mut cc::Build, architecture: &str) {
    let foreign = [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "free",
        "aligned_alloc",
        "posix_memalign",
        "memalign",
        "valloc",
        "pvalloc",
        "strdup",
        "strndup",
    ];
    build.opt_level(2).std("gnu++20").flag("-pthread").flag("-fno-math-errno");
    for name in foreign {
        build.flag(format!("-fno-builtin-{}", name));
    }
    for flag in [
        "-fno-exceptions",
        "-fno-rtti",
        "-fvisibility=hidden",
        "-fno-plt",
        "-fno-threadsafe-statics",
        "-fno-stack-protector",
        "-ftls-model=initial-exec",
        "-fPIC",
    ] {
        build.flag(flag);
    }
    // gcc's only.
    for flag in ["-fno-crossjumping", "-fno-semantic-interposition"] {
        build.flag_if_supported(flag);
    }
    if architecture == "x86_64" {
        build.flag_if_supported("-fcf-protection=none");
    }
}

fn main() {
    let system = env::var("CARGO_CFG_TARGET_OS").expect("cargo sets it");
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    if system != "linux" || !["x86_64", "aarch64"].contains(&architecture.as_str()) {
        panic!("lanemalloc runs on Linux, x86-64 or aarch64, not on {} {}", system, architecture);
    }

    let root = Path::new("lanemalloc");
    let mut sources = Vec::new();
    find_sources(&root.join("src"), &mut sources);
    sources.sort();

    let mut build = cc::Build::new();
    build.cpp(true).cpp_link_stdlib(None).warnings(false).files(&sources);
    build.include(root.join("src")).include(root.join("include"));
    build.define("_GNU_SOURCE", None).define("LANEMALLOC_PREFIXED", "1");
    build.define("LANEMALLOC_VERSION", format!("\"{}\"", env!("CARGO_PKG_VERSION")).as_str());
    if env::var_os("CARGO_FEATURE_CHECKED").is_some() {
        build.define("LANEMALLOC_CHECKED_DEFAULT", "1");
    }
    if env::var_os("CARGO_FEATURE_DCHECK").is_some() {
        build.define("LANEMALLOC_DCHECK", "1");
    } else {
        build.define("NDEBUG", None);
    }
    set_flags(&mut build, &architecture);

    // First, for it calls the other.
    let mut inline = cc::Build::new();
    inline
        .file("src/inline.c")
        .include(root.join("include"))
        .opt_level(2)
        .std("c11")
        .flag("-ftls-model=initial-exec");
    inline.compile("lanemalloc_inline");
    build.compile("lanemalloc_prefixed");

    // For crates that have C or C++ code of their own.
    let include = fs::canonicalize(root.join("include")).expect("the headers");
    println!("cargo:include={}", include.display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/inline.c");
    println!("cargo:rerun-if-changed=lanemalloc/src");
    println!("cargo:rerun-if-changed=lanemalloc/include");
}
