//! Credential files that rotate, disappear, are half written, or do not fit each other.

use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use super::*;

struct CredentialFolder {
    folder: TempDir,
    credentials: Credentials,
}

/// A new certificate with its key, as PEM.
fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    (certificate, key.serialize_pem())
}

const BY_TOKEN: &str = "ca_file = \"ca\"\ntoken_file = \"token\"\n";
const BY_PAIR: &str = "ca_file = \"ca\"\nclient_certificate_file = \"crt\"\nclient_key_file = \"key\"\n";
const BY_KUBECONFIG: &str = "kubeconfig = \"kubeconfig\"\n";

impl CredentialFolder {
    fn new(keys: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoints = if keys == BY_KUBECONFIG { "" } else { "endpoints = [\"https://10.0.0.1\"]\n" };
        let text = format!("[node]\nname = \"n\"\n[apiserver]\n{endpoints}{keys}");
        let file = folder.path().join("config.toml");
        let config = holdfast_config::Config::parse(&text, &file.to_string_lossy()).unwrap().0;
        let fixture =
            Self { folder, credentials: Credentials::new(Locations::from_config(&config.apiserver)) };
        fixture.write("ca", &pair().0);
        files.iter().for_each(|(name, content)| fixture.write(name, content));
        fixture
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Renames a file into place, as programs that rotate credentials do.
    fn write(&self, name: &str, content: &str) {
        let beside = self.path().join("beside");
        std::fs::write(&beside, content).unwrap();
        std::fs::rename(beside, self.path().join(name)).unwrap();
    }

    async fn shown(&self) -> Result<String, String> {
        let shown = self.credentials.current(false).await;
        let shown = shown.map_err(|error| error.replace(&format!("{}/", self.path().display()), ""))?;
        Ok(shown.authorization.as_ref().map_or(shown.kind, |it| it.to_str().unwrap()).to_owned())
    }

    fn problem(&self) -> Option<String> {
        let (problem, _) = self.credentials.report()?.problem?;
        Some(problem.replace(&format!("{}/", self.path().display()), ""))
    }
}

#[tokio::test]
async fn a_token_is_trimmed_and_followed() {
    let fixture = CredentialFolder::new(BY_TOKEN, &[("token", "t1\n")]);
    assert_eq!(fixture.shown().await.unwrap(), "Bearer t1");
    fixture.write("token", "t2");
    assert_eq!(fixture.shown().await.unwrap(), "Bearer t2");
    for (bad, why) in [
        ("", "token: is empty"),
        (" \n", "token: is empty"),
        ("a b", "token: is not a token: it has spaces or control characters inside"),
    ] {
        fixture.write("token", bad);
        assert_eq!(fixture.shown().await.unwrap(), "Bearer t2", "the last good one");
        assert_eq!(fixture.problem().as_deref(), Some(why));
    }
    std::fs::remove_file(fixture.path().join("token")).unwrap();
    assert_eq!(fixture.shown().await.unwrap(), "Bearer t2");
    assert_eq!(fixture.problem().as_deref(), Some("token: does not exist"));
    fixture.write("token", "t3");
    assert_eq!((fixture.shown().await.unwrap().as_str(), fixture.problem()), ("Bearer t3", None));
}

#[tokio::test]
async fn a_token_behind_a_changed_symlink_is_followed() {
    let fixture = CredentialFolder::new(BY_TOKEN, &[("t1", "one"), ("t2", "two")]);
    let turn = |to: &str| {
        std::os::unix::fs::symlink(fixture.path().join(to), fixture.path().join("new")).unwrap();
        std::fs::rename(fixture.path().join("new"), fixture.path().join("token")).unwrap();
    };
    turn("t1");
    assert_eq!(fixture.shown().await.unwrap(), "Bearer one");
    turn("t2");
    assert_eq!(fixture.shown().await.unwrap(), "Bearer two");
}

#[tokio::test]
async fn unchanged_files_change_nothing() {
    let fixture = CredentialFolder::new(BY_TOKEN, &[("token", "t1")]);
    let first = fixture.credentials.current(false).await.unwrap();
    fixture.write("token", "t1");
    let second = fixture.credentials.current(false).await.unwrap();
    assert!(Arc::ptr_eq(&first, &second), "TLS sessions can resume");
}

#[tokio::test]
async fn a_certificate_and_its_key_are_followed_together() {
    let ((old, old_key), (new, new_key)) = (pair(), pair());
    let fixture = CredentialFolder::new(BY_PAIR, &[("crt", &old), ("key", &old_key)]);
    assert_eq!(fixture.shown().await.unwrap(), "client certificate");
    let first = fixture.credentials.current(false).await.unwrap();
    fixture.write("crt", &new);
    let between = fixture.credentials.current(false).await.unwrap();
    assert!(Arc::ptr_eq(&first, &between), "half of a pair changes nothing");
    assert_eq!(
        fixture.problem().as_deref(),
        Some("the client certificate and its key do not belong together")
    );
    fixture.write("key", &new_key);
    let after = fixture.credentials.current(false).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &after) && fixture.problem().is_none());
    assert!(after.expires.is_some());
    fixture.write("key", &new_key[..40]);
    assert_eq!(fixture.shown().await.unwrap(), "client certificate");
    assert!(fixture.problem().unwrap().contains("client key is not readable"));
}

