//! Reads the current context of a kubeconfig.
//!
//! Invariant: a kubeconfig's setting that would change the daemon's identity or its trusted authorities is never
//! ignored. An unsupported one is an error that names it. Several files are not merged, and `KUBECONFIG` is not read.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{AuthInfo, Cluster, ExecConfig, Kubeconfig};
use secrecy::ExposeSecret;

use super::exec::Plugin;
use super::files::FileReader;
use super::{Client, GatherError, join_results};
use holdfast_config::ApiserverUrl;

pub(super) struct Context {
    cluster: Cluster,
    user: AuthInfo,
    folder: PathBuf,
}

impl Context {
    /// Reads the current context of the file at `path`.
    pub(super) fn read(path: &Path, files: &mut FileReader) -> Result<Self, GatherError> {
        let text = files.read_text(path).map_err(GatherError::for_file)?;
        let wrong = |what: String| GatherError::Wrong(format!("{}: {what}", path.display()));
        // The parser's error can quote the file, which has secrets.
        let parsed = Kubeconfig::from_yaml(&text).map_err(|_| wrong("is not a kubeconfig".to_owned()))?;
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        Self::from_kubeconfig(parsed, folder).map_err(wrong)
    }

    fn from_kubeconfig(parsed: Kubeconfig, folder: PathBuf) -> Result<Self, String> {
        let current = parsed.current_context.filter(|it| !it.is_empty()).ok_or("has no current-context")?;
        let context = parsed.contexts.into_iter().find(|it| it.name == current).and_then(|it| it.context);
        let context =
            context.ok_or_else(|| format!("its current-context {current:?} is not among its contexts"))?;
        let cluster =
            parsed.clusters.into_iter().find(|it| it.name == context.cluster).and_then(|it| it.cluster);
        let missing = || {
            format!("its context {current:?} names the cluster {:?}, which it does not have", context.cluster)
        };
        let cluster = cluster.ok_or_else(missing)?;
        let user = match context.user.filter(|user| !user.is_empty()) {
            None => AuthInfo::default(),
            Some(name) => {
                let found =
                    parsed.auth_infos.into_iter().find(|it| it.name == name).and_then(|it| it.auth_info);
                found.ok_or_else(|| {
                    format!("its context {current:?} names the user {name:?}, which it does not have")
                })?
            }
        };
        Ok(Self { cluster, user, folder })
    }

    /// The apiserver's address, or why it cannot be dialled.
    pub(super) fn server(&self) -> Result<ApiserverUrl, String> {
        let server = self.cluster.server.as_deref().ok_or("its cluster has no server")?;
        ApiserverUrl::parse(server.trim_end_matches('/')).map_err(|why| format!("its server {why}"))
    }

    pub(super) fn tls_server_name(&self) -> Option<String> {
        self.cluster.tls_server_name.clone().filter(|name| !name.is_empty())
    }

    pub(super) fn authorities(&self, files: &mut FileReader) -> Result<Vec<u8>, GatherError> {
        if self.cluster.insecure_skip_tls_verify == Some(true) {
            let message =
                "insecure-skip-tls-verify is not supported: give its cluster a certificate-authority";
            return Err(GatherError::Wrong(message.to_owned()));
        }
        let data = self.cluster.certificate_authority_data.as_deref();
        let found = self.read_bytes(
            "certificate-authority",
            data,
            self.cluster.certificate_authority.as_deref(),
            files,
        )?;
        found.ok_or_else(|| GatherError::Wrong("its cluster has no certificate-authority".to_owned()))
    }

    pub(super) fn client(&self, files: &mut FileReader) -> Result<Client, GatherError> {
        self.refuse_unsupported()?;
        let user = &self.user;
        let certificate = user.client_certificate_data.as_deref();
        let certificate =
            self.read_bytes("client-certificate", certificate, user.client_certificate.as_deref(), files);
        let key = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
        let key = self.read_bytes("client-key", key, user.client_key.as_deref(), files);
        let pair = match join_results(certificate, key)? {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => {
                return Err(GatherError::Wrong(
                    "its user has only one of a client certificate and its key".to_owned(),
                ));
            }
        };
        Ok(Client { token: self.token(files)?, pair, plugin: self.plugin(user.exec.as_ref())? })
    }

    /// The token. Its file wins over inline text, as in every client of Kubernetes, because text cannot rotate.
    fn token(&self, files: &mut FileReader) -> Result<Option<String>, GatherError> {
        match self.user.token_file.as_deref().filter(|path| !path.is_empty()) {
            Some(path) => super::read_token(&self.folder.join(path), files).map(Some),
            None => Ok(self.user.token.as_ref().map(|token| token.expose_secret().trim().to_owned())),
        }
    }

    fn plugin(&self, exec: Option<&ExecConfig>) -> Result<Option<Plugin>, GatherError> {
        let Some(exec) = exec else { return Ok(None) };
        Plugin::new(exec, &self.cluster, &self.folder).map(Some).map_err(GatherError::Wrong)
    }

    fn refuse_unsupported(&self) -> Result<(), GatherError> {
        let user = &self.user;
        let unsupported = [
            ("auth-provider", user.auth_provider.is_some()),
            ("username and password", user.username.is_some() || user.password.is_some()),
            ("impersonation", user.impersonate.is_some()),
        ];
        match unsupported.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((what, _)) => {
                let instead = "use a token, a client certificate or an exec plugin";
                Err(GatherError::Wrong(format!("its user has {what}, which is not supported: {instead}")))
            }
        }
    }

    /// Inline text wins over a file, as in every client of Kubernetes.
    fn read_bytes(
        &self,
        what: &str,
        data: Option<&str>,
        file: Option<&str>,
        files: &mut FileReader,
    ) -> Result<Option<Vec<u8>>, GatherError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let decoded = BASE64_STANDARD.decode(data.trim());
            return decoded.map(Some).map_err(|_| GatherError::Wrong(format!("{what}-data is not base64")));
        }
        let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
        files.read(&self.folder.join(file)).map(Some).map_err(GatherError::for_file)
    }
}
