//! Stores kernels and tools, and downloads them.
//!
//! Invariant: a folder of the store is complete or absent: it is filled under another name and renamed. No version is
//! pinned, because point releases leave the mirrors; each series is resolved by its name.

use std::fs;
use std::path::{Path, PathBuf};

use crate::apt::{Apt, renew};
use crate::architecture::Architecture;
use crate::failure::{Failure, at};
use crate::userland::Userland;

/// The suites with the newest package of each Debian kernel series.
const KERNEL_SUITES: [&str; 5] = [
    "debian-security bullseye-security",
    "debian-security bookworm-security",
    "debian-security trixie-security",
    "debian trixie-backports",
    "debian sid",
];

const TOOL_SUITES: [&str; 2] = ["debian bookworm", "debian-security bookworm-security"];

/// The guest's shell.
const SHELL: &str = "busybox-static";

/// The packages of the programs that tests run in a guest, where this machine's own are of another architecture.
const COMPANIONS: [&str; 7] = [SHELL, "iproute2", "curl", "strace", "bind9-dnsutils", "bash", "util-linux"];

const IMAGE: &str = "linux-image-";

/// The folder below cargo's target folder that holds everything.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    /// The tested programs of the guests' architecture.
    programs: PathBuf,
    architecture: Architecture,
}

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    pub(crate) modules: PathBuf,
}

impl Store {
    /// The store of the target folder that this program was built into.
    pub(crate) fn open(architecture: Architecture) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(at("find", Path::new("vm")))?;
        // The program is in its profile's folder, so the target folder is two levels up.
        let target = program.ancestors().nth(2).unwrap_or(Path::new("/var/cache/holdfast"));
        let vm = target.join("vm");
        let (folder, programs) = if architecture.is_own() {
            (vm, target.to_owned())
        } else {
            (vm.join(architecture.debian()), target.join(architecture.target()))
        };
        Ok(Self { folder, programs: programs.join("debug"), architecture })
    }

    pub(crate) fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// A tested program that cargo has built.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// A folder for the files of one run or one build.
    pub(crate) fn scratch(&self) -> Result<PathBuf, Failure> {
        let folder = self.folder.join("scratch");
        fs::create_dir_all(&folder).map_err(at("create", &folder))?;
        Ok(folder)
    }

    pub(crate) fn tools(&self) -> Result<PathBuf, Failure> {
        let folder = self.folder.join("tools");
        let missing = || Failure::NotFetched { what: "qemu".to_owned() };
        folder.exists().then_some(folder).ok_or_else(missing)
    }

    /// The programs of a guest besides the tested ones.
    pub(crate) fn userland(&self) -> Result<Userland, Failure> {
        if self.architecture.is_own() {
            return Ok(Userland::of_this_machine(&self.tools()?));
        }
        let folder = self.folder.join("userland");
        if !folder.exists() {
            return Err(Failure::NotFetched { what: format!("a shell of {}", self.architecture.debian()) });
        }
        Ok(Userland::Unpacked { folder, architecture: self.architecture })
    }

    pub(crate) fn kernel(&self, series: &str) -> Result<Kernel, Failure> {
        let folder = self.kernel_folder(series);
        let missing = || Failure::NotFetched { what: format!("kernel {series}") };
        let modules = [folder.join("usr/lib/modules"), folder.join("lib/modules")];
        let modules = modules.iter().find_map(|folder| only_entry(folder)).ok_or_else(missing)?;
        let packed = only_entry_named(&folder.join("boot"), "vmlinuz-");
        let image = packed.or_else(|| Some(modules.join("vmlinuz")).filter(|path| path.exists()));
        Ok(Kernel { image: image.ok_or_else(missing)?, modules })
    }

    /// Downloads what is absent; returns a line for each series.
    pub(crate) fn fetch(&self, series: &[String]) -> Result<Vec<String>, Failure> {
        if self.tools().is_err() {
            // The emulator brings its firmware and its own libraries, including the C library.
            let packages = [self.architecture.hardware().package, SHELL];
            self.fetch_whole("tools", Architecture::OWN, &packages)?;
        }
        if self.userland().is_err() {
            self.fetch_whole("userland", self.architecture, &COMPANIONS)?;
        }
        let absent: Vec<&String> = series.iter().filter(|series| self.kernel(series).is_err()).collect();
        if !absent.is_empty() {
            self.fetch_kernels(&absent)?;
        }
        series.iter().map(|series| Ok(format!("{series}\t{}", self.describe(series)?))).collect()
    }

    fn fetch_whole(&self, name: &str, of: Architecture, packages: &[&str]) -> Result<(), Failure> {
        let apt = Apt::read(&self.folder.join(format!("apt-{name}")), &TOOL_SUITES, of)?;
        self.fill(&self.folder.join(name), |folder| apt.unpack_whole(packages, folder))
    }

    fn fetch_kernels(&self, series: &[&String]) -> Result<(), Failure> {
        let apt = Apt::read(&self.folder.join("apt-kernels"), &KERNEL_SUITES, self.architecture)?;
        let names = apt.names("linux-")?;
        for series in series {
            let packages = packages(series, &names, self.architecture.flavour())?;
            self.fill(&self.kernel_folder(series), |folder| apt.unpack(&packages, folder))?;
        }
        Ok(())
    }

    fn fill(&self, folder: &Path, fill: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<(), Failure> {
        let unfinished = folder.with_extension("unfinished");
        renew(&unfinished)?;
        fill(&unfinished)?;
        fs::rename(&unfinished, folder).map_err(at("rename into place", folder))
    }

    /// A kernel's full version.
    pub(crate) fn describe(&self, series: &str) -> Result<String, Failure> {
        let kernel = self.kernel(series)?;
        Ok(kernel.modules.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }

    fn kernel_folder(&self, series: &str) -> PathBuf {
        self.folder.join("kernels").join(series.replace('.', "-"))
    }
}

fn only_entry(folder: &Path) -> Option<PathBuf> {
    only_entry_named(folder, "")
}

fn only_entry_named(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.next().map(|entry| entry.path())
}

/// The packages of a series' newest kernel.
fn packages(series: &str, names: &[String], flavour: &str) -> Result<Vec<String>, Failure> {
    let mut known: Vec<&str> = names.iter().filter_map(|name| version(name, flavour)).collect();
    known.sort_by_key(|version| numbers(version));
    let Some(newest) = known.iter().rfind(|version| is_of(version, series)) else {
        return Err(Failure::NoSuchKernel { series: series.to_owned(), known: known.join(", ") });
    };
    // Newer packages split the image and the modules.
    let parts: Vec<String> = ["binary", "modules", "base"]
        .iter()
        .map(|part| format!("linux-{part}-{newest}{flavour}"))
        .filter(|name| names.contains(name))
        .collect();
    let is_divided = parts.iter().any(|part| part.starts_with("linux-modules-"));
    Ok(if is_divided { parts } else { vec![format!("{IMAGE}{newest}{flavour}")] })
}

/// `6.1.0-56` of `linux-image-6.1.0-56-cloud-amd64`; nothing for other packages.
fn version<'a>(name: &'a str, flavour: &str) -> Option<&'a str> {
    let version = name.strip_prefix(IMAGE)?.strip_suffix(flavour)?;
    version.starts_with(|c: char| c.is_ascii_digit()).then_some(version)
}

