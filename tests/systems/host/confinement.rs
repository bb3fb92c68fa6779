//! What confines the daemon besides its unit: AppArmor, or SELinux, as the kernel's command line says.

use std::fs;

use holdfast_tests::host::Host;

use super::property;

/// A part of the kernel that holds the daemon to a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// A host in namespaces has this machine's kernel, which may have neither.
    Nothing,
    AppArmor,
    SeLinux,
}
use Confinement::{AppArmor, Nothing, SeLinux};

/// A file of Events' meanings, which a reload reads.
const LINK_TO_PASSWORDS: &str =
    "mkdir /etc/holdfast/events.d && ln -s /etc/shadow /etc/holdfast/events.d/passwords.toml";

impl Confinement {
    /// The part that is in force; a guest must have one.
    pub(crate) fn of(host: &Host) -> Self {
        if !Host::is_around() {
            return Nothing;
        }
        if host.run(&["cat", "/sys/fs/selinux/enforce"]).unwrap().out == "1" {
            return SeLinux;
        }
        let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
        assert_eq!(enabled, "Y\n", "neither SELinux nor AppArmor is in force");
        AppArmor
    }

    /// Checks that the running daemon has the policy's label.
    pub(crate) fn check_label(self, host: &Host) {
        let label = || {
            let path = format!("/proc/{}/attr/current", property(host, "MainPID"));
            host.run(&["cat", &path]).unwrap().expect_success()
        };
        match self {
            Nothing => (),
            AppArmor => assert_eq!(label(), "holdfast (enforce)"),
            SeLinux => assert_eq!(label().trim_end_matches('\0'), "system_u:system_r:holdfast_t:s0"),
        }
    }

    /// Has the daemon read passwords, by a link in its configuration that the unit's sandbox lets it follow.
    pub(crate) fn check_denial(self, host: &mut Host) {
        if self != SeLinux {
            return;
        }
        host.shell(LINK_TO_PASSWORDS).unwrap().expect_success();
        host.run(&["systemctl", "reload", "holdfast"]).unwrap().expect_success();
        host.wait_for("a denial", |host| log(host).lines().any(is_of_passwords)).unwrap();
        host.shell("rm -r /etc/holdfast/events.d && systemctl reload holdfast").unwrap().expect_success();
    }

    /// Everything about the daemon and its files that was denied since the boot, but what `check_denial` asked for.
    pub(crate) fn denied(self, host: &Host) -> Vec<String> {
        let is_ours = |line: &str| match self {
            Nothing => false,
            AppArmor => line.contains("apparmor=\"DENIED\"") && line.contains("profile=\"holdfast\""),
            SeLinux => is_denial(line) && line.contains("holdfast") && !is_of_passwords(line),
        };
        log(host).lines().filter(|line| is_ours(line)).map(str::to_owned).collect()
    }
}

fn is_denial(line: &str) -> bool {
    line.contains("avc:  denied")
}

fn is_of_passwords(line: &str) -> bool {
    is_denial(line) && line.contains(":holdfast_t:") && line.contains(":shadow_t:")
}

/// The journal since the boot, with the kernel's records of both.
fn log(host: &Host) -> String {
    host.run(&["journalctl", "--boot", "--output=cat", "--no-pager"]).unwrap().expect_success()
}