#[tokio::test]
async fn authorities_are_followed_and_a_bad_bundle_changes_nothing() {
    let fixture = CredentialFolder::new(BY_TOKEN, &[("token", "t")]);
    let first = fixture.credentials.current(false).await.unwrap();
    fixture.write("ca", "-----BEGIN CERTIFICATE-----\nMII");
    assert!(Arc::ptr_eq(&first, &fixture.credentials.current(false).await.unwrap()));
    assert!(fixture.problem().unwrap().contains("certificate authority"));
    fixture.write("ca", &pair().0);
    assert!(!Arc::ptr_eq(&first, &fixture.credentials.current(false).await.unwrap()));
}

#[tokio::test]
async fn files_that_appear_later_are_found() {
    let fixture = CredentialFolder::new(BY_TOKEN, &[]);
    assert_eq!(fixture.shown().await, Err("token: does not exist".to_owned()));
    let missing = fixture.credentials.check().unwrap();
    assert!(missing.len() == 1 && missing[0].ends_with("token: does not exist"), "{missing:?}");
    fixture.write("token", "t");
    assert_eq!(fixture.shown().await.unwrap(), "Bearer t");
}

/// An operator mends all files at once.
#[tokio::test]
async fn every_bad_file_is_named() {
    let ends = |fixture: &CredentialFolder| -> Vec<String> {
        let folder = format!("{}/", fixture.path().display());
        fixture.credentials.check().unwrap().iter().map(|why| why.replace(&folder, "")).collect()
    };
    let fixture = CredentialFolder::new(BY_PAIR, &[]);
    assert_eq!(ends(&fixture), ["crt: does not exist", "key: does not exist"]);
    assert_eq!(fixture.shown().await, Err("crt: does not exist; key: does not exist".to_owned()));
    std::fs::remove_file(fixture.path().join("ca")).unwrap();
    assert_eq!(ends(&fixture), ["ca: does not exist", "crt: does not exist", "key: does not exist"]);
    for name in ["ca", "crt", "key"] {
        fixture.write(name, "hello");
    }
    assert_eq!(
        ends(&fixture),
        [
            "ca: the certificate authority has no PEM certificate in it",
            "crt: the client certificate has no PEM certificate in it"
        ]
    );
    let kubeconfig = kubeconfig("{server: \"https://10.0.0.1\", certificate-authority: a}", "{tokenFile: b}");
    let fixture = CredentialFolder::new(BY_KUBECONFIG, &[("kubeconfig", &kubeconfig)]);
    assert_eq!(ends(&fixture), ["a: does not exist", "b: does not exist"]);
}

#[tokio::test]
async fn a_missing_kubelet_kubeconfig_is_not_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.conf");
    let credentials = Credentials::new(Locations::from_kubeconfig(path.clone()));
    assert!(credentials.current(false).await.is_err() && credentials.report().is_none());
    std::fs::write(path, "[").unwrap();
    assert!(credentials.current(false).await.is_err());
    assert!(credentials.report().unwrap().problem.unwrap().0.contains("is not a kubeconfig"));
}

#[tokio::test]
async fn debug_output_has_no_secret() {
    let fixture = CredentialFolder::new(BY_TOKEN, &[("token", "hush")]);
    assert_eq!(fixture.shown().await.unwrap(), "Bearer hush");
    let printed = format!("{:?}", fixture.credentials);
    assert!(printed.contains("Sensitive") && !printed.contains("hush"), "{printed}");
}

/// A kubeconfig with this cluster and this user.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n"
    )
}

const CLUSTER: &str =
    "{server: \"https://10.0.0.7:6443\", certificate-authority: ca, tls-server-name: kubernetes}";

#[tokio::test]
async fn a_kubeconfig_supplies_everything() {
    let user = "{token: inline, tokenFile: token}";
    let fixture = CredentialFolder::new(
        BY_KUBECONFIG,
        &[("token", "file"), ("kubeconfig", &kubeconfig(CLUSTER, user))],
    );
    assert_eq!(fixture.shown().await.unwrap(), "Bearer file", "the file wins");
    let shown = fixture.credentials.current(false).await.unwrap();
    assert_eq!(shown.server, Some("10.0.0.7:6443".parse().unwrap()));
    assert_eq!(shown.server_name, Some("kubernetes".try_into().unwrap()));
    fixture.write("kubeconfig", &kubeconfig(CLUSTER, "{token: t2}"));
    assert_eq!(fixture.shown().await.unwrap(), "Bearer t2");
    let (certificate, key) = pair();
    use base64::Engine;
    let encode = |text: &str| base64::prelude::BASE64_STANDARD.encode(text);
    let user =
        format!("{{client-certificate-data: {}, client-key-data: {}}}", encode(&certificate), encode(&key));
    fixture.write("kubeconfig", &kubeconfig(CLUSTER, &user));
    assert_eq!(fixture.shown().await.unwrap(), "client certificate");
}

