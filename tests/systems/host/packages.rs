//! The packages themselves: their contents, the distributions' own checkers, and the .rpm on a host.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{
    CONFIG, First, Next, address, boot, config, from_environment, package, property, repository, who_answers,
};

/// The limit of a download by each of ten thousand nodes. Code that is optimised for size takes 15 % less of it, and a
/// third more of the processor for each change of a service.
const PACKAGE_BYTES_MAX: u64 = 15 << 19;

/// The output of a program of this machine that must succeed.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(repository()).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

#[test]
fn the_packages_are_small() {
    for name in [First.deb(), First.rpm()] {
        let size = fs::metadata(package(&name)).unwrap().len();
        assert!(size <= PACKAGE_BYTES_MAX, "{name}: {size}");
    }
}

#[test]
fn both_packages_carry_the_licence_of_the_programs() {
    let contents = run("dpkg-deb", &["--contents", package(&First.deb()).to_str().unwrap()]);
    assert!(contents.contains("./usr/share/doc/holdfast/LICENSE-BPF"), "{contents}");
    let contents = run("rpm", &["--query", "--list", "--package", package(&First.rpm()).to_str().unwrap()]);
    assert!(contents.contains("/usr/share/licenses/holdfast/LICENSE-BPF"), "{contents}");
}

/// The relative and absolute links of a page; those to a section of itself lead nowhere else.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|to| !to.is_empty() && !to.contains("://"))
}

#[test]
fn each_link_of_an_installed_page_leads_to_an_installed_file() {
    let root = tempfile::tempdir().unwrap();
    run("dpkg-deb", &["--extract", package(&First.deb()).to_str().unwrap(), root.path().to_str().unwrap()]);
    let rpm = run("rpm", &["--query", "--list", "--package", package(&First.rpm()).to_str().unwrap()]);
    let folder = Path::new("/usr/share/doc/holdfast");
    let inside = |path: &Path| root.path().join(path.strip_prefix("/").unwrap());
    let is_installed =
        |path: &Path| inside(path).is_file() && rpm.lines().any(|line| Path::new(line) == path);
    let files = fs::read_dir(inside(folder)).unwrap().map(|it| folder.join(it.unwrap().file_name()));
    let pages: Vec<_> = files.filter(|path| path.extension().is_some_and(|it| it == "md")).collect();
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        let text = fs::read_to_string(inside(&page)).unwrap();
        let dead: Vec<_> = links(&text).filter(|to| !is_installed(&folder.join(to))).collect();
        assert!(dead.is_empty() && is_installed(&page), "{}: {dead:?}", page.display());
    }
}

#[test]
fn lintian_reports_nothing() {
    let path = package(&First.deb());
    let said = run("lintian", &["--fail-on", "error,warning", path.to_str().unwrap()]);
    assert!(!said.contains("holdfast: "), "{said}");
}

#[test]
fn rpmlint_reports_nothing() {
    let path = package(&First.rpm());
    let said = run("rpmlint", &["--config", "packaging/rpm/rpmlint.toml", path.to_str().unwrap()]);
    assert!(said.contains("0 errors, 0 warnings"), "{said}");
}

#[test]
fn the_deb_needs_no_other_package() {
    let path = package(&First.deb());
    assert_eq!(run("dpkg-deb", &["--field", path.to_str().unwrap(), "Depends"]).trim(), "");
}

#[test]
fn equal_sources_give_equal_bytes() {
    let out = tempfile::tempdir().unwrap();
    let binary = tempfile::tempdir().unwrap();
    run("dpkg-deb", &["--extract", package(&First.deb()).to_str().unwrap(), binary.path().to_str().unwrap()]);
    for (kind, name) in [("deb", First.deb()), ("rpm", First.rpm())] {
        let built = Command::new("scripts/package.sh")
            .arg(kind)
            .env("HOLDFAST_BINARY", binary.path().join("usr/bin/holdfast"))
            .env("CARGO_TARGET_DIR", out.path())
            .current_dir(repository())
            .output()
            .unwrap();
        assert!(built.status.success(), "{built:?}");
        let again = fs::read(out.path().join("packages").join(&name)).unwrap();
        assert!(again == fs::read(package(&name)).unwrap(), "{name} differs");
    }
}

