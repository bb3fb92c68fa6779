//! docs/install.md, word by word: runs its blocks of commands in order, as a newcomer would.
//!
//! Only the reader's values are filled in: the repository's path. Skipped are lines that need a cluster or another
//! distribution (`dnf`), and the compilation, for which the binary of `HOLDFAST_BINARY` stands in.

use std::fs;
use std::path::Path;
use std::process::Command;

use holdfast_tests::host::Host;

use super::{CONFIG, boot, from_environment, package_version, page, property, repository};

/// The reader's clone of the repository.
const CLONE: &str = "/srv/holdfast";

const PACKAGES: &str = "From packages";
const SOURCE: &str = "From source";
const FIRST_SERVICE: &str = "The first service, without Kubernetes";

fn page() -> String {
    fs::read_to_string(repository().join("docs/install.md")).unwrap()
}

#[track_caller]
pub(crate) fn blocks<const N: usize>(section: &str) -> [String; N] {
    page::blocks(&page(), section)
}

/// Runs a line in the clone, in a shell of the host.
#[track_caller]
fn typed(host: &Host, line: &str) -> String {
    host.shell(&format!("cd {CLONE} && {line}")).unwrap().expect_success()
}

/// Copies a folder of this machine to the host.
pub(crate) fn bring(host: &Host, from: &Path, to: &str) {
    let there = host.path(to);
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    let copied = Command::new("cp").arg("--recursive").arg(from).arg(there).status().unwrap();
    assert!(copied.success(), "{}", from.display());
}

/// Follows the section to its end, and checks that the service is served.
#[track_caller]
fn follow_first_service(host: &mut Host) {
    let [server, addition, commands] = blocks(FIRST_SERVICE);
    server.lines().for_each(|line| drop(typed(host, line)));
    // Python starts faster than a reader types.
    host.wait_for("the server of the page", |host| {
        host.run(&["curl", "--silent", "127.0.0.1:8081"]).is_ok_and(|said| said.code == 0)
    })
    .unwrap();
    assert!(page().contains(&format!("Add to `{CONFIG}`")));
    let shipped = fs::read_to_string(host.path(CONFIG)).unwrap();
    host.write(CONFIG, &(shipped + &addition)).unwrap();
    let said: Vec<String> = commands.lines().map(|line| typed(host, line)).collect();
    let said_by = |line: &str| {
        let at = commands.lines().position(|found| found == line);
        &said[at.unwrap_or_else(|| panic!("the page does not say {line}: {commands}"))]
    };
    assert!(said_by("curl 10.96.0.10").contains("Directory listing"), "{said:#?}");
    let row = said_by("holdfast frontends").lines().find(|row| row.contains("static/hello")).unwrap();
    for word in ["10.96.0.10", "127.0.0.1:8081", "serving"] {
        assert!(row.contains(word), "{word}: {row}");
    }
    assert!(page().contains("`systemctl reload holdfast`"));
    typed(host, "systemctl reload holdfast");
    assert_eq!(property(host, "UnitFileState"), "enabled");
}

#[test]
fn packages_build_in_a_fresh_clone_and_install_as_the_page_says() {
    let [make, install, _compare] = blocks(PACKAGES);
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new("sh")
        .args(["-euc", &make.replace("THIS-REPOSITORY", repository().to_str().unwrap())])
        .current_dir(folder.path())
        .env("HOLDFAST_BINARY", from_environment("HOLDFAST_BINARY"))
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let clone = folder.path().join("holdfast");
    let promised: Vec<&str> = make.lines().filter_map(|line| Some(line.split_once("# ")?.1)).collect();
    assert_eq!(promised.len(), 2, "{make}");
    let version = package_version(env!("CARGO_PKG_VERSION"));
    for file in promised.iter().map(|file| file.replace("VERSION", &version)) {
        assert!(clone.join(&file).is_file(), "{file}");
    }

    let mut host = boot();
    bring(&host, &clone.join("target/packages"), &format!("{CLONE}/target/packages"));
    typed(&host, install.lines().find(|line| line.starts_with("apt ")).unwrap());
    follow_first_service(&mut host);
}

#[test]
fn the_sources_are_installed_as_the_page_says() {
    let [commands] = blocks(SOURCE);
    let mut host = boot();
    for name in ["contrib", "config.example.toml"] {
        bring(&host, &repository().join(name), &format!("{CLONE}/{name}"));
    }
    bring(&host, &from_environment("HOLDFAST_BINARY"), &format!("{CLONE}/target/release/holdfast"));
    let installs = commands.strip_prefix("make build\n").unwrap();
    installs.lines().for_each(|line| drop(typed(&host, line)));
    follow_first_service(&mut host);
}
