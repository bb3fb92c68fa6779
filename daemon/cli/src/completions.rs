//! The completions for shells.
//!
//! Invariant: a shell offers what help shows, and nothing else: no hidden command, no option that does nothing for its
//! command, and no file where none is meant.

use std::io::{self, Write};
use std::sync::OnceLock;

use clap::{Arg, ValueHint};
use clap_complete::Shell;

use super::{Exit, command};

/// The whole command line, for the life of the process: names in a command live as long as it.
static ALL: OnceLock<clap::Command> = OnceLock::new();

pub(super) fn print_completions(shell: Shell, out: &mut impl Write) -> io::Result<Exit> {
    let all = ALL.get_or_init(command);
    let globals: Vec<&Arg> = all.get_arguments().filter(|it| it.is_global_set()).collect();
    let mut shown = build_visible(all, &globals);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown, "holdfast", &mut script);
    let script = String::from_utf8_lossy(&script);
    let commands = shown.get_subcommands().filter(|it| it.get_name() != "help");
    let script = match shell {
        Shell::Zsh => complete_no_word(&script),
        Shell::Fish => script.into_owned() + &commands.map(complete_fish_positional).collect::<String>(),
        _ => script.into_owned(),
    };
    out.write_all(script.as_bytes())?;
    Ok(Exit::Good)
}

/// Gives arguments that have no words an empty list of them, for zsh. Without any list zsh shows a message for them,
/// and then completes no option beside it either.
fn complete_no_word(script: &str) -> String {
    let mend = |line: &str| match line.strip_suffix(":' \\") {
        Some(argument) if argument.starts_with("':") => format!("{argument}:()' \\\n"),
        Some(_) | None => format!("{line}\n"),
    };
    script.lines().map(mend).collect()
}

/// The command with what help shows of it. The generators also offer what is hidden.
fn build_visible(command: &'static clap::Command, globals: &[&Arg]) -> clap::Command {
    let own = || command.get_arguments();
    let is_own = |global: &&&Arg| own().any(|it| it.get_id() == global.get_id());
    let inherited = globals.iter().filter(|global| !is_own(global)).map(|it| (*it).clone());
    let shown = own().filter(|it| !it.is_hide_set()).cloned().chain(inherited);
    let below = command.get_subcommands().filter(|it| !it.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new(command.get_name())
        .about(about)
        .args(shown.map(|it| it.global(false)))
        .subcommands(below.map(|it| build_visible(it, globals)))
}

/// What the generator leaves out for fish: the words of a command's own argument, or that it is no file.
fn complete_fish_positional(command: &clap::Command) -> String {
    let is_file = |it: &Arg| matches!(it.get_value_hint(), ValueHint::FilePath | ValueHint::AnyPath);
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    if positionals.iter().any(|it| is_file(it)) {
        return String::new();
    }
    let words: Vec<String> = positionals
        .iter()
        .flat_map(|it| it.get_possible_values())
        .map(|value| value.get_name().to_owned())
        .collect();
    let words = if words.is_empty() { String::new() } else { format!(" -a \"{}\"", words.join(" ")) };
    format!("complete -c holdfast -n \"__fish_holdfast_using_subcommand {}\" -f{words}\n", command.get_name())
}
