//! `make run` removes everything that it made, however impatient its user is.
//!
//! Runs the real script with stand-ins for the slow parts: the build, the daemon and its backends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A daemon that ends slowly, so that a user may press Ctrl-C again.
const SLOW: &str = "#!/bin/sh\ntrap 'sleep 2; exit 0' TERM\nwhile :; do sleep 0.1; done\n";

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The folder that this line of the demo promises to remove, if it does.
fn folder_of(line: &str) -> Option<PathBuf> {
    line.strip_prefix("Ctrl-C ends it and removes ")?.strip_suffix('.').map(PathBuf::from)
}

/// The path of the demo's cgroup; `None`: no cgroup file system is mounted.
fn cgroup_of(folder: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let root = mounts.find(|fields| fields[2] == "cgroup2")?[1].to_owned();
    Some(Path::new(&root).join(folder.file_name()?))
}

#[test]
fn a_second_ctrl_c_still_removes_all_of_the_demo() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name);
    for (name, text) in [
        ("bin/cargo", "#!/bin/sh\n"),
        ("bin/curl", "#!/bin/sh\n"),
        ("target/release/holdfast", SLOW),
        ("target/release/echo_backend", "#!/bin/sh\nexec sleep 600\n"),
    ] {
        script(&path(name), text);
    }
    fs::create_dir(path("tmp")).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // A background runner makes its children ignore Ctrl-C, and a shell cannot undo that.
    let mut demo = Command::new("env")
        .args(["--default-signal=INT", "scripts/run.sh"])
        .current_dir(root)
        .env("PATH", format!("{}:{}", path("bin").display(), std::env::var("PATH").unwrap()))
        .env("CARGO_TARGET_DIR", path("target"))
        .env("TMPDIR", path("tmp"))
        .stdout(Stdio::piped())
        // A process group of its own, as in a terminal: Ctrl-C reaches all processes of the demo.
        .process_group(0)
        .spawn()
        .unwrap();
    let group = Pid::from_raw(i32::try_from(demo.id()).unwrap());
    let lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let folder = lines.map_while(Result::ok).find_map(|line| folder_of(&line)).unwrap();
    assert!(folder.exists());
    let begun = Instant::now();
    while demo.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the demo does not end");
        // A process that has ended needs no signal.
        let _ = killpg(group, Signal::SIGINT);
        sleep(Duration::from_millis(300));
    }
    assert!(!folder.exists(), "{} is left", folder.display());
    let cgroup = cgroup_of(&folder).filter(|cgroup| cgroup.exists());
    assert_eq!(cgroup, None);
}
