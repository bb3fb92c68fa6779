//! The terminal while `top` runs: its second screen, and each key as it is pressed.
//!
//! Invariant: however `top` ends, the terminal has its first screen, its cursor and its mode again. Only a signal that
//! no process can catch prevents that.

use std::io::{self, Read, Write};

use nix::sys::termios::{InputFlags, LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use super::keys::{Key, KeyDecoder};

/// The second screen without a cursor, where a long line is cut and not wrapped.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Restores the terminal when it is dropped.
pub(super) struct Terminal<'o, W: Write> {
    out: &'o mut W,
    /// The mode before; `None` if standard input is no terminal.
    mode: Option<Termios>,
}

impl<'o, W: Write> Terminal<'o, W> {
    pub(super) fn enter(out: &'o mut W) -> io::Result<Self> {
        let mode = tcgetattr(io::stdin()).ok();
        // From here on a failure restores what was changed.
        let terminal = Self { out, mode };
        if let Some(mode) = &terminal.mode {
            // Output stays as it is: a line end still moves to the first column.
            let mut by_key = mode.clone();
            by_key
                .local_flags
                .remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG | LocalFlags::IEXTEN);
            by_key.input_flags.remove(InputFlags::IXON | InputFlags::ICRNL);
            tcsetattr(io::stdin(), SetArg::TCSADRAIN, &by_key)?;
        }
        terminal.out.write_all(ENTER.as_bytes())?;
        terminal.out.flush()?;
        Ok(terminal)
    }

    pub(super) fn out(&mut self) -> &mut W {
        self.out
    }
}

impl<W: Write> Drop for Terminal<'_, W> {
    fn drop(&mut self) {
        // The terminal may be gone; then there is no place to report it.
        let _ = self.out.write_all(LEAVE.as_bytes()).and_then(|()| self.out.flush());
        if let Some(mode) = &self.mode {
            // Keys that were pressed meanwhile are not for the shell.
            let _ = tcsetattr(io::stdin(), SetArg::TCSAFLUSH, mode);
        }
    }
}

/// Reads keys until the input ends; the channel closes then. The thread ends with the process.
pub(super) fn read_keys() -> io::Result<mpsc::Receiver<Key>> {
    let (sender, keys) = mpsc::channel(64);
    std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
        let mut decoder = KeyDecoder::default();
        let mut bytes = [0; 256];
        while let Ok(count @ 1..) = io::stdin().read(&mut bytes) {
            for key in decoder.decode(bytes.get(..count).unwrap_or_default()) {
                if sender.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    })?;
    Ok(keys)
}
