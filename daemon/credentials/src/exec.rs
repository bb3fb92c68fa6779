//! Exec plugins: the operator's programs that print a credential.
//!
//! Invariant: a plugin gets 10 s and 64 KiB. When it ends or times out, its whole process group is killed. It has no
//! terminal, so a plugin that prompts fails.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::config::{Cluster, ExecConfig, ExecInteractiveMode};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The time limit of a plugin: several round trips to a cloud's token service.
const RUN_MAX: Duration = Duration::from_secs(10);

/// The limit of a plugin's output. A token takes a few KB, a certificate chain ten.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// How much of a plugin's standard error is read.
const STDERR_BYTES_MAX: u64 = 4 << 10;

/// How many characters of the last line on standard error the log repeats.
const STDERR_EXCERPT_MAX: usize = 200;

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// Variables by which systemd talks to this daemon. Plugins do not inherit them.
const NOT_INHERITED: [&str; 5] =
    ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plugin {
    version: String,
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct IssuedCredential {
    pub(super) token: Option<String>,
    pub(super) pair: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) expires: Option<SystemTime>,
}

impl fmt::Debug for IssuedCredential {
    /// Keeps secrets out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("expires", &self.expires).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Reads a kubeconfig's `exec`, or returns why it is unsupported.
    pub(super) fn new(exec: &ExecConfig, cluster: &Cluster, folder: &Path) -> Result<Self, String> {
        let version = exec.api_version.clone().unwrap_or_default();
        if !VERSIONS.contains(&version.as_str()) {
            return Err(format!(
                "its exec plugin has apiVersion {version:?}: legal are {}",
                VERSIONS.join(" and ")
            ));
        }
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
            return Err("its exec plugin wants a terminal, and there is none".to_owned());
        }
        let command =
            exec.command.as_deref().filter(|it| !it.is_empty()).ok_or("its exec plugin has no command")?;
        // A name is looked up in PATH; a path is relative to the kubeconfig's folder.
        let command = if command.contains('/') { folder.join(command) } else { command.into() };
        let pair = |entry: &std::collections::HashMap<String, String>| {
            Some((entry.get("name")?.clone(), entry.get("value")?.clone()))
        };
        let mut environment: Vec<_> = exec.env.iter().flatten().filter_map(pair).collect();
        environment.push(("KUBERNETES_EXEC_INFO".to_owned(), exec_info(exec, cluster, &version)));
        Ok(Self { version, command, arguments: exec.args.clone().unwrap_or_default(), environment })
    }

    /// The plugin's command, for messages.
    pub(super) fn name(&self) -> String {
        self.command.display().to_string()
    }

    pub(super) async fn run(&self) -> Result<IssuedCredential, String> {
        let name_plugin = |what: String| format!("exec plugin {}: {what}", self.name());
        let output = self.run_command().await.map_err(name_plugin)?;
        parse_credential(&output, &self.version).map_err(name_plugin)
    }

    async fn run_command(&self) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|it| it.to_string())?;
        let _group = ProcessGroup::from_child_id(child.id());
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let all = async {
            let (output, complaint) = tokio::join!(
                read_bounded(stdout, OUTPUT_BYTES_MAX + 1),
                read_bounded(stderr, STDERR_BYTES_MAX)
            );
            (child.wait().await, output, complaint)
        };
        let seconds = RUN_MAX.as_secs();
        let ended = tokio::time::timeout(RUN_MAX, all).await;
        let (status, output, complaint) = ended.map_err(|_| format!("did not end within {seconds} s"))?;
        if u64::try_from(output.len()).is_ok_and(|length| length > OUTPUT_BYTES_MAX) {
            return Err("printed more than 64 KiB".to_owned());
        }
        match status {
            Ok(status) if status.success() => Ok(output),
            Ok(status) => Err(format!("{status}: {}", excerpt(&complaint))),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The process group of a plugin. Dropping it kills every process that the plugin left behind.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn from_child_id(child: Option<u32>) -> Self {
        Self(child.and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Usually no process is left.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// Reads at most `most` bytes. A plugin that writes more finds the pipe closed.
async fn read_bounded(source: Option<impl AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(source) = source {
        // After an error, the bytes read so far count.
        let _ = source.take(most).read_to_end(&mut read).await;
    }
    read
}

fn excerpt(complaint: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaint);
    let last = text.trim().lines().next_back().unwrap_or("no error output");
    last.chars().filter(|it| !it.is_control()).take(STDERR_EXCERPT_MAX).collect()
}

/// The plugin's input: `KUBERNETES_EXEC_INFO`.
fn exec_info(exec: &ExecConfig, cluster: &Cluster, version: &str) -> String {
    let mut spec = json!({ "interactive": false });
    if exec.provide_cluster_info {
        let extensions = cluster.extensions.iter().flatten();
        let mut own =
            extensions.filter(|it| it.name == "client.authentication.k8s.io/exec").map(|it| &it.extension);
        spec = json!({ "interactive": false, "cluster": {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "certificate-authority-data": cluster.certificate_authority_data,
            "config": own.next_back(),
        }});
    }
    json!({ "apiVersion": version, "kind": "ExecCredential", "spec": spec }).to_string()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<CredentialStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    expiration_timestamp: Option<Time>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

fn parse_credential(output: &[u8], version: &str) -> Result<IssuedCredential, String> {
    // The parser's own error could quote the secret.
    let found: ExecCredential =
        serde_json::from_slice(output).map_err(|_| "printed no ExecCredential".to_owned())?;
    if found.kind != "ExecCredential" || found.api_version != version {
        return Err(format!(
            "printed a {:?} of {:?}, not an ExecCredential of {version}",
            found.kind, found.api_version
        ));
    }
    let status = found.status.unwrap_or_default();
    let pair = match (status.client_certificate_data, status.client_key_data) {
        (Some(certificate), Some(key)) => Some((certificate.into_bytes(), key.into_bytes())),
        (None, None) => None,
        _ => return Err("printed only one of a client certificate and its key".to_owned()),
    };
    let token = status.token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    if token.is_none() && pair.is_none() {
        return Err("printed neither a token nor a certificate".to_owned());
    }
    let seconds = status.expiration_timestamp.and_then(|time| u64::try_from(time.0.as_second()).ok());
    let expires = seconds.and_then(|it| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(it)));
    Ok(IssuedCredential { token, pair, expires })
}

#[cfg(test)]
mod tests;
