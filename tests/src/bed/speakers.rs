//! FRR, BIRD, keepalived and dnsmasq in places of a bed, from Debian packages that `scripts/routers.sh` unpacks.
//!
//! Invariant: their files, users and folders are mounted over those of the bed alone, so nothing on the machine
//! changes. Dropping a value ends its programs.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fabric::SOON;
use super::{Bed, BedError, Location, at, spawn, succeed, wait};

/// The variable with the folder of the unpacked packages.
const PACKAGES: &str = "HOLDFAST_ROUTERS";

/// A script for the bed's mounts: the packages over its files, tmpfs where they write, and FRR's users.
const LAY: &str = r"
mount -t tmpfs none /run
mount -t tmpfs none /var/tmp
for folder in usr etc; do
	mkdir -p /run/written/$folder /run/work/$folder
	mount -t overlay none /$folder \
		-o lowerdir=$1/$folder:/$folder,upperdir=/run/written/$folder,workdir=/run/work/$folder
done
echo 'frr:x:2990:2990::/run/frr:/usr/sbin/nologin' >>/etc/passwd
echo 'frr:x:2990:' >>/etc/group
echo 'frrvty:x:2991:frr' >>/etc/group
mkdir /run/bird /run/keepalived
install -d -o frr -g frr /run/frr
";

/// How often a program's readiness is polled.
const POLL: Duration = Duration::from_millis(20);

/// How long a program may take to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A bed with the packages mounted.
#[derive(Debug)]
pub struct Speakers<'a> {
    bed: &'a Bed,
}

/// The programs started in one place.
#[derive(Debug)]
pub struct Speaker {
    children: Vec<Child>,
}

impl<'a> Speakers<'a> {
    pub fn lay(bed: &'a Bed) -> Result<Self, BedError> {
        let packages = packages()?;
        let mut command = bed.command(Location::OUTSIDE, "sh")?;
        command.args(["-ec", LAY, "sh"]).arg(packages);
        succeed(command, SOON)?;
        Ok(Self { bed })
    }

    /// The path of a bed's file from outside.
    fn file(&self, path: &str) -> PathBuf {
        self.bed.root().join(path.trim_start_matches('/'))
    }

