//! The folder of manifests, read once more: the selector of a Service, and the labels of pods there.
//!
//! Invariant: what is read here explains, and serves nobody. The folder may be as large as a cluster, so at most
//! [`MANIFEST_BYTES_MAX`] bytes are read, the Service's own file first.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::evidence::{Lookup, ManifestPod, ManifestWorkload};
use holdfast_objects::manifests::parse_documents;
use serde_json::Value;

use crate::diagnose::limits::{MANIFEST_BYTES_MAX, MANIFEST_PODS_MAX};

const ENDINGS: [&str; 3] = [".yaml", ".yml", ".json"];

/// Which Service to look for, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestQuery {
    folder: PathBuf,
    name: ObjectName,
    /// The file that has the Service.
    origin: Option<Arc<str>>,
}

impl ManifestQuery {
    pub(super) fn new(folder: &Path, view: &ServiceView) -> Self {
        let origin = view.facts.as_deref().and_then(|facts| facts.meta.origin.clone());
        Self { folder: folder.to_owned(), name: view.key.name.clone(), origin }
    }

    /// The files of the folder, the Service's own first.
    fn files(&self) -> std::io::Result<Vec<PathBuf>> {
        let is_manifest = |path: &PathBuf| {
            let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
            let is_named = ENDINGS.iter().any(|ending| name.ends_with(ending)) && !name.starts_with('.');
            is_named && path.is_file()
        };
        let entries = fs::read_dir(&self.folder)?.filter_map(Result::ok);
        let mut files: Vec<PathBuf> = entries.map(|it| it.path()).filter(is_manifest).collect();
        let is_own = |path: &PathBuf| path.file_name().and_then(|it| it.to_str()) == self.origin.as_deref();
        files.sort_by_key(|path| (!is_own(path), path.clone()));
        Ok(files)
    }
}

pub(super) fn read_workload(query: Option<&ManifestQuery>) -> Lookup<ManifestWorkload> {
    let Some(query) = query else { return Lookup::Skipped("it comes from no manifest") };
    let files = match query.files() {
        Ok(files) => files,
        Err(error) => return Lookup::Failed(error.to_string().into()),
    };
    let mut workload = ManifestWorkload::default();
    let mut left = MANIFEST_BYTES_MAX;
    for path in files {
        let mut bytes = Vec::new();
        // Nothing that takes the place of a file may block this thread.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let read = file.and_then(|file| file.take(left + 1).read_to_end(&mut bytes));
        let Some(rest) = read.ok().and_then(|count| left.checked_sub(u64::try_from(count).ok()?)) else {
            continue;
        };
        left = rest;
        // The daemon reports a file that it cannot read.
        let documents = parse_documents(&path.to_string_lossy(), &bytes).unwrap_or_default();
        documents.iter().for_each(|it| add_document(it, &query.name, &mut workload));
    }
    Lookup::Answered(workload)
}

fn add_document(document: &Value, name: &ObjectName, into: &mut ManifestWorkload) {
    match document.get("items").and_then(Value::as_array) {
        Some(items) => items.iter().for_each(|it| add_object(it, name, into)),
        None => add_object(document, name, into),
    }
}

fn add_object(object: &Value, name: &ObjectName, into: &mut ManifestWorkload) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let (Some(kind), Some(own)) = (text("/kind"), text("/metadata/name")) else { return };
    if text("/metadata/namespace").unwrap_or("default") != name.namespace() {
        return;
    }
    let labels = match kind {
        "Service" if own == name.name() => {
            into.selector = into.selector.take().or_else(|| labels_at(object, "/spec/selector"));
            return;
        }
        "Pod" => labels_at(object, "/metadata/labels"),
        _ => labels_at(object, "/spec/template/metadata/labels"),
    };
    if let Some(labels) = labels.filter(|_| into.pods.len() < MANIFEST_PODS_MAX) {
        into.pods.push(ManifestPod { kind: kind.to_owned(), name: own.to_owned(), labels });
    }
}

fn labels_at(object: &Value, pointer: &str) -> Option<BTreeMap<String, String>> {
    let labels = object.pointer(pointer)?.as_object()?;
    let label = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    Some(labels.iter().filter_map(label).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn query(folder: &Path) -> ManifestQuery {
        let name = ObjectName::new("shop", "web").unwrap();
        ManifestQuery { folder: folder.to_owned(), name, origin: Some("own.yaml".into()) }
    }

    #[test]
    fn selectors_and_labels_come_from_pods_templates_and_lists_of_the_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let service = "{kind: Service, apiVersion: v1, metadata: {name: web, namespace: shop}, spec: {selector: {app: wbe}}}";
        fs::write(folder.path().join("own.yaml"), service).unwrap();
        let list = r#"{"kind": "List", "apiVersion": "v1", "items": [
            {"kind": "Pod", "metadata": {"name": "a", "namespace": "shop", "labels": {"app": "web"}}},
            {"kind": "Pod", "metadata": {"name": "b", "namespace": "other", "labels": {"app": "web"}}},
            {"kind": "Deployment", "metadata": {"name": "c", "namespace": "shop"},
             "spec": {"template": {"metadata": {"labels": {"app": "api", "bad": 1}}}}}]}"#;
        fs::write(folder.path().join("list.json"), list).unwrap();
        fs::write(folder.path().join("half.yaml"), "{kind: Pod").unwrap();
        fs::write(folder.path().join("readme.txt"), "{kind: Pod}").unwrap();
        let pod = |kind: &str, name: &str, app: &str| ManifestPod {
            kind: kind.to_owned(),
            name: name.to_owned(),
            labels: labels(&[("app", app)]),
        };
        let expected = ManifestWorkload {
            selector: Some(labels(&[("app", "wbe")])),
            pods: vec![pod("Pod", "a", "web"), pod("Deployment", "c", "api")],
        };
        assert_eq!(read_workload(Some(&query(folder.path()))), Lookup::Answered(expected));
    }

    #[test]
    fn files_beyond_the_limit_are_not_read_and_the_services_own_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let service = "{kind: Service, apiVersion: v1, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}}}";
        fs::write(folder.path().join("own.yaml"), service).unwrap();
        let large = fs::File::create(folder.path().join("a.yaml")).unwrap();
        large.set_len(MANIFEST_BYTES_MAX).unwrap();
        let selector = Some(labels(&[("app", "web")]));
        let expected = ManifestWorkload { selector, pods: Vec::new() };
        assert_eq!(read_workload(Some(&query(folder.path()))), Lookup::Answered(expected));
        assert!(matches!(read_workload(Some(&query(Path::new("/nowhere")))), Lookup::Failed(_)));
        assert_eq!(read_workload(None), Lookup::Skipped("it comes from no manifest"));
    }
}
