//! Compiles the programs of `bpf/` and writes their skeletons to `OUT_DIR`.
//!
//! Nothing that is generated is kept in the repository, and `abi.h` has no other bindings than the skeletons'.

use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let sources = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../bpf").canonicalize()?;
    println!("cargo:rerun-if-changed={}", sources.display());
    let include = |folder: &str| format!("-I{}", sources.join(folder).display());
    // Line numbers go into the programs with the paths of their files, which are not to say where they were compiled.
    // An absolute one, because some versions of clang put their folder before others.
    let paths = format!("-ffile-prefix-map={}=/bpf", sources.display());
    let arguments = [&include("include"), &include("shim"), &paths, "-mcpu=v3", "-Wall", "-Werror"];
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for name in ["socket", "packet", "xdp", "udp_iter"] {
        SkeletonBuilder::new()
            .source(sources.join(format!("{name}.bpf.c")))
            .clang_args(arguments)
            .build_and_generate(out.join(format!("{name}.skel.rs")))?;
    }
    Ok(())
}