    /// Writes a script that any user may run.
    pub fn script(&self, path: &str, text: &str) -> Result<(), BedError> {
        self.write(path, text)?;
        let file = self.file(path);
        fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).map_err(at("change", &file))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), BedError> {
        let file = self.file(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(at("create", folder))?;
        }
        fs::write(&file, text).map_err(at("write", &file))
    }

    /// Starts FRR's zebra and bgpd with the options of its own start script.
    pub fn frr(&self, place: Location<'_>, config: &str) -> Result<Speaker, BedError> {
        let name = name(place);
        self.write(&format!("/etc/frr/{name}/frr.conf"), config)?;
        self.write(&format!("/etc/frr/{name}/vtysh.conf"), "")?;
        let mut own = self.bed.command(place, "install")?;
        own.args(["-d", "-o", "frr", "-g", "frr", &format!("/run/frr/{name}")]);
        succeed(own, SOON)?;
        let mut speaker = Speaker { children: Vec::new() };
        for program in ["zebra", "bgpd"] {
            let words = ["-N", name, "-A", "127.0.0.1", "-P", "0"];
            speaker.children.push(self.start(place, &format!("/usr/lib/frr/{program}"), &words)?);
            self.wait_for(&mut speaker, place, &format!("/run/frr/{name}/{program}.vty"))?;
        }
        let mut configure = self.bed.command(place, "/usr/bin/vtysh")?;
        configure.args(["-N", name, "-b"]);
        succeed(configure, SOON)?;
        Ok(speaker)
    }

    pub fn bird(&self, place: Location<'_>, config: &str) -> Result<Speaker, BedError> {
        let name = name(place);
        let [file, socket, pid] = [
            format!("/etc/bird/{name}.conf"),
            format!("/run/bird/{name}.ctl"),
            format!("/run/bird/{name}.pid"),
        ];
        self.write(&file, config)?;
        let child = self.start(place, "/usr/sbin/bird", &["-f", "-c", &file, "-s", &socket, "-P", &pid])?;
        let mut speaker = Speaker { children: vec![child] };
        self.wait_for(&mut speaker, place, &socket)?;
        Ok(speaker)
    }

    /// Starts keepalived with VRRP alone.
    pub fn keepalived(&self, place: Location<'_>, config: &str) -> Result<Speaker, BedError> {
        let name = name(place);
        let file = format!("/etc/keepalived/{name}.conf");
        self.write(&file, config)?;
        let [pid, vrrp] = ["parent", "vrrp"].map(|of| format!("/run/keepalived/{name}-{of}.pid"));
        let words = ["--dont-fork", "--log-console", "--vrrp", "-f", &file, "-p", &pid, "-r", &vrrp];
        let child = self.start(place, "/usr/sbin/keepalived", &words)?;
        let mut speaker = Speaker { children: vec![child] };
        self.wait_for(&mut speaker, place, &vrrp)?;
        Ok(speaker)
    }

    /// Starts dnsmasq as a DNS server only.
    pub fn dnsmasq(&self, place: Location<'_>, config: &str) -> Result<Speaker, BedError> {
        let name = name(place);
        let [file, pid] = [format!("/etc/dnsmasq/{name}.conf"), format!("/run/dnsmasq-{name}.pid")];
        self.write(&file, config)?;
        let _ = fs::remove_file(self.file(&pid));
        let [file, written] = [format!("--conf-file={file}"), format!("--pid-file={pid}")];
        let words =
            ["--keep-in-foreground", "--log-facility=-", "--user=root", "--group=root", &file, &written];
        let mut speaker = Speaker { children: vec![self.start(place, "/usr/sbin/dnsmasq", &words)?] };
        self.wait_for(&mut speaker, place, &pid)?;
        Ok(speaker)
    }

    /// The output of the programs of a place.
    pub fn said(&self, place: Location<'_>) -> String {
        fs::read_to_string(self.file(&log(place))).unwrap_or_default()
    }

    fn start(&self, place: Location<'_>, program: &str, words: &[&str]) -> Result<Child, BedError> {
        let path = self.file(&log(place));
        let log = File::options().create(true).append(true).open(&path).map_err(at("open", &path))?;
        let both = log.try_clone().map_err(at("open", &path))?;
        let mut command = self.bed.command(place, program)?;
        spawn(command.args(words).stdin(Stdio::null()).stdout(log).stderr(both))
    }

    /// Waits for this file, which shows that the program is ready.
    fn wait_for(&self, speaker: &mut Speaker, place: Location<'_>, path: &str) -> Result<(), BedError> {
        let (file, until) = (self.file(path), Instant::now() + SOON);
        while !file.exists() {
            let is_running = speaker.children.iter_mut().all(|child| matches!(child.try_wait(), Ok(None)));
            if !is_running || Instant::now() > until {
                let who = format!("what makes {path} at {}", name(place));
                return Err(BedError::Unexpected { who, said: self.said(place) });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

fn packages() -> Result<PathBuf, BedError> {
    let folder = std::env::var_os(PACKAGES).map(PathBuf::from).filter(|folder| folder.join("usr").is_dir());
    folder.ok_or(BedError::NoSpeakers)
}

fn name(place: Location<'_>) -> &str {
    place.neighbour.unwrap_or("node")
}

fn log(place: Location<'_>) -> String {
    format!("/run/{}.log", name(place))
}

/// keepalived's child ends with it only if keepalived ends by itself.
impl Drop for Speaker {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = kill(Pid::from_raw(child.id().try_into().unwrap_or_default()), Signal::SIGTERM);
        }
        for child in &mut self.children {
            let _ = wait(child, END_LIMIT);
        }
    }
}
