//! Runs a guest once: an emulated machine without network, with two serial ports and a deadline.
//!
//! Invariant: the machine has ended when `run` returns. The first serial port is the kernel's console; the second one
//! carries the program's output and, as its last line, the exit code. Writes to a disk are discarded with the machine,
//! except on a second disk. There is no hardware acceleration: an existing /dev/kvm does not guarantee that a
//! distribution's kernel boots under it, and emulation boots in seconds.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::Deadline;

use crate::clock;
use crate::failure::{Failure, at};
use crate::guest::{self, Errand};
use crate::store::{Kernel, Store};

/// Enough of the console to show a panic with its trace.
const CONSOLE_LINES: usize = 40;

/// Buffered lines between the machine and a slow terminal.
const LINES_WAITING_MAX: usize = 1024;

/// An emulated processor may execute an instruction that the kernel is just replacing, which the kernel does while it
/// boots, and panics then: one boot of ten with Linux 7.3.
const BOOTS_MAX: usize = 3;

/// How the kernel ends where an emulated processor has executed an instruction that was replaced meanwhile: the kernel
/// replaces one by way of this trap, and does not expect it any more.
const STALE_INSTRUCTION: &str = "int3: 0000 [#1]";

/// Where it ends then. Memory beside a program of ours has the same trap, and that is not the emulator's fault.
const PROGRAM: &str = "bpf_prog_";

/// A panic ends the machine and the run. Mitigations and memory initialisation only cost time here.
const LINE: &str = "panic=-1 oops=panic loglevel=4 mitigations=off init_on_alloc=0";

/// A getty waits for a device that never appears. The last word is for `Host::around`.
const LINE_OF_A_SYSTEM: &str =
    "rdinit=/system systemd.mask=getty.target systemd.show_status=no holdfast.guest";

/// Debian's libraries in the folder of tools, and the port of a guest that carries its program's output.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
const OUTPUT: &str = "stdio,id=output";

/// The parts of a guest besides its kernel and its file system.
#[derive(Debug)]
pub(crate) struct Build<'a> {
    pub(crate) memory_mib: u32,
    /// The image of a root file system with systemd as the first process.
    pub(crate) disk: Option<&'a Path>,
    /// A file that is the second disk.
    pub(crate) second: Option<&'a Path>,
    pub(crate) deadline: Duration,
    /// How many times slower its clock runs; 1 is normal.
    pub(crate) slower: i64,
    /// More arguments of the kernel.
    pub(crate) append: &'a str,
}

/// Boots, prints each line of the script, and returns its exit code. A guest that ends before its script begins is
/// booted again.
pub(crate) fn run(
    store: &Store,
    kernel: &Kernel,
    errand: &Errand<'_>,
    build: &Build<'_>,
    tell: &mut dyn FnMut(&str),
) -> Result<u8, Failure> {
    let initrd = &guest::build(store, kernel, errand)?;
    let boot =
        Boot { store, kernel, initrd, build, mark: &errand.mark, until: Deadline::after(build.deadline) };
    let mut boots = 1;
    let ending = loop {
        let ending = boot.follow(tell)?;
        if !ending.is_early() || boots == BOOTS_MAX {
            break ending;
        }
        boots += 1;
        let notice = "the guest ended before its script began, and boots again; its console ended so:";
        // Shown even where the lines of a script are shown only if something failed.
        let _ = writeln!(std::io::stderr(), "{notice}\n{}", ending.console);
    };
    fs::remove_file(initrd).map_err(at("remove", initrd))?;
    let why = if ending.is_in_time { "it ended" } else { "time was up" };
    ending.code.ok_or(Failure::NoResult { why, console: ending.console, is_emulators: ending.is_stale })
}

/// What a machine boots, and until when it may run.
struct Boot<'a> {
    store: &'a Store,
    kernel: &'a Kernel,
    initrd: &'a Path,
    build: &'a Build<'a>,
    mark: &'a str,
    until: Deadline,
}

/// How a machine ended.
struct Ending {
    /// The script's exit code, if the guest gave one.
    code: Option<u8>,
    /// Whether a line of the script came.
    was_heard: bool,
    is_in_time: bool,
    /// Whether the kernel met an instruction that it had replaced already.
    is_stale: bool,
    /// The last lines of the kernel.
    console: String,
}

impl Ending {
    fn is_early(&self) -> bool {
        self.code.is_none() && !self.was_heard && self.is_in_time
    }
}

impl Boot<'_> {
    /// Boots once, and prints each line of the script.
    fn follow(&self, tell: &mut dyn FnMut(&str)) -> Result<Ending, Failure> {
        let console = self.initrd.with_extension("console");
        let mut machine = start(self.command(&console)?)?;
        let mut was_heard = false;
        let mut hear = |line: &str| {
            was_heard = true;
            tell(line);
        };
        let port = machine.stdout.take();
        let code = port.and_then(|port| follow(port, self.mark, self.until, &mut hear));
        let is_in_time = !self.until.is_over();
        machine.kill().and_then(|()| machine.wait()).map_err(at("end", Path::new("qemu")))?;
        let said = fs::read(&console).unwrap_or_default();
        fs::remove_file(&console).map_err(at("remove", &console))?;
        Ok(Ending {
            code,
            was_heard,
            is_in_time,
            is_stale: has_stale_instruction(&said),
            console: tail(&said),
        })
    }

    fn command(&self, console: &Path) -> Result<Command, Failure> {
        let mut command = emulator(self.store, self.build)?;
        command.arg("-serial").arg(format!("file:{}", console.display()));
        add_output(&mut command, self.store.architecture().hardware().adapter);
        command.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(self.initrd);
        Ok(command)
    }
}

