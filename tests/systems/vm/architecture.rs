//! The architectures of guests: what the emulator emulates, and how Debian and the compiler name what belongs to it.
//!
//! Invariant: the rest of this program knows only whether a guest's architecture is this machine's own, which is amd64.
//! The emulator's programs and libraries are of this machine.

use clap::ValueEnum;

/// The architecture of a guest, by Debian's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

/// An emulated machine.
#[derive(Debug)]
pub(crate) struct Hardware {
    /// The program and the package that emulate it.
    pub(crate) emulator: &'static str,
    pub(crate) package: &'static str,
    pub(crate) arguments: &'static [&'static str],
    /// The kernel's console, which is the first serial port.
    pub(crate) console: &'static str,
    /// The device of the second serial port, if the machine has no such port by itself.
    pub(crate) adapter: Option<&'static str>,
    /// The guest's name of the second serial port.
    pub(crate) port: &'static str,
    /// What only kernels of this architecture need to be told.
    pub(crate) kernel_arguments: &'static str,
}

/// All emulated features, except fast byte-string instructions: the kernel would use them to clear and copy memory,
/// and emulated they are the slowest way. The timer check fails on a busy machine.
const AMD64: Hardware = Hardware {
    emulator: "qemu-system-x86_64",
    package: "qemu-system-x86",
    arguments: &["-cpu", "max,la57=off,erms=off,fsrm=off"],
    console: "ttyS0",
    adapter: None,
    port: "ttyS1",
    kernel_arguments: "no_timer_check",
};

/// A processor of clouds (AWS Graviton2, Ampere Altra). It has atomic instructions, and no pointer authentication,
/// which costs an emulator half of its speed.
const ARM64: Hardware = Hardware {
    emulator: "qemu-system-aarch64",
    package: "qemu-system-arm",
    arguments: &["-machine", "virt", "-cpu", "neoverse-n1"],
    console: "ttyAMA0",
    adapter: Some("pci-serial"),
    port: "ttyS0",
    kernel_arguments: "",
};

impl Architecture {
    /// This machine's.
    pub(crate) const OWN: Self = Self::Amd64;

    pub(crate) fn is_own(self) -> bool {
        self == Self::OWN
    }

    pub(crate) fn hardware(self) -> &'static Hardware {
        match self {
            Self::Amd64 => &AMD64,
            Self::Arm64 => &ARM64,
        }
    }

    /// Debian's name.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The kernels that tests run in, the oldest first. For amd64: the oldest supported one, two stable releases, and
    /// the newest. Debian's mirrors have lost the 5.10 of arm64.
    pub(crate) fn series(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["5.10", "6.1", "6.12", "7"],
            Self::Arm64 => &["6.1", "6.12"],
        }
    }

    /// The end of a package's name with a kernel for cloud machines: the same sources with fewer drivers, so they are
    /// small and boot fast.
    pub(crate) fn flavour(self) -> &'static str {
        match self {
            Self::Amd64 => "-cloud-amd64",
            Self::Arm64 => "-cloud-arm64",
        }
    }

    /// The compiler's name of programs for it.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The folder of its libraries in Debian.
    pub(crate) fn triplet(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }
}