#[track_caller]
fn check_wrong(kubeconfig: &str, expected: &str) {
    let fixture = CredentialFolder::new(BY_KUBECONFIG, &[("kubeconfig", kubeconfig)]);
    let found = fixture.credentials.check().unwrap_err();
    assert!(found.contains(expected), "{found}");
}

#[test]
fn an_unsupported_kubeconfig_is_named_at_the_start() {
    let cluster = |keys: &str| kubeconfig(&format!("{{certificate-authority: ca, {keys}}}"), "{}");
    check_wrong("[", "is not a kubeconfig");
    check_wrong("kind: Config", "has no current-context");
    check_wrong(
        &kubeconfig(CLUSTER, "{}").replace("name: c,", "name: d,"),
        "current-context \"c\" is not among its contexts",
    );
    check_wrong(
        &kubeconfig(CLUSTER, "{}").replace("name: k,", "name: x,"),
        "names the cluster \"k\", which it does not have",
    );
    check_wrong(
        &kubeconfig(CLUSTER, "{}").replace("name: u,", "name: x,"),
        "names the user \"u\", which it does not have",
    );
    check_wrong(
        &cluster("server: \"https://apiserver.example:6443\""),
        "is not an IP address: host names are not legal",
    );
    check_wrong(&cluster("server: \"http://10.0.0.1\""), "does not begin with https://");
    check_wrong(&cluster("server: \"https://10.0.0.1/k8s\""), "has a path");
    check_wrong(&cluster(""), "has no server");
    check_wrong(
        &cluster("server: \"https://10.0.0.1\", insecure-skip-tls-verify: true"),
        "insecure-skip-tls-verify",
    );
    check_wrong(&kubeconfig("{server: \"https://10.0.0.1\"}", "{}"), "no certificate-authority");
    check_wrong(&kubeconfig(CLUSTER, "{username: a, password: b}"), "username and password");
    check_wrong(&kubeconfig(CLUSTER, "{auth-provider: {name: gcp, config: {}}}"), "auth-provider");
    check_wrong(&kubeconfig(CLUSTER, "{as: root}"), "impersonation");
    check_wrong(&kubeconfig(CLUSTER, "{client-certificate-data: AAAA}"), "only one of a client certificate");
    check_wrong(&kubeconfig(CLUSTER, "{exec: {apiVersion: v2, command: x}}"), "apiVersion \"v2\"");
}

#[tokio::test]
async fn a_plugin_runs_once_until_its_credential_ends_or_is_doubted() {
    let plugin = "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, args: [-c, 'echo >> FOLDER/runs; cat FOLDER/out']}";
    let fixture = CredentialFolder::new(BY_KUBECONFIG, &[]);
    let plugin = plugin.replace("FOLDER", &fixture.path().display().to_string());
    let credential = |token: &str, end: &str| {
        format!(
            r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{token}","expirationTimestamp":"{end}"}}}}"#
        )
    };
    fixture.write("out", &credential("t1", "2090-01-01T00:00:00Z"));
    fixture.write("kubeconfig", &kubeconfig(CLUSTER, &format!("{{{plugin}}}")));
    let runs = || std::fs::read_to_string(fixture.path().join("runs")).unwrap().len();
    for _ in 0..3 {
        assert_eq!(fixture.shown().await.unwrap(), "Bearer t1");
    }
    assert_eq!(runs(), 1);
    fixture.write("out", &credential("t2", "2090-01-01T00:00:00Z"));
    fixture.credentials.current(true).await.unwrap();
    assert_eq!(
        (fixture.shown().await.unwrap().as_str(), runs()),
        ("Bearer t1", 1),
        "a 401 for a fresh one is ignored"
    );
    fixture.credentials.lock_state().read_at = Instant::now().checked_sub(RECHECK_PAUSE);
    assert_eq!(fixture.shown().await.unwrap(), "Bearer t1");
    fixture.credentials.current(true).await.unwrap();
    assert_eq!((fixture.shown().await.unwrap().as_str(), runs()), ("Bearer t2", 2));
}

#[tokio::test]
async fn a_pipe_in_place_of_a_token_is_refused_without_a_wait() {
    let fixture = CredentialFolder::new(BY_TOKEN, &[("token", "t1")]);
    assert_eq!(fixture.shown().await.as_deref(), Ok("Bearer t1"));
    std::fs::remove_file(fixture.path().join("token")).unwrap();
    nix::unistd::mkfifo(&fixture.path().join("token"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(fixture.shown().await.as_deref(), Ok("Bearer t1"));
    assert_eq!(fixture.problem().as_deref(), Some("token: is not a regular file"));
}
