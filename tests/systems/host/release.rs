//! A release as docs/install.md has its reader verify and install it: a file by its signature, then by apt and by dnf.
//!
//! Only the reader's values are filled in: where the releases are. `scripts/test-release.sh` makes them.

use std::fs;
use std::path::PathBuf;

use holdfast_tests::bed::{Dialer, Server};
use holdfast_tests::host::Host;

use super::install_page::{blocks, bring};
use super::packages::run;
use super::{CONFIG, First, Next, address, boot, config, from_environment, package_version, property};

/// Where the host itself serves releases.
const SERVED: &str = "http://127.0.0.1:8080";

/// The folder that the reader works in.
const DOWNLOADS: &str = "/srv/downloads";

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The folder of a release that was made.
fn release(name: &str) -> PathBuf {
    from_environment("HOLDFAST_RELEASES").join(name)
}

/// A booted host without other sources of packages, and a server of the first release in it.
fn reader() -> Host {
    let mut host = boot();
    bring(&host, &release("first"), &format!("/srv/releases/{VERSION}"));
    publish(&host, "first");
    let serve = "rm -rf /etc/apt/sources.list* /etc/yum.repos.d && mkdir -p /etc/apt/sources.list.d /etc/yum.repos.d \
                 && mkdir -p /srv/downloads && systemd-run --unit releases \
                 python3 -m http.server --bind 127.0.0.1 --directory /srv/releases 8080";
    host.shell(serve).unwrap().expect_success();
    host.wait_for("the server of releases", |host| {
        host.run(&["curl", "--silent", SERVED]).is_ok_and(|said| said.code == 0)
    })
    .unwrap();
    host
}

/// Exchanges the repository that the host serves.
fn publish(host: &Host, name: &str) {
    host.shell("rm -rf /srv/releases/repository").unwrap().expect_success();
    bring(host, &release(name).join("repository"), "/srv/releases/repository");
}

/// Runs commands of the page in the reader's folder, up to the first that fails.
#[track_caller]
fn typed(host: &Host, block: &str) -> String {
    host.shell(&line(block)).unwrap().expect_success()
}

/// Runs commands that must fail.
#[track_caller]
fn refused(host: &Host, block: &str) -> String {
    host.shell(&line(block)).unwrap().expect_failure()
}

fn line(block: &str) -> String {
    format!("set -e; export HOME=/root; cd {DOWNLOADS}\n{}", filled(block))
}

fn filled(block: &str) -> String {
    block.replace("https://RELEASES", SERVED)
}

