//! A node with systemd as its first process: its services as units, and the disabled parts of a distribution's boot.
//!
//! Invariant: a unit runs the same script as the other first process, so each service is defined once. Units have the
//! distributions' names, because other units are ordered by them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::ClusterError;
use crate::control_plane::SERVICES_FOLDER;
use crate::error::{at, write};
use crate::topology::MachineName;

const UNITS: &str = "etc/systemd/system";

/// Units that need devices, terminals, or to configure the existing network, and those that install packages by
/// themselves and would hold the package lock.
const MASKED: [&str; 10] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "systemd-udevd.service",
    "systemd-udevd-kernel.socket",
    "systemd-udevd-control.socket",
    "systemd-udev-trigger.service",
    "systemd-networkd.service",
    "systemd-logind.service",
    "getty.target",
    "console-getty.service",
];

/// Creates units for the services written before.
pub(crate) fn equip(root: &Path, node: MachineName) -> Result<(), ClusterError> {
    let folder = root.join(SERVICES_FOLDER);
    let entries = fs::read_dir(&folder).map_err(at("read", &folder))?.filter_map(Result::ok);
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    for name in &names {
        write(&root.join(UNITS).join(format!("{name}.service")), unit(name))?;
    }
    let wanted = format!("[Unit]\nWants={}\n", names.join(".service ") + ".service");
    write(&root.join(UNITS).join("multi-user.target.d/machine.conf"), wanted)?;
    // Without a machine id, systemd treats the boot as the first, and enables all installed units.
    write(&root.join("etc/machine-id"), format!("{:032x}\n", u32::from(node.number())))?;
    MASKED.iter().try_for_each(|name| mask(root, name))
}

/// As in the packages of containerd and kubelet: pods continue while one of them restarts.
fn unit(name: &str) -> String {
    format!(
        "[Unit]\nDescription={name} of this cluster\nStartLimitIntervalSec=0\n
[Service]\nExecStart=/bin/bash /{SERVICES_FOLDER}/{name}
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/kubernetes:/opt/holdfast HOME=/root
Delegate=yes\nKillMode=process\nTasksMax=infinity\nLimitNOFILE=1048576\nRestart=always\nRestartSec=200ms
StandardOutput=append:/var/log/machine/{name}.log\nStandardError=inherit\n"
    )
}

fn mask(root: &Path, name: &str) -> Result<(), ClusterError> {
    let link = root.join(UNITS).join(name);
    symlink("/dev/null", &link).map_err(at("create", &link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_is_a_unit_that_the_boot_wants() {
        let root = tempfile::tempdir().unwrap();
        for name in ["containerd", "kubelet"] {
            crate::control_plane::service(root.path(), name, "exec true\n").unwrap();
        }
        equip(root.path(), MachineName::Node(2)).unwrap();
        let text = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        let wanted = text("etc/systemd/system/multi-user.target.d/machine.conf");
        assert!(wanted.contains("containerd.service") && wanted.contains("kubelet.service"), "{wanted}");
        let unit = text("etc/systemd/system/kubelet.service");
        assert!(unit.contains("ExecStart=/bin/bash /etc/machine/services/kubelet\n"), "{unit}");
        assert_eq!(text("etc/machine-id"), "0000000000000000000000000000000c\n");
    }
}