fn is_of(version: &str, series: &str) -> bool {
    version.strip_prefix(series).is_some_and(|rest| rest.starts_with(['.', '-', '+']))
}

/// The numbers of a version in order; the separators do not order kernels.
fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 10] = [
        "linux-image-6.1.0-9-cloud-amd64",
        "linux-image-6.1.0-56-cloud-amd64",
        "linux-image-6.1.0-58-cloud-arm64",
        "linux-image-6.1.0-57-cloud-amd64-unsigned",
        "linux-image-6.12.95+deb12-cloud-amd64",
        "linux-image-cloud-amd64",
        "linux-image-7.2.13+deb14-cloud-amd64",
        "linux-binary-7.2.13+deb14-cloud-amd64",
        "linux-modules-7.2.13+deb14-cloud-amd64",
        "linux-modules-6.1.0-56-amd64",
    ];

    #[track_caller]
    fn check(series: &str, expected: &[&str]) {
        let names: Vec<String> = NAMES.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(packages(series, &names, "-cloud-amd64").unwrap(), expected, "of {series}");
    }

    #[test]
    fn the_newest_package_of_a_series_is_taken() {
        check("6.1", &["linux-image-6.1.0-56-cloud-amd64"]);
        check("6.12", &["linux-image-6.12.95+deb12-cloud-amd64"]);
        check("6", &["linux-image-6.12.95+deb12-cloud-amd64"]);
    }

    #[test]
    fn a_split_kernel_is_taken_with_its_parts() {
        let parts = ["linux-binary-7.2.13+deb14-cloud-amd64", "linux-modules-7.2.13+deb14-cloud-amd64"];
        check("7", &parts);
        check("7.2", &parts);
    }

    #[test]
    fn a_kernel_is_of_the_guests_architecture() {
        let names = NAMES.map(str::to_owned);
        assert_eq!(packages("6.1", &names, "-cloud-arm64").unwrap(), ["linux-image-6.1.0-58-cloud-arm64"]);
    }

    #[test]
    fn an_unknown_series_names_the_known_ones() {
        let names: Vec<String> = NAMES.iter().map(|&name| name.to_owned()).collect();
        let error = packages("5.10", &names, "-cloud-amd64").unwrap_err().to_string();
        assert!(error.contains("5.10") && error.contains("6.1.0-56, 6.12.95+deb12"), "{error}");
    }
}