/// The page's commands that download and verify, with its other one where this Debian has no minisign.
fn download(host: &Host) -> String {
    let [_, get, other, _] = blocks("Verify a release");
    if host.run(&["test", "-e", "/usr/bin/minisign"]).unwrap().code == 0 {
        return get;
    }
    let lines = get.lines().map(|line| if line.starts_with("minisign ") { other.trim_end() } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// Downloads and verifies as the page says, and returns what installs the file.
#[track_caller]
fn verified(host: &Host) -> String {
    let [key, _, _, install] = blocks("Verify a release");
    let get = download(host);
    assert!(get.contains(&format!("/{VERSION}/")), "the page is of another version: {get}");
    typed(host, &key);
    let said = typed(host, &get);
    let is_signed = |words: &str| said.contains(words);
    assert!(
        is_signed(&format!("Trusted comment: holdfast {VERSION}")) || is_signed("Signature Verified"),
        "{said}"
    );
    for file in [First.deb().as_str(), "holdfast-packages.asc"] {
        assert!(said.contains(&format!("{file}: OK")), "{file}: {said}");
    }
    install
}

fn installed(host: &Host) -> String {
    host.run(&["dpkg-query", "--show", "--showformat", "${Version}", "holdfast"]).unwrap().expect_success()
}

/// Starts the installed daemon with one service, and clients that dial it all the time.
fn serve(host: &Host) -> (Server, Dialer) {
    let server = host.serve("one", address("127.0.0.1:8081")).unwrap();
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    (server, host.dial(address(super::VIP)).unwrap())
}

#[test]
fn a_release_is_verified_and_then_installed_as_the_page_says() {
    let host = reader();
    let install = verified(&host);
    let folder = format!("/srv/releases/{VERSION}");
    typed(&host, &format!("cd {folder} && sha256sum --check --quiet SHA256SUMS"));
    typed(&host, &install);
    assert_eq!(installed(&host), package_version(VERSION));
    assert_eq!(property(&host, "UnitFileState"), "enabled");

    let get = download(&host);
    let checks: Vec<&str> = get.lines().filter(|line| !line.starts_with("curl ")).collect();
    typed(&host, &format!("cp SHA256SUMS sums; echo >>{}", First.deb()));
    refused(&host, checks[1]);
    typed(&host, "sed -i '1s/^./x/' SHA256SUMS");
    assert!(refused(&host, checks[0]).to_lowercase().contains("signature verification failed"));
    typed(&host, "cp sums SHA256SUMS");
    typed(&host, checks[0]);
}

#[test]
fn the_sums_name_every_file_of_a_release() {
    let sums = fs::read_to_string(release("first").join("SHA256SUMS")).unwrap();
    for entry in fs::read_dir(release("first")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_listed = sums.lines().any(|line| line.ends_with(&format!("  {name}")));
        let is_of_signatures = ["SHA256SUMS", "SHA256SUMS.minisig", "repository"].contains(&name.as_str());
        assert_ne!(is_listed, is_of_signatures, "{name}");
    }
}

#[test]
fn the_binary_of_a_release_is_installed_as_the_page_says() {
    let host = reader();
    let [commands] = blocks("From source");
    let name = format!("holdfast-{VERSION}-linux-amd64");
    typed(
        &host,
        &format!(
            "curl --silent --fail {SERVED}/{VERSION}/{name}.tar.gz | tar -xz && cp {name}/holdfast /usr/bin"
        ),
    );
    let rest: Vec<&str> = commands.lines().skip(2).collect();
    typed(&host, &format!("cd {name}\n{}", rest.join("\n")));
    let _clients = serve(&host);
    assert_eq!(super::who_answers(&host), "one");
}

#[test]
fn apt_installs_upgrades_and_goes_back_under_traffic() {
    let host = reader();
    verified(&host);
    let [install, change] = blocks("With apt");
    typed(&host, &install);
    assert_eq!(installed(&host), package_version(VERSION));
    let (_server, mut dialer) = serve(&host);
    publish(&host, "next");
    for (line, version) in change.lines().zip([Next, First]) {
        typed(&host, line);
        assert_eq!(installed(&host), package_version(&version.number()), "{line}");
        super::life::check_dials(&mut dialer, line);
    }
}

#[test]
fn apt_refuses_what_the_key_has_not_signed() {
    let host = reader();
    verified(&host);
    let [install, _] = blocks("With apt");
    let pool = "/srv/releases/repository/deb";
    typed(&host, &format!("printf x | dd of={pool}/pool/{} bs=1 seek=4000 conv=notrunc", First.deb()));
    assert!(refused(&host, &install).contains("Hash Sum mismatch"));
    let suite = format!("{pool}/dists/candidate");
    typed(&host, &format!("rm -rf /var/lib/apt/lists; sed -i 's/^Label: .*/Label: x/' {suite}/InRelease"));
    assert!(refused(&host, "apt-get update").contains("not signed"));
    typed(&host, &format!("rm -rf /var/lib/apt/lists {suite}/InRelease {suite}/Release.gpg"));
    assert!(refused(&host, "apt-get update").contains("not signed"));
}

/// Installs what a distribution of dnf has, and Debian's list of .rpm packages does not.
fn bring_base(host: &Host) {
    let folder = tempfile::tempdir().unwrap();
    let text = "Name: base\nVersion: 1\nRelease: 1\nSummary: What a distribution has\nLicense: none\nBuildArch: noarch\n\
                Provides: /bin/sh\n%description\n%files\n";
    fs::write(folder.path().join("base.spec"), text).unwrap();
    let to = folder.path().to_str().unwrap();
    run("rpmbuild", &["-bb", "--quiet", "--define", &format!("_topdir {to}"), &format!("{to}/base.spec")]);
    host.copy(&folder.path().join("RPMS/noarch/base-1-1.noarch.rpm"), "/srv/base.rpm").unwrap();
    typed(host, "dnf install --assumeyes --disablerepo='*' --nogpgcheck /srv/base.rpm");
}

/// Follows the page up to the command that installs, which it returns with the other two.
fn prepare_dnf(host: &Host) -> [String; 3] {
    verified(host);
    bring_base(host);
    let [key, repository, install, change] = blocks("With dnf");
    typed(host, &key);
    host.write("/etc/yum.repos.d/holdfast.repo", &filled(&repository)).unwrap();
    let (upgrade, back) = change.trim_end().split_once('\n').unwrap();
    [install, upgrade.to_owned(), back.to_owned()]
}

#[test]
fn dnf_installs_upgrades_and_goes_back_under_traffic() {
    let host = reader();
    let [install, upgrade, back] = prepare_dnf(&host);
    let version = || typed(&host, "rpm --query --queryformat '%{VERSION}' holdfast");
    typed(&host, &install);
    assert_eq!(version(), package_version(VERSION));
    assert_eq!(property(&host, "UnitFileState"), "enabled");
    let (_server, mut dialer) = serve(&host);
    publish(&host, "next");
    for (line, to) in [(upgrade, Next), (back, First)] {
        typed(&host, &line);
        assert_eq!(version(), package_version(&to.number()), "{line}");
        super::life::check_dials(&mut dialer, &line);
    }
}

#[test]
fn dnf_refuses_what_the_key_has_not_signed() {
    let host = reader();
    let [install, ..] = prepare_dnf(&host);
    let suite = "/srv/releases/repository/rpm/candidate";
    typed(&host, &format!("mv {suite}/repodata/repomd.xml.asc /srv; dnf clean all"));
    refused(&host, &install);
    typed(&host, &format!("mv /srv/repomd.xml.asc {suite}/repodata; dnf clean all"));
    // The list is signed, and the package has another sum than in it.
    typed(&host, &format!("printf x | dd of={suite}/{} bs=1 seek=9000 conv=notrunc", First.rpm()));
    refused(&host, &install);
    assert_eq!(host.run(&["test", "-e", "/usr/bin/holdfast"]).unwrap().code, 1);
    // An unsigned package in a list that needs no signature.
    bring(&host, &release("again").join("repository"), "/srv/releases/unsigned");
    let repository = host.path("/etc/yum.repos.d/holdfast.repo");
    let text = fs::read_to_string(&repository).unwrap();
    let unsigned = text.replace("/repository/", "/unsigned/").replace("repo_gpgcheck=1", "repo_gpgcheck=0");
    fs::write(&repository, unsigned).unwrap();
    assert!(refused(&host, &format!("dnf clean all; {install}")).contains("is not signed"));
}
