//! Reads the apiservers' audit logs of the daemon's requests.
//!
//! Invariant: each request counts once, however many stages it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{ADDRESSES, PeersError};

/// The audit log has a watch when it is answered, and not when it ends.
const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [holdfast, 'system:serviceaccount:kube-system:holdfast']
- level: None
";

/// Writes the policy to a file.
pub(super) fn policy(folder: &Path) -> Result<PathBuf, PeersError> {
    let path = folder.join("audit-policy.yaml");
    fs::write(&path, POLICY).map_err(|source| PeersError::File { path: path.clone(), source })?;
    Ok(path)
}

/// The audit log of one apiserver.
pub(super) fn log(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("audit-{index}.log"))
}

/// The complete lines of the log. An apiserver without requests has no file.
fn lines(folder: &Path, index: usize) -> String {
    let mut text = fs::read_to_string(log(folder, index)).unwrap_or_default();
    text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    text
}

/// One user's requests at all apiservers.
pub(super) fn requests(folder: &Path, user: &str) -> Result<BTreeMap<String, usize>, PeersError> {
    let text = (0..ADDRESSES.len()).map(|index| lines(folder, index)).collect::<String>();
    let (mut seen, mut counts) = (BTreeSet::new(), BTreeMap::new());
    for line in text.lines() {
        let event: Value = serde_json::from_str(line)
            .map_err(|error| PeersError::Malformed { what: line.to_owned(), said: error.to_string() })?;
        let word = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or("-");
        if word("/user/username") == user && seen.insert(word("/auditID").to_owned()) {
            let what = format!("{} {}", word("/verb"), word("/objectRef/resource"));
            *counts.entry(what).or_default() += 1;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_once_by_user_over_all_apiservers() {
        let event = |user: &str, id: &str, verb: &str| {
            let resource = "{\"resource\":\"services\"}";
            format!(
                "{{\"auditID\":\"{id}\",\"verb\":\"{verb}\",\"user\":{{\"username\":\"{user}\"}},\"objectRef\":{resource}}}\n"
            )
        };
        let folder = tempfile::tempdir().unwrap();
        let first =
            [event("holdfast", "1", "watch"), event("holdfast", "1", "watch"), event("else", "2", "list")];
        fs::write(log(folder.path(), 0), first.concat()).unwrap();
        fs::write(log(folder.path(), 2), event("holdfast", "3", "watch") + &event("holdfast", "4", "list"))
            .unwrap();
        let counts = requests(folder.path(), "holdfast").unwrap();
        assert_eq!(
            counts,
            BTreeMap::from([("list services".to_owned(), 1), ("watch services".to_owned(), 2)])
        );
        fs::write(log(folder.path(), 1), "half a li").unwrap();
        assert_eq!(requests(folder.path(), "holdfast").unwrap(), counts);
        fs::write(log(folder.path(), 1), "no event\n").unwrap();
        assert!(requests(folder.path(), "holdfast").is_err());
    }
}
