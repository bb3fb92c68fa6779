//! What to type in place of a command or an option that other programs have.
//!
//! Invariant: it knows words of kubectl, systemctl, ipvsadm and HAProxy. Clap finds misspelt words of ours by itself,
//! and its guess for a word of another program is wrong.

use clap::ValueEnum;
use clap::error::{ContextKind, ContextValue};

use super::OutputFormat;

/// Words of other programs, and what says the same here.
const COMMANDS: [(&str, &str); 12] = [
    ("endpoints", "holdfast backends"),
    ("endpointslices", "holdfast backends"),
    ("svc", "holdfast services"),
    ("get", "holdfast services, frontends or backends"),
    ("list", "holdfast services, frontends or backends"),
    ("show", "holdfast services, frontends or backends"),
    ("describe", "holdfast explain NAMESPACE/NAME, or holdfast diagnose NAMESPACE/NAME"),
    ("doctor", "holdfast diagnose"),
    ("log", "journalctl -u holdfast"),
    ("logs", "journalctl -u holdfast"),
    ("stat", "holdfast status"),
    ("restart", "systemctl restart holdfast"),
];

/// An error of the command line, with a tip where it names a word of another program.
pub(super) fn add_tip(error: &clap::Error) -> String {
    match find_command(error).or_else(|| find_format(error)) {
        Some(tip) => format!("{}\n  tip: {tip}\n", remove_guess(&error.to_string())),
        None => error.to_string(),
    }
}

/// The command for a word of another program.
fn find_command(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (_, command) = COMMANDS.iter().find(|(word, _)| given.eq_ignore_ascii_case(word))?;
    Some((*command).to_owned())
}

/// The option for a format that other programs choose by `--json`.
fn find_format(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let format = option.strip_prefix("--").filter(|word| OutputFormat::from_str(word, true).is_ok())?;
    Some(format!("`-o {format}` chooses the format"))
}

/// The error without clap's guess, which is a line of its own.
fn remove_guess(error: &str) -> String {
    error.split_inclusive("\n").filter(|line| !line.starts_with("  tip:")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arguments: &[&str], tip: &str) {
        let error = crate::command().try_get_matches_from(arguments).unwrap_err();
        let text = add_tip(&error);
        let tips: Vec<&str> = text.lines().filter(|line| line.starts_with("  tip:")).collect();
        assert_eq!(tips, [tip], "{text}");
    }

    #[test]
    fn words_of_other_programs_lead_to_what_says_the_same() {
        check(&["holdfast", "endpoints"], "  tip: holdfast backends");
        check(&["holdfast", "logs"], "  tip: journalctl -u holdfast");
        check(
            &["holdfast", "Describe"],
            "  tip: holdfast explain NAMESPACE/NAME, or holdfast diagnose NAMESPACE/NAME",
        );
        check(&["holdfast", "status", "--json"], "  tip: `-o json` chooses the format");
        check(&["holdfast", "statsu"], "  tip: a similar subcommand exists: 'status'");
    }
}
