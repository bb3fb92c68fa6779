//! The page's blocks of commands.

use std::fs;

use super::guide;
pub(crate) use super::guide::repository;

/// The blocks of a section, each as between its fences.
#[track_caller]
pub(crate) fn blocks<const N: usize>(section: &str) -> [String; N] {
    guide::blocks("install.md", section)
}

#[test]
fn the_manifests_name_the_image_of_this_version() {
    for file in ["daemonset.yaml", "static-pod.yaml", "cleanup-node.yaml"] {
        let text = fs::read_to_string(repository().join("contrib/kubernetes").join(file)).unwrap();
        let image = format!("image: holdfast.io/holdfast:{}\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&image), "{file} does not say {image}");
    }
}

/// A change to one of them must be made in both.
#[test]
fn daemonset_and_static_pod_have_equal_privileges_and_probes() {
    let text = |file| fs::read_to_string(repository().join("contrib/kubernetes").join(file)).unwrap();
    let (daemonset, pod) = (text("daemonset.yaml"), text("static-pod.yaml"));
    let lines = |text: &str, from: &str, to: &str| -> Vec<String> {
        let part = text.split_once(from).unwrap().1.split(to).next().unwrap();
        let lines = part.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(ToOwned::to_owned).collect()
    };
    for (from, to) in [(" securityContext:\n", "startupProbe"), ("startupProbe", "volumeMounts")] {
        let after = |text: &str| text.split_once("- name: holdfast\n").unwrap().1.to_owned();
        assert_eq!(lines(&after(&daemonset), from, to), lines(&after(&pod), from, to), "{from}");
    }
    let (from, to) = ("terminationGracePeriodSeconds", "initContainers");
    assert_eq!(lines(&daemonset, from, to), lines(&pod, from, to), "for all containers");
}
