//! The images that nodes have before they start: all that Kubernetes' tests use, made from the built programs and the
//! Debian root, as one OCI layout.
//!
//! Invariant: nothing is pulled. Each image has its name from `e2e.test --list-images`. Stand-ins: nginx is agnhost's
//! server (the tests need a running pod), and agnhost has Debian in place of Alpine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::ClusterError;
use crate::error::{at, write};
use crate::program::said;

const COREDNS: &str = "holdfast.test/coredns:1";

const PATHS: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The tests expect a wget that tries once; GNU's would try 20 times.
const WGETRC: &str = "tries = 1\n";

/// A file in the folder of blobs.
#[derive(Clone, Debug)]
struct Blob {
    digest: String,
    size: u64,
}

/// A layout that grows with each image.
struct Layout<'a> {
    built: &'a Path,
    folder: PathBuf,
    manifests: Vec<Value>,
}

/// Writes `images.tar` and `pause.name` from the parts in `built`.
pub fn write_images(built: &Path) -> Result<(), ClusterError> {
    let names = said(Command::new(built.join("bin/e2e.test")).arg("--list-images"), "")?;
    let names: Vec<&str> = names.split_whitespace().collect();
    let folder = tempfile::tempdir_in(built).map_err(at("create a folder in", built))?;
    let mut layout = Layout { built, folder: folder.path().to_owned(), manifests: Vec::new() };
    layout.fill(&names)?;
    layout.finish(&built.join("images.tar"))?;
    let pause = named(&names, "pause").next().ok_or_else(|| ClusterError::Malformed {
        from: "e2e.test --list-images".to_owned(),
        why: "it names no pause".to_owned(),
    })?;
    write(&built.join("pause.name"), pause)
}

/// The names with this last part, whatever their registry and version.
fn named<'a>(names: &'a [&'a str], short: &'a str) -> impl Iterator<Item = &'a str> {
    let is_it = move |name: &&&str| {
        let path = name.rsplit_once(':').map_or(**name, |(path, _)| path);
        path.rsplit('/').next() == Some(short)
    };
    names.iter().filter(is_it).copied()
}

