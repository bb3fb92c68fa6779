//! The page's own blocks of commands.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The blocks of a section, each as it stands between its fences.
#[track_caller]
pub(crate) fn blocks<const N: usize>(section: &str) -> [String; N] {
    let page = fs::read_to_string(repository().join("docs/install.md")).unwrap();
    let rest = page.split_once(&format!("\n## {section}\n")).unwrap().1;
    let text = rest.split("\n## ").next().unwrap();
    let fenced = text.split("```").skip(1).step_by(2);
    let blocks: Vec<String> = fenced.map(|block| block.split_once('\n').unwrap().1.to_owned()).collect();
    blocks.try_into().unwrap_or_else(|found: Vec<String>| panic!("{section}: other blocks: {found:#?}"))
}

#[test]
fn the_manifests_name_the_image_of_this_version() {
    for file in ["daemonset.yaml", "static-pod.yaml"] {
        let text = fs::read_to_string(repository().join("contrib/kubernetes").join(file)).unwrap();
        let image = format!("image: holdfast.io/holdfast:{}\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&image), "{file} does not say {image}");
    }
}

/// A change to one of them is meant for both.
#[test]
fn daemonset_and_static_pod_ask_for_the_same() {
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
}
