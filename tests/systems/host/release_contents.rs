//! What a release holds: the same bytes as another build, its image and its signature, lists of parts, provenance.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::install_page::blocks;
use super::packages::run;
use super::{First, from_environment};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn release(name: &str) -> PathBuf {
    from_environment("HOLDFAST_RELEASES").join(name)
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&text(path)).unwrap()
}

fn sum(path: &Path) -> String {
    run("sha256sum", &[path.to_str().unwrap()]).split(' ').next().unwrap().to_owned()
}

/// The sums in a file of sums, by name.
fn sums(path: &Path) -> BTreeMap<String, String> {
    let text = text(path);
    let pairs = text.lines().map(|line| line.split_once("  ").unwrap());
    pairs.map(|(sum, name)| (name.to_owned(), sum.to_owned())).collect()
}

/// The folder with the image and its signature, unpacked as the page says.
fn layout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let [commands] = blocks("Verify the image");
    let unpack: Vec<&str> = commands.lines().filter(|line| !line.starts_with("cosign ")).collect();
    assert_eq!(unpack.len() + 1, commands.lines().count(), "{commands}");
    for line in unpack {
        let line = line.replace("-xf ", &format!("-xf {}/", release("first").display()));
        run("sh", &["-euc", &format!("cd {} && {line}", folder.path().display())]);
    }
    folder
}

/// The sum of what a signature of a package covers.
fn header_sum(package: &Path) -> String {
    let format = ["--nosignature", "--queryformat", "%{SHA256HEADER}"];
    run("rpm", &[&["--query", "--package"], &format[..], &[package.to_str().unwrap()]].concat())
}

#[test]
fn two_builds_differ_by_signatures_alone() {
    let unsigned = sums(&release("again").join("UNSIGNED.sha256"));
    assert_eq!(sums(&release("first").join("UNSIGNED.sha256")), unsigned);
    assert!(unsigned.len() > 12, "{unsigned:?}");

    let signed = sums(&release("first").join("SHA256SUMS"));
    let changed: Vec<&str> =
        unsigned.iter().filter(|(name, sum)| signed[*name] != **sum).map(|(name, _)| name.as_str()).collect();
    assert_eq!(changed, [First.rpm()]);
    let [first, again] = ["first", "again"].map(|name| header_sum(&release(name).join(First.rpm())));
    assert_eq!(first, again);

    let [first, again] = ["first", "again"].map(|name| release(name).join("repository/deb"));
    let same = ["--recursive", "--exclude=InRelease", "--exclude=Release.gpg"];
    run("diff", &[&same[..], &[first.to_str().unwrap(), again.to_str().unwrap()]].concat());
}

#[test]
fn the_image_holds_an_index_and_the_signature_that_cosign_looks_for() {
    let folder = layout();
    let blob = |digest: &Value| {
        let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = folder.path().join("image/blobs/sha256").join(digest);
        assert_eq!(sum(&path), digest);
        path
    };
    let list = json(&folder.path().join("image/index.json"));
    let [image, signature] = list["manifests"].as_array().unwrap().as_slice() else { panic!("{list}") };
    assert_eq!(image["annotations"]["kind"], "dev.cosignproject.cosign/imageIndex");
    assert_eq!(image["annotations"]["org.opencontainers.image.ref.name"], VERSION);
    assert_eq!(signature["annotations"]["kind"], "dev.cosignproject.cosign/sigs");

    for manifest in json(&blob(&image["digest"]))["manifests"].as_array().unwrap() {
        assert_eq!(manifest["platform"]["os"], "linux");
        let manifest = json(&blob(&manifest["digest"]));
        blob(&manifest["config"]["digest"]);
        blob(&manifest["layers"][0]["digest"]);
    }

    let manifest = json(&blob(&signature["digest"]));
    let layer = &manifest["layers"][0];
    let payload = blob(&layer["digest"]);
    let claim = json(&payload);
    assert_eq!(claim["critical"]["image"]["docker-manifest-digest"], image["digest"]);
    let file = folder.path().join("signature");
    let base64 = layer["annotations"]["dev.cosignproject.cosign/signature"].as_str().unwrap();
    run("sh", &["-euc", &format!("echo {base64} | base64 --decode >{}", file.display())]);
    let key = release("first").join("holdfast-image.pub");
    let [key, file, payload] = [&key, &file, &payload].map(|path| path.to_str().unwrap());
    let said = run("openssl", &["dgst", "-sha256", "-verify", key, "-signature", file, payload]);
    assert!(said.contains("Verified OK"), "{said}");
}

