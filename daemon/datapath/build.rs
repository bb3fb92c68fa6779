//! Compiles the programs of `bpf/` and writes their skeletons to `OUT_DIR`.
//!
//! The repository contains nothing generated, and the skeletons are the only bindings of `abi.h`.

use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let sources = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../bpf").canonicalize()?;
    println!("cargo:rerun-if-changed={}", sources.display());
    let include = |folder: &str| format!("-I{}", sources.join(folder).display());
    // The programs' line numbers contain the paths of their files, which must not reveal the build folder. The path is
    // absolute, because some versions of clang prepend their folder to others.
    let paths = format!("-ffile-prefix-map={}=/bpf", sources.display());
    let arguments = [&include("include"), &include("shim"), &paths, "-mcpu=v3", "-Wall", "-Werror"];
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut build = DefaultHasher::new();
    for name in ["socket", "packet", "xdp", "udp_iter", "tcp_reset"] {
        let object = out.join(format!("{name}.bpf.o"));
        SkeletonBuilder::new()
            .source(sources.join(format!("{name}.bpf.c")))
            .clang_args(arguments)
            .obj(&object)
            .build_and_generate(out.join(format!("{name}.skel.rs")))?;
        build.write(&std::fs::read(object)?);
    }
    // A start takes over pinned programs of exactly these objects.
    println!("cargo:rustc-env=HOLDFAST_BPF_BUILD={:016x}", build.finish());
    Ok(())
}