/// The second serial port.
fn add_output(command: &mut Command, adapter: Option<&str>) {
    command.args(["-chardev", OUTPUT]);
    match adapter {
        Some(device) => command.arg("-device").arg(format!("{device},chardev=output")),
        None => command.args(["-serial", "chardev:output"]),
    };
}

fn start(mut command: Command) -> Result<Child, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|source| Failure::Start { program, source })
}

/// The tools have their own C library and loader, so nothing of this machine is mixed in.
fn emulator(store: &Store, build: &Build<'_>) -> Result<Command, Failure> {
    let (tools, hardware) = (store.tools()?, store.architecture().hardware());
    let libraries: Vec<String> =
        LIBRARIES.iter().map(|folder| tools.join(folder).display().to_string()).collect();
    let mut command = Command::new(tools.join("lib64/ld-linux-x86-64.so.2"));
    if build.slower > 1 {
        command
            .arg("--preload")
            .arg(clock::library(&store.scratch()?)?)
            .env(clock::SLOWER, build.slower.to_string());
    }
    command.arg("--library-path").arg(libraries.join(":")).arg(tools.join("usr/bin").join(hardware.emulator));
    command.env("QEMU_MODULE_DIR", tools.join("usr/lib/x86_64-linux-gnu/qemu"));
    for firmware in ["usr/share/seabios", "usr/share/qemu"] {
        command.arg("-L").arg(tools.join(firmware));
    }
    command.args(hardware.arguments).args(["-accel", "tcg,thread=multi", "-smp", "2"]);
    command.args(["-m", &build.memory_mib.to_string(), "-nodefaults", "-no-reboot"]);
    command.args(["-display", "none", "-monitor", "none"]);
    let mut line = format!("console={} {} {LINE}", hardware.console, hardware.kernel_arguments);
    if let Some(disk) = build.disk {
        command.arg("-drive").arg(format!("{},snapshot=on", drive(disk)));
        line.extend([" ", LINE_OF_A_SYSTEM]);
    }
    if let Some(disk) = build.second {
        command.arg("-drive").arg(format!("{},cache=unsafe", drive(disk)));
    }
    line.extend([" ", build.append]);
    command.args(["-append", &line]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

fn drive(disk: &Path) -> String {
    format!("file={},format=raw,if=virtio", disk.display().to_string().replace(',', ",,"))
}

/// Prints lines until the mark, the end of the machine, or the deadline.
fn follow(
    port: impl Read + Send + 'static,
    mark: &str,
    until: Deadline,
    tell: &mut dyn FnMut(&str),
) -> Option<u8> {
    let (sender, lines) = mpsc::sync_channel(LINES_WAITING_MAX);
    // Ends with the machine, which has the other end of the pipe.
    thread::spawn(move || {
        let lines = BufReader::new(port).split(b'\n').map_while(Result::ok);
        lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
    });
    loop {
        let line = lines.recv_timeout(until.remaining()).ok()?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        if let Some(code) = line.strip_prefix(mark) {
            return code.parse().ok();
        }
        tell(line);
    }
}

fn has_stale_instruction(console: &[u8]) -> bool {
    let console = String::from_utf8_lossy(console);
    let Some((_, trace)) = console.split_once(STALE_INSTRUCTION) else { return false };
    trace.lines().find(|line| line.contains("RIP: 0010:")).is_some_and(|place| !place.contains(PROGRAM))
}

fn tail(console: &[u8]) -> String {
    let text = String::from_utf8_lossy(console);
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(CONSOLE_LINES)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::TEST_TIMEOUT;

    use super::*;

    #[track_caller]
    fn check(text: &'static str, expected: Option<u8>) {
        let until = Deadline::after(TEST_TIMEOUT);
        assert_eq!(follow(text.as_bytes(), "exit-1-", until, &mut |_| ()), expected, "of {text:?}");
    }

    #[test]
    fn the_exit_code_follows_the_mark() {
        check("a\r\nexit-1-0\r\n", Some(0));
        check("exit-1-101\nafter\n", Some(101));
        check("exit-2-0\nsays exit-1-0\n", None);
        check("", None);
    }

    #[test]
    fn only_the_trap_of_a_replaced_instruction_is_the_emulators_fault() {
        for (console, expected) in [
            (
                "[  487.8] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n[  487.8] RIP: 0010:tcp_reset+0x72/0xa0",
                true,
            ),
            (
                "[  487.8] Oops: int3: 0000 [#1] SMP\n[  487.8] RIP: 0010:bpf_prog_6deef7357e7b4530+0x5/0x6",
                false,
            ),
            ("[  487.8] Oops: general protection fault: 0000 [#1] SMP", false),
            ("[  487.8] Oops: 0002 [#1] SMP\n[  487.8] exc_int3", false),
            ("", false),
        ] {
            assert_eq!(has_stale_instruction(console.as_bytes()), expected, "{console}");
        }
    }

    #[test]
    fn the_deadline_ends_the_wait() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(follow(reader, "exit", Deadline::after(Duration::ZERO), &mut |_| ()), None);
    }
}