impl Layout<'_> {
    fn fill(&mut self, names: &[&str]) -> Result<(), ClusterError> {
        let base = self.debian()?;
        let agnhost = vec![base.clone(), self.agnhost()?];
        let single = |program: &str| vec![(program.to_owned(), self.built.join("bin").join(program))];
        let pause = self.programs("pause", &single("pause"))?;
        let issue = self.programs("issue", &single("regression-issue-74839"))?;
        let coredns = self.programs("coredns", &single("coredns"))?;
        let busybox = self.busybox()?;
        let debian = ["distroless-iptables", "glibc-dns-testing", "ipc-utils"];
        let mut wanted: Vec<(&str, Vec<Blob>, Value, Value)> = vec![
            ("agnhost", agnhost.clone(), json!(["/agnhost"]), json!(["pause"])),
            ("nginx", agnhost, json!(["/agnhost"]), json!(["netexec", "--http-port=80"])),
            ("busybox", vec![busybox], Value::Null, json!(["sh"])),
            ("pause", vec![pause], json!(["/pause"]), Value::Null),
            ("regression-issue-74839", vec![issue], json!(["/regression-issue-74839"]), Value::Null),
        ];
        wanted.extend(debian.map(|short| (short, vec![base.clone()], Value::Null, json!(["sh"]))));
        for (short, layers, entrypoint, arguments) in &wanted {
            named(names, short).try_for_each(|name| self.image(name, layers, entrypoint, arguments))?;
        }
        self.image(COREDNS, &[coredns], &json!(["/coredns"]), &Value::Null)
    }

    /// The machines' root is the base of most images too.
    fn debian(&self) -> Result<Blob, ClusterError> {
        let root = self.built.join("root");
        self.layer(&root, &["--exclude=./dev/*", "--exclude=./var/cache/*", "--exclude=./usr/sbin/runc"])
    }

    fn agnhost(&self) -> Result<Blob, ClusterError> {
        let bin = self.built.join("bin");
        let stage = self.programs_in(
            "agnhost",
            &[
                ("agnhost".to_owned(), bin.join("agnhost")),
                ("coredns".to_owned(), bin.join("coredns")),
                ("localhost.crt".to_owned(), self.built.join("porter/localhost.crt")),
                ("localhost.key".to_owned(), self.built.join("porter/localhost.key")),
            ],
        )?;
        write(&stage.join("etc/wgetrc"), WGETRC)?;
        link("agnhost", &stage.join("agnhost-2"))?;
        folder_of(&stage.join("uploads"), 0o755)?;
        self.layer(&stage, &[])
    }

    fn busybox(&self) -> Result<Blob, ClusterError> {
        let program = self.built.join("root/bin/busybox");
        let applets = said(Command::new(&program).arg("--list"), "")?;
        let stage = self.programs_in("busybox", &[("bin/busybox".to_owned(), program)])?;
        for applet in applets.split_whitespace().filter(|applet| *applet != "busybox") {
            link("busybox", &stage.join("bin").join(applet))?;
        }
        [("etc", 0o755), ("root", 0o755), ("tmp", 0o1777)]
            .into_iter()
            .try_for_each(|(folder, mode)| folder_of(&stage.join(folder), mode))?;
        self.layer(&stage, &[])
    }

    fn programs(&self, stage: &str, files: &[(String, PathBuf)]) -> Result<Blob, ClusterError> {
        self.layer(&self.programs_in(stage, files)?, &[])
    }

    /// Copies these files into a folder.
    fn programs_in(&self, stage: &str, files: &[(String, PathBuf)]) -> Result<PathBuf, ClusterError> {
        let stage = self.folder.join("stages").join(stage);
        for (name, from) in files {
            let to = stage.join(name);
            folder_of(to.parent().unwrap_or(&stage), 0o755)?;
            fs::copy(from, &to).map_err(at("copy", from))?;
        }
        Ok(stage)
    }

    fn layer(&self, root: &Path, more: &[&str]) -> Result<Blob, ClusterError> {
        let file = self.folder.join("layer.tar");
        let mut tar = Command::new("tar");
        tar.args(["--numeric-owner", "--owner=0", "--group=0", "--sort=name", "--mtime=@0"]).args(more);
        said(tar.arg("-C").arg(root).arg("-cf").arg(&file).arg("."), "")?;
        self.adopt(&file)
    }

    /// Adds a file as a blob.
    fn adopt(&self, file: &Path) -> Result<Blob, ClusterError> {
        let sum = said(Command::new("sha256sum").arg(file), "")?;
        let digest = sum.split(' ').next().unwrap_or_default().to_owned();
        let size = fs::metadata(file).map_err(at("read", file))?.len();
        let blobs = self.folder.join("layout/blobs/sha256");
        folder_of(&blobs, 0o755)?;
        fs::rename(file, blobs.join(&digest)).map_err(at("move", file))?;
        Ok(Blob { digest: format!("sha256:{digest}"), size })
    }

    fn document(&self, value: &Value) -> Result<Blob, ClusterError> {
        let file = self.folder.join("document.json");
        write(&file, value.to_string())?;
        self.adopt(&file)
    }

    fn image(
        &mut self,
        name: &str,
        layers: &[Blob],
        entrypoint: &Value,
        arguments: &Value,
    ) -> Result<(), ClusterError> {
        let layers_of = |kind: &str| layers.iter().map(|blob| described(kind, blob)).collect::<Vec<_>>();
        let digests: Vec<&str> = layers.iter().map(|blob| blob.digest.as_str()).collect();
        let config = self.document(&json!({
            "architecture": architecture(), "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": digests},
            "config": {"Env": [PATHS], "Entrypoint": entrypoint, "Cmd": arguments},
        }))?;
        let manifest = self.document(&json!({
            "schemaVersion": 2, "mediaType": kind_of("manifest.v1+json"),
            "config": described("config.v1+json", &config), "layers": layers_of("layer.v1.tar"),
        }))?;
        self.manifests.push(json!({
            "mediaType": kind_of("manifest.v1+json"), "digest": manifest.digest, "size": manifest.size,
            "annotations": {"io.containerd.image.name": name},
        }));
        Ok(())
    }

    fn finish(&self, to: &Path) -> Result<(), ClusterError> {
        let layout = self.folder.join("layout");
        let index =
            json!({"schemaVersion": 2, "mediaType": kind_of("index.v1+json"), "manifests": self.manifests});
        write(&layout.join("index.json"), index.to_string())?;
        write(&layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let new = to.with_extension("new");
        said(Command::new("tar").arg("-C").arg(&layout).arg("-cf").arg(&new).arg("."), "")?;
        fs::rename(&new, to).map_err(at("move", &new))
    }
}

fn kind_of(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

fn described(kind: &str, blob: &Blob) -> Value {
    json!({"mediaType": kind_of(kind), "digest": blob.digest, "size": blob.size})
}

/// OCI's name of this build's architecture.
fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn link(target: &str, at_path: &Path) -> Result<(), ClusterError> {
    symlink(target, at_path).map_err(at("create", at_path))
}

fn folder_of(path: &Path, mode: u32) -> Result<(), ClusterError> {
    fs::create_dir_all(path).map_err(at("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at("set the mode of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_the_last_part_of_its_name() {
        let names = ["registry.k8s.io/e2e-test-images/agnhost:2.63", "r.io/busybox:1", "r.io/not-busybox:2"];
        assert_eq!(named(&names, "busybox").collect::<Vec<_>>(), ["r.io/busybox:1"]);
        assert_eq!(named(&names, "agnhost").count(), 1);
    }
}
