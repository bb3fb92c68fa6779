//! The Helm chart as the real Helm renders it.
//!
//! Invariant: by default it is contrib/kubernetes, object by object; what values change is shown by golden files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::{ExpectFile, expect_file};
use serde_json::{Map, Value, json};

use super::page::repository;

/// Helm from `scripts/helm.sh`, and the packages' binary: the part of the tests names both.
fn program(variable: &str, name: &str) -> PathBuf {
    let folder = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set"));
    Path::new(&folder).join(name)
}

fn output(command: &mut Command) -> Result<String, String> {
    let said = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if said.status.success() { Ok(text(said.stdout)) } else { Err(text(said.stderr)) }
}

pub(crate) fn folder() -> PathBuf {
    repository().join("contrib/helm/holdfast")
}

fn file(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

/// The values of a file, and more arguments.
fn render(values: &str, more: &[&str]) -> Result<String, String> {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("values.yaml");
    fs::write(&path, values).unwrap();
    let mut helm = Command::new(program("HOLDFAST_HELM", "helm"));
    helm.args(["template", "holdfast"]).arg(folder()).args(["--namespace", "kube-system"]);
    output(helm.args(["--kube-version", "1.37.2", "--values"]).arg(path).args(more))
}

/// The apiserver of contrib/kubernetes/holdfast.toml, which is no default of the chart.
const ENDPOINTS: &str = "{config: {apiserver: {endpoints: ['https://10.0.0.10:6443']}}}";

/// Each value in another state than its default.
pub(crate) const EVERYTHING: &str = include_str!("chart/everything.values.yaml");

fn documents(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// A name with the sum of a configuration in it.
fn without_sum(name: &mut Value) {
    if name.as_str().is_some_and(|name| name.starts_with("holdfast")) {
        *name = json!("holdfast-SUM");
    }
}

/// An object as both ways have it: without labels, which are Helm's, and with the configuration as a tree.
fn comparable(mut object: Value) -> (String, Value) {
    object["metadata"].as_object_mut().unwrap().remove("labels");
    if let Some(text) = object.pointer_mut("/data/holdfast.toml") {
        let table: toml::Table = text.as_str().unwrap().parse().unwrap();
        *text = serde_json::to_value(table).unwrap();
        without_sum(&mut object["metadata"]["name"]);
    }
    if let Some(pod) = object.pointer_mut("/spec/template/spec") {
        without_sum(&mut pod["volumes"][0]["configMap"]["name"]);
        forget_nothing(pod);
    }
    let name = object["metadata"]["name"].as_str().unwrap();
    (format!("{}/{name}", object["kind"].as_str().unwrap()), object)
}

/// A key that is null or an empty list says as much as none.
fn forget_nothing(value: &mut Value) {
    match value {
        Value::Object(keys) => {
            keys.retain(|key, value| !value.is_null() && (key != "initContainers" || *value != json!([])));
            keys.values_mut().for_each(forget_nothing);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_nothing),
        _ => (),
    }
}

fn rendered(more: &[&str]) -> BTreeMap<String, Value> {
    documents(&render(ENDPOINTS, more).unwrap()).into_iter().map(comparable).collect()
}

/// What `kubectl apply -k contrib/kubernetes` applies.
fn manifests() -> BTreeMap<String, Value> {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "holdfast"},
        "data": {"holdfast.toml": file("contrib/kubernetes/holdfast.toml")},
    });
    let files = ["contrib/kubernetes/rbac.yaml", "contrib/kubernetes/daemonset.yaml"].map(file);
    files.iter().flat_map(|text| documents(text)).chain([config]).map(comparable).collect()
}

#[test]
fn by_default_the_chart_is_the_manifests() {
    assert_eq!(rendered(&[]), manifests());
}

/// The operations of contrib/kubernetes/cleanup.json, which add or replace one key each.
fn patch(object: &mut Value, operations: &str) {
    let operations: Vec<Map<String, Value>> = serde_json::from_str(operations).unwrap();
    for operation in operations {
        let (folder, key) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        object.pointer_mut(folder).unwrap()[key] = operation["value"].clone();
    }
}

#[test]
fn cleanup_renders_what_the_patch_makes_of_the_manifests() {
    let mut patched = manifests();
    let daemonset = patched.get_mut("DaemonSet/holdfast").unwrap();
    patch(daemonset, &file("contrib/kubernetes/cleanup.json"));
    forget_nothing(daemonset);
    assert_eq!(rendered(&["--set", "cleanup=true"]), patched);
}

