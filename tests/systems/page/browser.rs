//! One browser with one window, driven like a user.
//!
//! Invariant: its profile is a folder of its own, the kernel chooses its ports, and the browser is gone when the test
//! ends in any way.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{Deadline, pause};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::socket::Session;

/// How many polls in a row must see the same place; a page draws once a second.
const STILL: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chromium,
    Firefox,
}

/// The user's pointing device.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "the benchmark of the page has a mouse only")]
pub(crate) enum Pointer {
    Mouse,
    Touch,
    Pen,
}

pub(crate) const BOTH: [Kind; 2] = [Kind::Chromium, Kind::Firefox];

pub(crate) struct Browser {
    session: Session,
    window: String,
    process: Program,
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[])
    }

    /// The same, with further arguments for Chromium.
    pub(crate) fn start_with(kind: Kind, arguments: &[&str]) -> Self {
        if let Some(why) = lacking(kind, &std::env::var("PATH").unwrap_or_default()) {
            panic!("{why}");
        }
        Self::start_program(kind, tempfile::tempdir().unwrap(), arguments)
    }

    /// A browser whose user prefers that colour scheme.
    #[allow(dead_code, reason = "the benchmark of the page measures no colour")]
    pub(crate) fn start_in(kind: Kind, is_dark: bool) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let choice = format!(
            "user_pref(\"layout.css.prefers-color-scheme.content-override\", {});\n",
            u8::from(!is_dark)
        );
        std::fs::write(profile.path().join("user.js"), choice).unwrap();
        let mut browser = Self::start_program(kind, profile, &[]);
        if kind == Kind::Chromium {
            let scheme = if is_dark { "dark" } else { "light" };
            let feature = json!({"name": "prefers-color-scheme", "value": scheme});
            browser.of_chromium("Emulation.setEmulatedMedia", &json!({"features": [feature]}));
        }
        browser
    }

    fn start_program(kind: Kind, profile: TempDir, arguments: &[&str]) -> Self {
        let (process, mut session) = match kind {
            Kind::Chromium => chromium(&profile, arguments),
            Kind::Firefox => firefox(&profile),
        };
        session.command("session.subscribe", &json!({"events": ["log.entryAdded"]}));
        let tree = session.command("browsingContext.getTree", &json!({}));
        let window = tree["contexts"][0]["context"].as_str().unwrap().to_owned();
        Self { session, window, process, _profile: profile }
    }

    #[track_caller]
    pub(crate) fn open(&mut self, url: &str) {
        let there = json!({"context": self.window, "url": url, "wait": "complete"});
        self.session.command("browsingContext.navigate", &there);
    }

    /// The value of an expression in the page, which may be a promise.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let question = json!({
            "expression": format!("(async () => JSON.stringify(await ({expression})))()"),
            "target": {"context": self.window}, "awaitPromise": true,
        });
        let said = self.session.command("script.evaluate", &question);
        assert_eq!(said["type"], "success", "{expression}: {said}");
        said["result"]["value"].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    /// The visible text of elements.
    #[track_caller]
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let all = format!("[...document.querySelectorAll({selector:?})].map(it => it.innerText).join('\\n')");
        self.value(&all).as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let end = Deadline::after(TEST_TIMEOUT);
        while self.value(expression) != true {
            assert!(!end.is_over(), "never {expression}; there is: {}", self.text("body"));
            pause(Duration::from_millis(50));
        }
    }

    #[track_caller]
    pub(crate) fn until_text(&mut self, selector: &str, words: &str) {
        self.until(&format!(
            "[...document.querySelectorAll({selector:?})].some(it => it.innerText.includes({words:?}))"
        ));
    }

    /// Clicks with the pointer in the middle of the element.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        self.until(&format!("!!document.querySelector({selector:?})"));
        let place = self.place(selector);
        self.pointer(Pointer::Mouse, &[Self::to(&place), Self::down(), Self::up()]);
    }

    /// Pointer actions. Between calls, the pointer keeps its place and its button.
    #[track_caller]
    pub(crate) fn pointer(&mut self, pointer: Pointer, actions: &[Value]) {
        let kind = format!("{pointer:?}").to_lowercase();
        self.act(&json!([{"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": actions}]));
    }

    pub(crate) fn to(place: &Value) -> Value {
        json!({"type": "pointerMove", "x": place[0], "y": place[1]})
    }

    pub(crate) fn down() -> Value {
        json!({"type": "pointerDown", "button": 0})
    }

    pub(crate) fn up() -> Value {
        json!({"type": "pointerUp", "button": 0})
    }

    /// The element's current position.
    #[track_caller]
    pub(crate) fn stands(&mut self, selector: &str) -> Value {
        self.value(&format!(
            "(it => {{ it.scrollIntoView({{block: 'center'}}); const box = it.getClientRects()[0]; \
             return [box.x + box.width / 2, box.y + box.height / 2].map(Math.round); }})(document.querySelector({selector:?}))"
        ))
    }

    /// The element's position once it stays still, because an aiming user waits until nothing moves it.
    fn place(&mut self, selector: &str) -> Value {
        let end = Deadline::after(TEST_TIMEOUT);
        let mut there = self.stands(selector);
        let mut still = 0;
        while still < STILL && !end.is_over() {
            pause(Duration::from_millis(100));
            let now = self.stands(selector);
            still = if now == there { still + 1 } else { 0 };
            there = now;
        }
        there
    }

    #[track_caller]
    pub(crate) fn keys(&mut self, text: &str) {
        let press =
            |key: char| [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})];
        let actions: Vec<Value> = text.chars().flat_map(press).collect();
        self.act(&json!([{"type": "key", "id": "keyboard", "actions": actions}]));
    }

    #[track_caller]
    fn act(&mut self, actions: &Value) {
        self.session.command("input.performActions", &json!({"context": self.window, "actions": actions}));
    }

    #[track_caller]
    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let viewport = json!({"context": self.window, "viewport": {"width": width, "height": height}});
        self.session.command("browsingContext.setViewport", &viewport);
    }

    /// A screenshot, saved as a picture of the guide with `BLESS`, so that none is older than the page.
    pub(crate) fn picture(&mut self, name: &str) {
        let seen =
            self.session.command("browsingContext.captureScreenshot", &json!({"context": self.window}));
        let picture = STANDARD.decode(seen["data"].as_str().unwrap()).unwrap();
        assert!(picture.len() > 10_000, "{name} is empty");
        if std::env::var_os("BLESS").is_some() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
        }
    }

    /// Runs a function in each page before its own script.
    #[track_caller]
    pub(crate) fn first(&mut self, function: &str) {
        self.session.command("script.addPreloadScript", &json!({"functionDeclaration": function}));
    }

    /// The printed page as PDF.
    #[track_caller]
    pub(crate) fn print(&mut self) -> Vec<u8> {
        let printed = self.session.command("browsingContext.print", &json!({"context": self.window}));
        STANDARD.decode(printed["data"].as_str().unwrap()).unwrap()
    }

    /// Switches to the print style.
    #[track_caller]
    pub(crate) fn paper(&mut self) {
        self.of_chromium("Emulation.setEmulatedMedia", &json!({"media": "print"}));
    }

    /// Chromium keeps up to 200 MB of the page's responses for its driver. This turns that off and drops them.
    #[allow(dead_code, reason = "the benchmark of the page needs it")]
    #[track_caller]
    pub(crate) fn keep_no_answers(&mut self) {
        self.of_chromium("Network.disable", &json!({}));
    }

    /// Collects garbage; returns how many nodes are left, inside and outside of documents.
    #[allow(dead_code, reason = "the benchmark of the page needs it")]
    #[track_caller]
    pub(crate) fn collected(&mut self) -> u64 {
        self.of_chromium("HeapProfiler.collectGarbage", &json!({}));
        self.of_chromium("Memory.getDOMCounters", &json!({}))["nodes"].as_u64().unwrap()
    }

    /// Calls a method of Chromium's own protocol.
    #[track_caller]
    fn of_chromium(&mut self, method: &str, parameters: &Value) -> Value {
        let session = self.session.command("goog:cdp.getSession", &json!({"context": self.window}));
        let command = json!({"method": method, "params": parameters, "session": session["session"]});
        self.session.command("goog:cdp.sendCommand", &command)["result"].clone()
    }

    /// The process group of the browser and its children.
    #[allow(dead_code, reason = "the benchmark of the page needs it")]
    pub(crate) fn group(&self) -> u32 {
        self.process.0.id()
    }

    /// The messages in its console, except those that a test expects.
    #[track_caller]
    pub(crate) fn console(&mut self) -> Vec<String> {
        // By the time of this answer, all earlier messages have come.
        self.value("1");
        let entries = self.session.events.iter().filter(|event| event["method"] == "log.entryAdded");
        entries.map(|event| format!("{}: {}", event["params"]["level"], event["params"]["text"])).collect()
    }
}