#[test]
fn the_binary_contains_no_build_path() {
    let root = tempfile::tempdir().unwrap();
    run("dpkg-deb", &["--extract", package(&First.deb()).to_str().unwrap(), root.path().to_str().unwrap()]);
    let binary = fs::read(root.path().join("usr/bin/holdfast")).unwrap();
    let says = |path: &str| binary.windows(path.len()).any(|window| window == path.as_bytes());
    // Source names stay, because panics and the kernel's verifier refer to their lines.
    assert!(says("\0/bpf/socket.bpf.c\0") && says("/out/socket.skel.rs"));
    let target = from_environment("HOLDFAST_PACKAGES").parent().unwrap().to_owned();
    // The build remaps these folders to these names, wherever they are.
    for (folder, name) in [(repository(), "/holdfast"), (target.as_path(), "/target")] {
        let folder = folder.to_str().unwrap();
        assert!(folder == name || !says(&format!("{folder}/")), "{folder}");
    }
}

#[test]
fn the_man_pages_render_without_a_warning_and_name_every_command() {
    let root = tempfile::tempdir().unwrap();
    run("dpkg-deb", &["--extract", package(&First.deb()).to_str().unwrap(), root.path().to_str().unwrap()]);
    for page in ["man1/holdfast.1", "man5/holdfast.toml.5", "man8/holdfast.8"] {
        let path = root.path().join(format!("usr/share/man/{page}.gz"));
        let rendered = run("sh", &["-c", &format!("man --warnings -l {} 2>&1 >/dev/null", path.display())]);
        assert_eq!(rendered, "", "{page}");
    }
    let page = fs::read_to_string(repository().join("packaging/man/holdfast.1")).unwrap();
    let help = run(root.path().join("usr/bin/holdfast").to_str().unwrap(), &["--help"]);
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 10, "{help}");
    for name in names.iter().filter(|name| **name != "help") {
        assert!(page.contains(&format!(".It Cm {name}")), "holdfast(1) does not name {name}");
    }
}

#[test]
fn systemd_accepts_the_unit_with_a_low_exposure() {
    let host = boot();
    super::install(&host, First);
    let unit = "/usr/lib/systemd/system/holdfast.service";
    let said = host.run(&["systemd-analyze", "verify", "--man=no", unit]).unwrap();
    // systemd 247 tries to move the cgroup of its caller, and warns about that.
    let about_us = |line: &&str| !line.contains("Couldn't move remaining userspace processes");
    let lines: Vec<&str> = said.err.lines().filter(about_us).collect();
    assert_eq!((said.code, lines), (0, Vec::new()), "{said:?}");
    let version = host.run(&["systemctl", "--version"]).unwrap().expect_success();
    let version: u32 = version.split_whitespace().nth(1).unwrap().parse().unwrap();
    // Older versions cannot score a unit that is not running.
    if version >= 250 {
        let scored =
            host.run(&["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit]).unwrap();
        assert_eq!(scored.code, 0, "{scored:?}");
    }
}

#[test]
fn the_rpm_installs_serves_upgrades_and_is_removed() {
    let host = boot();
    let [first, next] = [First.rpm(), Next.rpm()];
    for name in [&first, &next] {
        host.copy(&package(name), &format!("/srv/{name}")).unwrap();
    }
    // Debian's older rpm needs this option to install, and newer ones do not have it.
    let forced = host.run(&["rpm", "--force-debian", "--version"]).unwrap().code == 0;
    let flags: &[&str] = if forced { &["--nodeps", "--force-debian"] } else { &["--nodeps"] };
    let rpm = |words: &[&str]| host.run(&[&["rpm"], flags, words].concat()).unwrap().expect_success();
    rpm(&["--install", &format!("/srv/{first}")]);
    assert_eq!(
        (property(&host, "UnitFileState").as_str(), property(&host, "ActiveState").as_str()),
        ("enabled", "inactive")
    );
    let _server = host.serve("one", address("127.0.0.1:8081")).unwrap();
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    assert_eq!(who_answers(&host), "one");
    let before = property(&host, "MainPID");
    let mut dialer = host.dial(address(super::VIP)).unwrap();
    rpm(&["--upgrade", &format!("/srv/{next}")]);
    assert_ne!(property(&host, "MainPID"), before);
    assert!(dialer.tally().unwrap().failed.is_empty());
    host.run(&["holdfast", "status"]).unwrap().expect_success();
    host.run(&["systemctl", "stop", "holdfast"]).unwrap().expect_success();
    host.run(&["holdfast", "cleanup"]).unwrap().expect_success();
    rpm(&["--erase", "holdfast"]);
    assert_eq!(who_answers(&host), "");
    assert!(!host.path("/usr/bin/holdfast").exists());
}
