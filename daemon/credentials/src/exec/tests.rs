//! Plugins that work, hang, fail, and print too much.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use super::*;

const GOOD: &str = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":" t1\n","expirationTimestamp":"2030-01-02T00:00:00Z"}}"#;

fn exec(command: &str) -> ExecConfig {
    let kubeconfig = format!(
        "{{apiVersion: client.authentication.k8s.io/v1, command: {command}, env: [{{name: X, value: y}}], provideClusterInfo: true}}"
    );
    serde_saphyr::from_str(&kubeconfig).unwrap()
}

/// Runs a shell script as a plugin.
async fn run(script: &str) -> Result<IssuedCredential, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let cluster = Cluster { server: Some("https://10.0.0.1".to_owned()), ..Cluster::default() };
    let plugin = Plugin::new(&exec("./plugin"), &cluster, folder.path()).unwrap();
    plugin.run().await.map_err(|error| error.replace(&plugin.name(), "plugin"))
}

#[tokio::test]
async fn a_plugin_prints_a_token_with_its_expiry() {
    let issued = run(&format!("printf '%s' '{GOOD}'")).await.unwrap();
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(1_893_542_400);
    assert_eq!(issued, IssuedCredential { token: Some("t1".to_owned()), pair: None, expires: Some(expires) });
}

#[tokio::test]
async fn a_plugin_gets_its_environment_and_the_cluster() {
    let script = r#"case "$KUBERNETES_EXEC_INFO$X" in *'"server":"https://10.0.0.1"'*y) ;; *) echo "$KUBERNETES_EXEC_INFO" >&2; exit 3;; esac"#;
    assert_eq!(run(script).await.unwrap_err(), "exec plugin plugin: printed no ExecCredential");
}

#[tokio::test]
async fn a_failing_plugin_is_named_with_its_last_error_line() {
    for (script, expected) in [
        ("echo one >&2; echo 'two words' >&2; exit 3", "exit status: 3: two words"),
        ("exit 1", "exit status: 1: no error output"),
        ("echo secret", "printed no ExecCredential"),
        (
            r#"echo '{"apiVersion":"v1","kind":"Pod"}'"#,
            "printed a \"Pod\" of \"v1\", not an ExecCredential of client.authentication.k8s.io/v1",
        ),
        (
            r#"echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{}}'"#,
            "printed neither a token nor a certificate",
        ),
        (
            r#"echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"clientKeyData":"k"}}'"#,
            "printed only one of a client certificate and its key",
        ),
        ("head -c 70000 /dev/zero", "printed more than 64 KiB"),
    ] {
        assert_eq!(run(script).await.unwrap_err(), format!("exec plugin plugin: {expected}"), "{script}");
    }
}

#[tokio::test]
async fn a_hanging_plugin_is_killed_after_10_s_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("child");
    let start = Instant::now();
    let script = format!("sleep 600 & echo $! > {}; wait", child.display());
    assert_eq!(run(&script).await.unwrap_err(), "exec plugin plugin: did not end within 10 s");
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    let child = format!("/proc/{}/stat", std::fs::read_to_string(child).unwrap().trim());
    // The process that inherited it may not have reaped it yet.
    let is_gone = || std::fs::read_to_string(&child).map_or(true, |stat| stat.contains(") Z "));
    for _ in 0..100 {
        if is_gone() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{child} still runs");
}

#[test]
fn an_unsupported_exec_plugin_is_refused() {
    let refused = |exec: ExecConfig| Plugin::new(&exec, &Cluster::default(), Path::new("/")).unwrap_err();
    let old =
        ExecConfig { api_version: Some("client.authentication.k8s.io/v1alpha1".to_owned()), ..exec("p") };
    assert!(refused(old).contains("v1alpha1"));
    let person = ExecConfig { interactive_mode: Some(ExecInteractiveMode::Always), ..exec("p") };
    assert_eq!(refused(person), "its exec plugin wants a terminal, and there is none");
    assert_eq!(refused(ExecConfig { command: None, ..exec("p") }), "its exec plugin has no command");
    let named = Plugin::new(&exec("aws"), &Cluster::default(), Path::new("/etc/holdfast")).unwrap();
    assert_eq!(named.name(), "aws", "looked up in PATH");
}