/// The browser is a child of its driver, so it must close first.
impl Drop for Browser {
    fn drop(&mut self) {
        self.session.leave();
    }
}

/// Runs a program in the shell's group, and kills that group when the shell's input ends. A killed test cannot clean
/// up, but the kernel closes its pipes.
const GUARD: &str = "exec 3<&0; \"$@\" </dev/null 3<&- & exec >/dev/null 2>&1; read -r _ <&3; kill -KILL 0";

/// A program in a process group of its own, which ends with it, even if the browser never answered.
struct Program(Child);

impl Program {
    /// Starts a program with a guarded group; its output can be read.
    fn start(program: &str, arguments: &[&str], said: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh", program]).args(arguments);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        said(&mut command);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).unwrap_or_default());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// The first of a browser's programs that these folders lack, with its remedy.
pub(crate) fn lacking(kind: Kind, folders: &str) -> Option<String> {
    let programs: &[&str] = match kind {
        Kind::Chromium => &["chromium", "chromedriver"],
        Kind::Firefox => &["firefox-esr"],
    };
    let is_there = |name: &str| std::env::split_paths(folders).any(|folder| folder.join(name).is_file());
    let absent = programs.iter().find(|name| !is_there(name))?;
    Some(format!("{absent} is not installed: run scripts/setup page"))
}

/// The rest of the first line in which a program prints these words. `None`: it ended before.
fn said(output: impl Read, words: &str) -> Option<String> {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    lines.find_map(|line| line.split_once(words).map(|(_, rest)| rest.to_owned()))
}

/// The driver looks for a free port itself, and ends if another program was faster.
const DRIVER_STARTS_MAX: usize = 5;

/// Chromium's driver and its port.
fn chromedriver() -> Option<(Program, String)> {
    // Its errors about a closing browser are no fault.
    let mut driver = Program::start("chromedriver", &["--port=0"], |command| {
        command.stdout(Stdio::piped());
    });
    let port = said(driver.0.stdout.take()?, "started successfully on port ")?;
    Some((driver, port))
}

fn chromium(profile: &TempDir, more: &[&str]) -> (Program, Session) {
    let started = (0..DRIVER_STARTS_MAX).find_map(|_| chromedriver());
    let (driver, port) = started.unwrap_or_else(|| panic!("chromedriver ends before it has a port"));
    let folder = format!("--user-data-dir={}", profile.path().display());
    // Chromium's sandbox does not run as root; the page is ours.
    let mut arguments =
        vec!["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &folder];
    arguments.extend(more);
    let wanted =
        json!({"browserName": "chrome", "webSocketUrl": true, "goog:chromeOptions": {"args": arguments}});
    let url = format!("http://127.0.0.1:{}/session", port.trim_end_matches('.'));
    let answer = ureq::post(&url).send(json!({"capabilities": {"alwaysMatch": wanted}}).to_string());
    let text = answer.unwrap().body_mut().read_to_string().unwrap();
    let session: Value = serde_json::from_str(&text).unwrap();
    let socket =
        session["value"]["capabilities"]["webSocketUrl"].as_str().unwrap_or_else(|| panic!("{text}"));
    (driver, Session::connect(socket))
}

fn firefox(profile: &TempDir) -> (Program, Session) {
    let folder = profile.path().to_str().unwrap();
    let arguments = ["--headless", "--no-remote", "--remote-debugging-port", "0", "--profile", folder];
    let mut browser = Program::start("firefox-esr", &arguments, |command| {
        command.stderr(Stdio::piped());
    });
    let url = said(browser.0.stderr.take().unwrap(), "WebDriver BiDi listening on ").unwrap();
    let mut session = Session::connect(&format!("{}/session", url.trim()));
    session.command("session.new", &json!({"capabilities": {}}));
    (browser, session)
}
