//! Fuzzes the configuration's parser.

use holdfast_config::Config;
use holdfast_standalone::blocks::{Blocks, StaticService};

use super::Target;

/// The example as it is, and with every key set.
const EXAMPLE: &str = include_str!("../../../config.example.toml");

const SMALL: [&str; 3] = [
    "[[service]]\nname = \"a\"\nfrontends = [\"10.0.0.1:80\"]\nbackends = [\"10.0.0.2:80\", \"[::1]:80\"]\n",
    "[node]\nname = \"n\"\nnode_port_addresses = [\"10.0.0.0/8\", \"fd00::/8\"]\n[hold]\nlimit = \"2m\"\n",
    "[admin]\nlisten = \"127.0.0.1:9890\"\n[kubernetes]\nenabled = true\n[apiserver]\nendpoints = [\"https://10.0.0.1:6443\"]\n",
];

pub(super) struct Configuration;

impl Target for Configuration {
    fn name(&self) -> &'static str {
        "config"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let given: String = EXAMPLE.lines().map(|line| format!("{}\n", uncommented(line))).collect();
        let texts = [EXAMPLE.to_owned(), given].into_iter().chain(SMALL.map(str::to_owned));
        texts.map(String::into_bytes).collect()
    }

    fn read(&mut self, input: &[u8]) -> Result<String, String> {
        let text = String::from_utf8_lossy(input);
        let config = match Config::parse(&text, "fuzz.toml") {
            Ok((config, _)) => config,
            Err(errors) if errors.errors.is_empty() => return Err("refused without a reason".to_owned()),
            Err(errors) => {
                return Ok(errors.errors.iter().map(|error| error.message.with_values()).collect());
            }
        };
        // A parsed configuration is valid: it can be served, written and read again.
        let services = config.services.iter().map(StaticService::from).collect();
        Blocks::new(services, "fuzz.toml")
            .map_err(|faults| format!("legal, and cannot be served: {faults:?}"))?;
        let written = config.effective_text();
        match Config::parse(&written, "fuzz.toml") {
            Ok((again, _)) if again == config => {
                Ok(format!("a configuration with {} services", config.services.len()))
            }
            Ok(_) => Err(format!("means something else when it is written down and read again:\n{written}")),
            Err(errors) => Err(format!("cannot be read again: {errors}\n{written}")),
        }
    }
}

/// Uncomments a key; comments in words stay.
fn uncommented(line: &str) -> &str {
    match line.trim_start_matches('#') {
        key if line.starts_with('#') && !key.starts_with(' ') => key,
        _ => line,
    }
}
