//! Completions in the real bash, zsh and fish: what Tab makes of the beginning of a word.

use std::path::Path;
use std::process::{Command, Output};

use holdfast_fixtures::clock::wait_for;
use tempfile::TempDir;

use super::pty::{Pty, program};

/// A line as it is typed, and as it is after Tab; an empty one has no completion.
const LINES: [(&str, &str); 12] = [
    ("holdfast fron", "holdfast frontends"),
    ("holdfast check-c", "holdfast check-config"),
    ("holdfast apiserver fo", "holdfast apiserver forget"),
    ("holdfast frontends --addr", "holdfast frontends --address"),
    ("holdfast diagnose --no", "holdfast diagnose --no-probe"),
    ("holdfast bugreport --wr", "holdfast bugreport --write"),
    ("holdfast status --output js", "holdfast status --output json"),
    ("holdfast health li", "holdfast health live"),
    // It is for the unit alone.
    ("holdfast prepa", ""),
    // It does nothing for the command.
    ("holdfast import --sock", ""),
    ("holdfast top --outp", ""),
    ("holdfast frontends --type Node", "holdfast frontends --type NodePort"),
];

/// The script for a shell, in a folder of its own, and the program on the path under its name.
struct Scripts {
    folder: TempDir,
}

impl Scripts {
    fn write(shell: &str, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new(program()).args(["completions", shell]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        std::fs::write(folder.path().join(name), made.stdout).unwrap();
        std::os::unix::fs::symlink(program(), folder.path().join("holdfast")).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A shell that is missing is a fault of the machine, and no reason to be silent.
fn run(command: &mut Command) -> Output {
    let name = command.get_program().to_owned();
    let ran = command.output();
    ran.unwrap_or_else(|error| panic!("{}: {error}; `scripts/setup shells` installs it", name.display()))
}

/// Types a line, presses Tab, and has the shell print what came of it.
fn press_tab(pty: &mut Pty, typed: &str) -> String {
    pty.press(&format!("{typed}\t"));
    // Line editors drop what comes while they work.
    pty.wait_until_quiet();
    pty.press("\x01echo 'got'=\x05\r");
    let shown = || {
        let shown = pty.shown();
        let lines: Vec<&str> = shown.lines().filter_map(|line| line.trim().strip_prefix("got=")).collect();
        lines.last().map(|line| line.trim().to_owned())
    };
    let before = shown();
    let message = std::fmt::from_fn(|f| write!(f, "{typed}: {}", pty.shown()));
    wait_for(message, || shown().filter(|line| before.as_ref() != Some(line) || line.starts_with(typed)))
}

/// A service is no file, and one of that name is there. Bash falls back to files whatever a script says.
const NO_FILE: (&str, &str) = ("holdfast explain holdf", "");

fn check_lines(
    lines: impl IntoIterator<Item = (&'static str, &'static str)>,
    mut complete: impl FnMut(&str) -> String,
) {
    for (typed, completed) in lines {
        let expected = if completed.is_empty() { typed } else { completed };
        assert_eq!(complete(typed), expected, "{typed}");
    }
}

#[test]
fn bash_completes() {
    let scripts = Scripts::write("bash", "holdfast.bash");
    let folder = scripts.path().display();
    let rc = format!(
        "PATH={folder}:$PATH; PS1='$ '; source {folder}/holdfast.bash; bind 'set bell-style none'; bind 'set \
                      enable-bracketed-paste off'; cd {folder}\n"
    );
    std::fs::write(scripts.path().join("rc"), rc).unwrap();
    assert!(run(Command::new("bash").arg("--version")).status.success());
    let mut pty = Pty::run(&format!("exec bash --noprofile --rcfile {folder}/rc -i"), (120, 40));
    check_lines(LINES, |typed| press_tab(&mut pty, typed));
}

#[test]
fn zsh_completes() {
    let scripts = Scripts::write("zsh", "_holdfast");
    let folder = scripts.path().display();
    let rc = format!(
        "PATH={folder}:$PATH; fpath=({folder} $fpath); PS1='$ '; unsetopt PROMPT_SP; bindkey -e; autoload -U compinit; \
         compinit -u -D; cd {folder}\n"
    );
    std::fs::write(scripts.path().join(".zshrc"), rc).unwrap();
    assert!(run(Command::new("zsh").arg("--version")).status.success());
    let mut pty = Pty::run(&format!("ZDOTDIR={folder} HOME={folder} TERM=dumb exec zsh -i"), (120, 40));
    check_lines(LINES.into_iter().chain([NO_FILE]), |typed| press_tab(&mut pty, typed));
}

/// Its engine is asked without a terminal.
#[test]
fn fish_completes() {
    let scripts = Scripts::write("fish", "holdfast.fish");
    let folder = scripts.path().display();
    check_lines(LINES.into_iter().chain([NO_FILE]), |typed| {
        let script = format!(
            "set PATH {folder} $PATH; source {folder}/holdfast.fish; cd {folder}; complete -C '{typed}'"
        );
        let ran = run(Command::new("fish").args(["--no-config", "-c", &script]).env("HOME", scripts.path()));
        assert!(ran.status.success(), "{ran:?}");
        let said = String::from_utf8(ran.stdout).unwrap();
        let words: Vec<&str> = said.lines().filter_map(|line| line.split('\t').next()).collect();
        let before = typed.rsplit_once(' ').map_or("", |(before, _)| before);
        match words.as_slice() {
            [] => typed.to_owned(),
            [word] => format!("{before} {word}"),
            several => panic!("{typed}: {several:?}"),
        }
    });
}