/// Every file has a list. Those with a binary name what is linked into it, and nothing that only compiles it.
#[test]
fn each_file_has_a_list_of_its_parts() {
    let files = sums(&release("first").join("UNSIGNED.sha256"));
    let is_described = |name: &&String| !name.ends_with(".json");
    for name in files.keys().filter(is_described) {
        let list = json(&release("first").join(format!("{name}.cdx.json")));
        assert_eq!(
            (&list["bomFormat"], &list["specVersion"]),
            (&"CycloneDX".into(), &"1.5".into()),
            "{name}"
        );
        let parts = list["components"].as_array().unwrap();
        let names: BTreeSet<&str> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
        if name.ends_with("kustomize.tar.gz") || name.ends_with(".tgz") {
            assert_eq!(names.len(), 0, "{name}");
            continue;
        }
        for part in [
            "libc",
            "libelf",
            "libz",
            "libbpf",
            "jemalloc",
            "rust-std",
            "holdfast-datapath",
            "libbpf-rs",
            "ring",
        ] {
            assert!(names.contains(part), "{name} lacks {part}");
        }
        for tool in ["serde_derive", "libbpf-cargo", "tempfile", "cc"] {
            assert!(!names.contains(tool), "{name} has {tool}");
        }
        for part in parts.iter().filter(|part| part["type"] == "library" && part["name"] != "holdfast-bpf") {
            assert!(part["version"].is_string() && part["licenses"][0]["expression"].is_string(), "{part}");
        }
    }
}

/// The sum in the list is that of the binary which the package brings.
#[test]
fn the_list_of_parts_is_that_of_the_binary_in_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let package = release("first").join(First.deb());
    run("dpkg-deb", &["--extract", package.to_str().unwrap(), folder.path().to_str().unwrap()]);
    let list = json(&release("first").join(format!("{}.cdx.json", First.deb())));
    let parts = list["components"].as_array().unwrap();
    let binary = parts.iter().find(|part| part["type"] == "file").unwrap();
    assert_eq!(binary["hashes"][0]["content"], sum(&folder.path().join("usr/bin/holdfast")));
}

#[test]
fn the_provenance_names_each_file_and_what_it_was_made_from() {
    let name = format!("holdfast-{VERSION}.provenance.json");
    let statement = json(&release("first").join(&name));
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let mut files = sums(&release("first").join("UNSIGNED.sha256"));
    assert!(files.remove(&name).is_some());
    let subject = |it: &Value| {
        (it["name"].as_str().unwrap().to_owned(), it["digest"]["sha256"].as_str().unwrap().to_owned())
    };
    let subjects: BTreeMap<String, String> =
        statement["subject"].as_array().unwrap().iter().map(subject).collect();
    assert_eq!(subjects, files);

    let build = &statement["predicate"]["buildDefinition"];
    let inputs = build["resolvedDependencies"].as_array().unwrap();
    let names: BTreeSet<&str> = inputs.iter().map(|input| input["name"].as_str().unwrap()).collect();
    for input in ["holdfast", "Cargo.lock", "libc", "libelf", "rustc", "clang", "cc"] {
        assert!(names.contains(input), "{input}: {names:?}");
    }
    // These releases were not compiled for the test, and the statement must say so.
    assert!(build["externalParameters"]["binaries"]["amd64"]["sha256"].is_string(), "{build}");
}

#[test]
fn manifests_and_chart_are_of_this_version() {
    let packed = |file: &str, member: &str| {
        run(
            "tar",
            &["--extract", "--to-stdout", "--file", release("first").join(file).to_str().unwrap(), member],
        )
    };
    let kustomize = format!("holdfast-{VERSION}-kustomize");
    let daemonset = packed(&format!("{kustomize}.tar.gz"), &format!("{kustomize}/daemonset.yaml"));
    assert!(daemonset.contains(&format!("image: holdfast.io/holdfast:{VERSION}\n")), "{daemonset}");
    let chart = packed(&format!("holdfast-{VERSION}.tgz"), "holdfast/Chart.yaml");
    assert!(chart.contains(&format!("\nversion: {VERSION}\n")), "{chart}");
}
