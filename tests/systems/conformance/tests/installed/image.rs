//! The image that `make image` builds.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::page::repository;

fn output(command: &mut Command) -> String {
    let said = command.output().unwrap();
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).unwrap()
}

fn make(folder: &Path, name: &str) -> Vec<u8> {
    let (binary, file) = (folder.join("binary"), folder.join(name));
    fs::write(&binary, "a program").unwrap();
    let mut script = Command::new(repository().join("scripts/package-image.sh"));
    script.args([&binary, &file]).args(["1.2.3", "amd64"]).env("SOURCE_DATE_EPOCH", "1700000000");
    output(&mut script);
    fs::read(file).unwrap()
}

#[test]
fn equal_programs_give_equal_images_with_correct_digests() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(make(folder, "a.tar") == make(folder, "b.tar"), "two images of one program differ");
    output(Command::new("tar").current_dir(folder).args(["-xf", "a.tar"]));
    let index = fs::read_to_string(folder.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let name = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
    assert_eq!(name, "holdfast.io/holdfast:1.2.3");
    let blobs: Vec<_> =
        fs::read_dir(folder.join("blobs/sha256")).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(blobs.len(), 3, "a layer, its configuration, the manifest");
    for blob in blobs {
        let sum = output(Command::new("sha256sum").arg(&blob));
        assert_eq!(sum.split(' ').next(), blob.file_name().unwrap().to_str());
    }
}