/// The version changes with each release.
fn assert_golden(golden: &ExpectFile, rendered: &str) {
    golden.assert_eq(&rendered.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
}

#[test]
fn the_default_renders_as_shown() {
    assert_golden(&expect_file!["chart/default.yaml"], &render(ENDPOINTS, &[]).unwrap());
}

#[test]
fn all_values_render_as_shown() {
    assert_golden(&expect_file!["chart/everything.yaml"], &render(EVERYTHING, &[]).unwrap());
}

#[test]
fn openshift_gets_the_context_that_admits_the_pod() {
    let more = ["--api-versions", "security.openshift.io/v1", "--show-only", "templates/openshift.yaml"];
    assert_golden(&expect_file!["chart/openshift.yaml"], &render(ENDPOINTS, &more).unwrap());
}

#[test]
fn the_chart_passes_helms_own_check() {
    for values in ["", ENDPOINTS, EVERYTHING] {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("values.yaml");
        fs::write(&path, values).unwrap();
        let mut helm = Command::new(program("HOLDFAST_HELM", "helm"));
        let said = output(helm.args(["lint", "--strict", "--values"]).arg(path).arg(folder())).unwrap();
        assert!(said.contains("1 chart(s) linted, 0 chart(s) failed"), "{said}");
    }
}

#[test]
fn the_chart_has_this_version() {
    let text = file("contrib/helm/holdfast/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    for line in [format!("\nversion: {version}\n"), format!("\nappVersion: {version}\n")] {
        assert!(text.contains(&line), "{text}");
    }
}

/// The configuration in a chart with these values.
fn configuration(values: &str) -> String {
    let text = render(values, &["--show-only", "templates/configmap.yaml"]).unwrap();
    documents(&text)[0]["data"]["holdfast.toml"].as_str().unwrap().to_owned()
}

/// The example with every key, as a tree.
fn every_key() -> toml::Table {
    let line = |line: &str| match line.trim_start_matches('#') {
        bare if bare.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => format!("{bare}\n"),
        _ => "\n".to_owned(),
    };
    file("config.example.toml").lines().map(line).collect::<String>().parse().unwrap()
}

/// Numbers too: Helm reads 5 as 5.0.
#[test]
fn every_key_of_the_configuration_comes_through() {
    let all = every_key();
    let values = json!({"config": all}).to_string();
    assert_eq!(configuration(&values).parse::<toml::Table>().unwrap(), all);
}

#[test]
fn the_daemon_takes_the_configuration_of_the_chart() {
    let scratch = tempfile::tempdir().unwrap();
    for values in [ENDPOINTS, EVERYTHING] {
        let path = scratch.path().join("holdfast.toml");
        fs::write(&path, configuration(values)).unwrap();
        output(Command::new(program("HOLDFAST_PACKAGES", "holdfast")).arg("check-config").arg(&path))
            .unwrap();
    }
}

#[test]
fn what_is_wrong_is_refused_with_what_is_legal() {
    for (values, expected) in [
        ("", "config.apiserver.endpoints is empty: say where the apiservers are, by address"),
        ("{config: {apiserver: {endpoints: ['https://kubernetes.default.svc']}}}", "Names are not resolved"),
        ("{config: {apiserver: {endpoints: ['10.0.0.10:6443']}}}", "is not https and an IP address"),
        ("{config: {hold: {limt: 2m}}}", "at '/config/hold': additional properties 'limt' not allowed"),
        ("{config: {hold: {limit: 2}}}", "at '/config/hold/limit': got number, want string"),
        ("{config: {announce: {table: 252}}}", "at '/config/announce/table': maximum: got 252, want 251"),
        ("{config: {log: {level: loud}}}", "one of 'error', 'warn', 'info', 'debug', 'trace'"),
        ("{updateStrategy: {rollingUpdate: {maxSurge: 1}}}", "at '/updateStrategy/rollingUpdate/maxSurge'"),
        ("{image: {digest: latest}}", "at '/image/digest'"),
        ("{config: null}", "missing property 'config'"),
        ("{host: {state: null}}", "at '/host': missing property 'state'"),
        ("{pod: {}}", "additional properties 'pod' not allowed"),
    ] {
        let said = render(values, &[]).unwrap_err();
        assert!(said.contains(expected), "{values}: {said}");
    }
}

/// A package of the chart has nothing of the repository around it.
#[test]
fn the_alerts_of_the_chart_are_those_of_the_repository() {
    let copy = folder().join("files/holdfast.rules.yaml");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&copy, file("contrib/prometheus/holdfast.rules.yaml")).unwrap();
    }
    assert_eq!(fs::read_to_string(copy).unwrap(), file("contrib/prometheus/holdfast.rules.yaml"));
}
