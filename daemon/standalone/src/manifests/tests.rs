//! When a folder is scanned, without files ([`held`]) and with real ones ([`watched`]).

mod held;
mod watched;

use holdfast_laws::events::shown;

/// A Service in one line of YAML.
fn service(name: &str, ip: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}}}\n"
    )
}
